"""A case whose finalizer ends the process with its own status, at the end of the interpreter."""

import os
import weakref

EXPECTED = {
    "test_before": "passed",
    "test_finalizes": "crashed: exit status 4 at interpreter exit",
}
COUNTS = {"batch": {"passed": 1}, "case": {}}  # it has already passed when the bad end is found


class Lives:
    """Lives until the process ends."""

    kept: "Lives"


def test_before() -> None:
    pass


def test_finalizes() -> None:
    Lives.kept = Lives()
    weakref.finalize(Lives.kept, os._exit, 4)
