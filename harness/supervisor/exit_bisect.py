"""Finds the cases that make a process with several cases end badly."""

from __future__ import annotations

from collections.abc import Sequence

from harness.supervisor.attempt import CaseRequest, leave, run_attempt
from harness.supervisor.case import Case
from harness.supervisor.lane import Lane


def suspects_of_exit(lane: Lane, cases: Sequence[Case], limit: float) -> list[Case]:
    """Bisect these cases, whose common process ended badly. Return the single cases that remain.

    Whether one of them causes this alone is not known yet. `limit`: the most seconds for the end of a process. The lane
    has no executor. Raises NoDeviceError, StoppedError.
    """
    if len(cases) == 1:
        return [*cases]
    middle = len(cases) // 2
    halves = (cases[:middle], cases[middle:])
    return [case for half in halves if _ends_badly(lane, half, limit) for case in suspects_of_exit(lane, half, limit)]


def _ends_badly(lane: Lane, cases: Sequence[Case], limit: float) -> bool:
    """Run these cases in one process again. Return whether that process ended badly."""
    handle = lane.spawn(cases[0])
    for case, following in zip(cases, [*cases[1:], None], strict=True):
        after = None if following is None else following.id
        attempt = run_attempt(handle, CaseRequest(case.item, case.id, case.seed, case.limit, after), 0)
        if not attempt.usable:
            break
    good = handle.exit_status is None and leave(handle, limit, light=False)
    bad = (not good or handle.exit_status != 0) and handle.harness_error is None
    lane.slot.dispose(handle, "rehearsal")
    return bad
