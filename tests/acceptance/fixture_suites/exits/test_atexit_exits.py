"""A case whose atexit callback ends the process with its own status."""

import atexit
import os

EXPECTED = {
    "test_before": "passed",
    "test_after": "passed",
    "test_registers": "crashed: exit status 3 at interpreter exit",
}
COUNTS = {"batch": {"passed": 1}, "case": {}}  # it has already passed when the bad end is found


def test_before() -> None:
    pass


def test_after() -> None:
    pass


def test_registers() -> None:
    atexit.register(lambda: os._exit(3))
