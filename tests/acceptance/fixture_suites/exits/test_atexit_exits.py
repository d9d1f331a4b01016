"""A case whose exit callback ends the process with a status of its own."""

import atexit
import os

EXPECTED = {
    "test_before": "passed",
    "test_after": "passed",
    "test_registers": "crashed: exit status 3 at interpreter exit",
}
COUNTS = {"batch": {"passed": 1}, "case": {}}  # it has passed by the time that its end is found bad


def test_before() -> None:
    pass


def test_after() -> None:
    pass


def test_registers() -> None:
    atexit.register(lambda: os._exit(3))
