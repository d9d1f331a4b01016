"""A case whose atexit callback kills the process."""

import atexit
import os
import signal

EXPECTED = {
    "test_before": "passed",
    "test_registers": "crashed: SIGKILL at interpreter exit",
    "test_after": "passed",
    "test_last": "passed",
}
COUNTS = {"batch": {"passed": 1}, "case": {}}  # it has already passed when the bad end is found


def test_before() -> None:
    pass


def test_registers() -> None:
    atexit.register(lambda: os.kill(os.getpid(), signal.SIGKILL))


def test_after() -> None:
    pass


def test_last() -> None:
    pass
