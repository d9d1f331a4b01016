"""Lines of a journal at given seconds of a run."""

from __future__ import annotations

from harness.core.outcome import Outcome
from tests.reporting import build
from tests.reporting.build import Line

#: When the run starts.
T = 1_760_000_000.0


def start(case: str, at: float, worker: str = "gw0", **changes: object) -> Line:
    return build.start(case, t=T + at, worker=worker, **changes)


def finish(
    case: str, outcome: Outcome = Outcome.PASSED, at: float = 20, worker: str = "gw0", **changes: object
) -> Line:
    return build.finish(case, outcome, t=T + at, worker=worker, **changes)


def activity(what: str, at: float, worker: str = "gw0", **changes: object) -> Line:
    return build.activity(what, t=T + at, worker=worker, **changes)
