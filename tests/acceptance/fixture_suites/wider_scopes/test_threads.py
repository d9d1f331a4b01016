"""Growth that a fixture of a wider scope leaves is searched where it was set up."""

import threading
import time

import pytest

EXPECTED = {"test_first": "leaked: ", "test_second": "passed"}
COUNTS = {"batch": {"passed": 1}, "case": {}}  # it has already passed when the growth is found


@pytest.fixture(scope="module")
def forgets_a_thread() -> None:
    threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()


@pytest.mark.usefixtures("forgets_a_thread")
def test_first() -> None:
    pass


def test_second() -> None:
    pass
