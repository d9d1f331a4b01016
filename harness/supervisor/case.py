"""A case, and its journal lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest

from harness.core import clock
from harness.core.outcome import Outcome, Ruling
from harness.core.text import single_line, truncate_middle
from harness.gating.requirements import Unmet
from harness.gating.waivers import Waiver
from harness.journal import events
from harness.journal.events import Finish, Gate, Start
from harness.scheduling.leases import ALONE

#: Characters kept of the tracebacks of a case.
_TRACEBACK_LIMIT = 64 << 10


@dataclass(frozen=True, slots=True)
class Case:
    """A collected item, with the decisions that are made before it runs. `limit` in seconds.

    `before`: the number of attempts before the run was resumed. `finished`: the case had its verdict before that.
    `objection`: why the run does not accept that the case is gated. `waivers`: those that apply to it in this run.
    `share` and `memory`: its needs on each of its `devices`, see `harness.scheduling.leases.Claim`. `own_process`: no
    other case may use its process before or after it. `keeps`: the memory that it may keep, as text.
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
    keeps: str = ""
    before: int = 0
    finished: bool = False

    def start(self, *, attempt: int, alone: bool, worker: str, at: float | None = None, **where: Any) -> Start:
        """Return the line of an attempt that starts. `at`: when it began, if earlier than now."""
        moment = clock.now() if at is None else at
        return Start(t=moment, case=self.id, attempt=attempt, alone=alone, worker=worker, seed=self.seed, **where)

    def finish(self, outcome: Outcome, *, worker: str, attempt: int = 1, alone: bool = True, **more: Any) -> Finish:
        """Return the line of an attempt that has ended. `more`: further fields of the line."""
        fields: dict[str, Any] = {"t": clock.now(), "final": True, "duration": 0.0, **more}
        return Finish(
            case=self.id, attempt=attempt, alone=alone, worker=worker, seed=self.seed, outcome=outcome, **fields
        )

    def gated(self, unmet: Unmet, worker: str) -> Finish:
        """Return the line of a case that is not run because of `unmet`."""
        gate = Gate(capability=unmet.capability, wanted=unmet.wanted, found=unmet.found)
        ruling = ruling_field(self.objection)
        return self.finish(Outcome.GATED, worker=worker, message=unmet.text, gate=gate, ruling=ruling)

    def not_run(self, reason: str, worker: str) -> Finish:
        """Return the line of a case that could not be run, with the `reason`."""
        return self.finish(Outcome.NOT_RUN, worker=worker, message=reason)


def ruling_field(ruling: Ruling | None) -> events.Ruling | None:
    """Return a ruling as it is written to the journal."""
    return None if ruling is None else events.Ruling(outcome=ruling.outcome, text=ruling.text, source=ruling.source)


def first_line(reports: Sequence[pytest.TestReport]) -> str:
    """Return one line with the exception of a failure or the reason of a skip; empty for a pass."""
    for report in reports:
        if report.failed:
            crash, text = getattr(getattr(report.longrepr, "reprcrash", None), "message", ""), report.longreprtext
            return single_line(assertion_reason(str(crash), text) or str(crash) or doctest_reason(text) or text)
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


#: What pytest says of an assertion that compares nothing.
_BARE = re.compile(
    r"(?:AssertionError: )?assert (?:not )*(?:True|False|None|np\.(?:True|False)_|tensor\((?:True|False)\b.*\))"
)
_STATEMENT = re.compile(r"^>(.*\n(?:(?!E  |>)(?! +\^+$).*\n)*)", re.MULTILINE)
_BUILT_IN = re.compile(r"<built-in (?:method|function) (\w+)(?: of [^<>]* at 0x[0-9a-f]+)?>")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+(?=>)")


def assertion_reason(crash: str, report: str) -> str:
    """Return the statement of an assertion whose own text has only the value, and where this came from.

    For example ``assert torch.equal(a, b), where False = equal(tensor([1.]), tensor([2.]))``. The text is empty for
    other failures, and without the source in the report. `crash`: the exception's message, with pytest's explanation.
    """
    value, _, explanation = crash.partition("\n")
    statements = [] if _BARE.fullmatch(value) is None else _STATEMENT.findall(report)
    if not statements:
        return ""
    source = " ".join(line.strip() for line in statements[-1].splitlines())
    where = explanation.partition("\n")[0].strip().removeprefix("+").strip()
    where = _ADDRESS.sub("", _BUILT_IN.sub(r"\1", where))
    return f"{source}, {where}" if where.startswith("where ") else source


_END = re.compile(r":(?P<line>[0-9]+): (?:DocTestFailure|UnexpectedException)\s*\Z")
_UNEXPECTED = re.compile(r"^UNEXPECTED EXCEPTION: (?P<error>.*)$", re.MULTILINE)
_EXPECTED = re.compile(r"^Expected(?: (?P<nothing>nothing)|:\n(?P<text>(?: {4}.*\n?|\n)*))", re.MULTILINE)
_GOT = re.compile(r"^Got(?: (?P<nothing>nothing)|:\n(?P<text>(?: {4}.*\n?|\n)*))", re.MULTILINE)
_SHOWN = 200


def doctest_reason(report: str) -> str:
    """Return the reason, such as ``line 8: expected 5, got 3``.

    The text is empty if this is not the report of a doctest.
    """
    end = _END.search(report)
    if end is None:
        return ""
    where = f"line {end['line']}"
    unexpected = _UNEXPECTED.search(report)
    if unexpected is not None:
        return f"{where}: {single_line(unexpected['error'], _SHOWN)}"
    expected, got = _EXPECTED.search(report), _GOT.search(report)
    if expected is None or got is None:
        return f"{where}: the output differs"
    return f"{where}: expected {_shown(expected)}, got {_shown(got)}"


def _shown(match: re.Match[str]) -> str:
    if match["nothing"]:
        return "nothing"
    lines = match["text"].strip().splitlines()
    return single_line(match["text"], _SHOWN) + (" …" if len(lines) > 1 else "")
