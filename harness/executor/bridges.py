"""Actions of plugins at the end of a session, which the harness takes in an executor, whose session never ends."""

from __future__ import annotations

import sys


def save_coverage() -> None:
    """Write coverage's data of this process next to its data file, for the controller to combine.

    pytest-cov starts coverage in the process that collects, so coverage continues in each fork. An error is printed.
    """
    coverage = sys.modules.get("coverage")
    current = getattr(coverage, "Coverage", None)
    measured = None if current is None else current.current()
    if measured is None:
        return
    try:
        measured.stop()
        measured.save()
    except Exception as error:  # noqa: BLE001 - it may not matter to the run, and is no fault of a case
        print(f"harness: the coverage data of this process is lost: {error!r}", file=sys.stderr)
