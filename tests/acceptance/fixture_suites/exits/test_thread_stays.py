"""A case that leaves a thread for which the interpreter waits at its end."""

import threading

import pytest

EXPECTED = {
    "test_before": "passed",
    "test_stays": "timeout: the process did not end within 0.5 s",
}


def test_before() -> None:
    pass


@pytest.mark.timeout(0.5)
def test_stays() -> None:
    threading.Thread(target=threading.Event().wait).start()
