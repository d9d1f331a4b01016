"""Cases with and without limits of their own."""

import threading

import pytest

EXPECTED = {
    "test_unmarked": "timeout: did not finish within 0.8 s (in call)",
    "test_marked": "timeout: did not finish within 0.6 s (in call)",
    "test_long_enough": "passed",
}


def test_unmarked() -> None:
    threading.Event().wait()


@pytest.mark.timeout(seconds=0.3)
def test_marked() -> None:
    threading.Event().wait()


@pytest.mark.timeout(60)
def test_long_enough() -> None:
    threading.Event().wait(1)
