"""A case, and its journal lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import pytest

from harness.core.outcome import Outcome, Ruling
from harness.core.text import single_line, truncate_middle
from harness.gating.requirements import Unmet
from harness.gating.waivers import Waiver
from harness.scheduling.leases import ALONE
from harness.supervisor import doctest_reason

#: Characters kept of the tracebacks of a case.
_TRACEBACK_LIMIT = 64 << 10


class RecordAll(Protocol):
    """Writes some events to the journal, in one step."""

    def __call__(self, *events: Mapping[str, Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class Case:
    """A collected item, with the decisions that are made before it runs. `limit` in seconds.

    `before`: the number of attempts before the run was resumed. `finished`: the case had its verdict before that.
    `objection`: why the run does not accept that the case is gated. `waivers`: those that apply to it in this run.
    `share` and `memory`: its needs on each of its `devices`, see `harness.scheduling.leases.Claim`. `own_process`: no
    other case may use its process before or after it.
    """

    item: pytest.Item
    id: str
    seed: int
    limit: float
    devices: int
    unmet: Unmet | None
    objection: Ruling | None = None
    waivers: tuple[Waiver, ...] = ()
    share: Fraction = ALONE
    memory: int = 0
    own_process: bool = False
    before: int = 0
    finished: bool = False

    def line(
        self,
        event: str,
        *,
        attempt: int,
        alone: bool,
        worker: str,
        executor: str | None = None,
        devices: Sequence[str] = (),
        **more: Any,
    ) -> dict[str, Any]:
        """Return a journal event about one attempt at this case. Empty values in `more` are left out."""
        return {
            "event": event,
            "case": self.id,
            "attempt": attempt,
            "alone": alone,
            "worker": worker,
            "executor": executor,
            "devices": list(devices),
            "seed": self.seed,
            **{name: value for name, value in more.items() if value is not None and value not in ("", [])},
        }

    def gated(self, unmet: Unmet, worker: str) -> dict[str, Any]:
        """Return the journal line of a case that is not run because of `unmet`."""
        return self.line(
            "finish",
            attempt=1,
            alone=True,
            worker=worker,
            outcome=Outcome.GATED.value,
            final=True,
            duration=0.0,
            message=unmet.text,
            gate={"capability": unmet.capability, "wanted": unmet.wanted, "found": unmet.found},
            ruling=ruling_line(self.objection),
        )

    def not_run(self, reason: str, worker: str) -> dict[str, Any]:
        """Return the journal line of a case that could not be run, with the `reason`."""
        outcome = Outcome.NOT_RUN.value
        return self.line(
            "finish", attempt=1, alone=True, worker=worker, outcome=outcome, final=True, duration=0.0, message=reason
        )


def ruling_line(ruling: Ruling | None) -> dict[str, str] | None:
    """Return a ruling as it is written to the journal."""
    if ruling is None:
        return None
    return {"outcome": ruling.outcome.value, "text": ruling.text, "source": ruling.source}


def first_line(reports: Sequence[pytest.TestReport]) -> str:
    """Return one line with the exception of a failure or the reason of a skip; empty for a pass."""
    for report in reports:
        if report.failed:
            crash = getattr(getattr(report.longrepr, "reprcrash", None), "message", "")
            return single_line(str(crash or doctest_reason.doctest_reason(report.longreprtext) or report.longreprtext))
        if report.skipped and hasattr(report, "wasxfail"):
            return f"expected failure: {report.wasxfail}" if report.wasxfail else "expected failure"
        if report.skipped and isinstance(report.longrepr, tuple):
            return single_line(str(report.longrepr[2]))
    return ""


def tracebacks(reports: Sequence[pytest.TestReport]) -> str:
    """Return the tracebacks of all failed phases."""
    return truncate_middle("\n\n".join(report.longreprtext for report in reports if report.failed), _TRACEBACK_LIMIT)


def may_follow(following: Case, case: Case) -> bool:
    """Return whether `following` will run in the executor of `case`, if that is still usable."""
    served = (following.devices, following.share) == (case.devices, case.share) and following.memory <= case.memory
    return following.unmet is None and served and not following.finished and not needs_own_process(following)


def needs_own_process(case: Case) -> bool:
    """Return whether the case asks for its own process, or a waiver expects it to break its process."""
    return case.own_process or _is_expected_to_break(case)


def takes_short_exit(case: Case) -> bool:
    """Return whether the case asks for its own process, and that process need not be finalised as a whole.

    A break that a waiver expects may show only in the finalisation.
    """
    return case.own_process and not _is_expected_to_break(case)


def _is_expected_to_break(case: Case) -> bool:
    expected = {outcome for waiver in case.waivers for outcome in waiver.expect}
    return any(outcome.breaks_executor for outcome in expected) and Outcome.FLAKY not in expected
