"""A case that leaves a thread which the end of the interpreter waits for."""

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
