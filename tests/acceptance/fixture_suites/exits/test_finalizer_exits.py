"""A case whose finalizer ends the process with a status of its own, at the end of the interpreter."""

import os
import weakref

EXPECTED = {
    "test_before": "passed",
    "test_finalizes": "crashed: exit status 4 at interpreter exit",
}
COUNTS = {"batch": {"passed": 1}, "case": {}}  # it has passed by the time that its end is found bad


class Lives:
    """Lives as long as the process."""

    kept: "Lives"


def test_before() -> None:
    pass


def test_finalizes() -> None:
    Lives.kept = Lives()
    weakref.finalize(Lives.kept, os._exit, 4)
