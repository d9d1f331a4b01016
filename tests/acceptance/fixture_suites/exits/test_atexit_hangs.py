"""A case whose atexit callback never returns."""

import atexit
import threading

import pytest

EXPECTED = {
    "test_hangs": "timeout: the process did not end within 0.5 s",
    "test_after": "passed",
}
COUNTS = {"batch": {"passed": 1}, "case": {}}  # it has already passed when the bad end is found


@pytest.mark.timeout(0.5)
def test_hangs() -> None:
    atexit.register(threading.Event().wait)


def test_after() -> None:
    pass
