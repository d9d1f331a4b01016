"""Unusual but honest runs are not refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.core.outcome import Outcome
from harness.tools.evidence.checks import run_problems
from harness.tools.evidence.record import read_evidence_record
from tests.reporting import build
from tests.reporting.build import Line
from tests.tools.evidence.forge import GPUS, JOURNAL, JUNIT, A, B, journal_bytes, lines, report, run_files, seeds
from tests.tools.evidence.tamperings import LOST_NODE, both, edit, insert, second_device

Change = Callable[[list[Line]], object]


def append(*new: Line) -> Change:
    return lambda events: events.extend(new)


def lost_node(events: list[Line]) -> None:
    """Add an executor without an end on a lost node; its case ran again."""
    there = {**seeds(A), "executor": "n1-gw0-1", "worker": "n1-gw0", "host": "n1"}
    lost = build.finish(A, Outcome.LOST, final=False, message="node n1 was lost: it was silent", **there)
    finding = build.finding("node n1 was lost: it was silent", kind="node_lost", host="n1")
    executor = build.executor("n1-gw0-1", devices=[GPUS[0]], worker="n1-gw0", host="n1")
    insert(5, executor, build.start(A, **there), {**LOST_NODE}, finding, lost)(events)
    for line in events:
        if line.get("case") == A and line.get("executor") == "gw0-1":
            line["attempt"] = 2


def second(events: list[Line]) -> None:
    insert(9, *second_device())(events)
    next(line for line in events if line.get("state") == "ended").update(cases=4)


def lost_for_good(events: list[Line]) -> None:
    """Let no node remain for the next attempt."""
    edit("finish", A, outcome="failed", final=False, message="once")(events)
    ended = {**seeds(A), "attempt": 2, "executor": None, "worker": "", "devices": []}
    insert(7, build.finish(A, Outcome.LOST, message="lost", **ended))(events)


def ran(executor: str, cases: int, **facts: Any) -> tuple[Line, Line]:
    """Return the lines of an executor in which no case of the run ran."""
    facts = {"devices": [GPUS[0]], **facts}
    return build.executor(executor, **facts), build.executor(executor, "ended", cases=cases, **facts)


def flaky(events: list[Line]) -> None:
    again = {"attempt": 2, **seeds(A)}
    edit("finish", A, outcome="failed", final=False, message="once")(events)
    insert(7, build.start(A, **again), build.finish(A, **again))(events)
    next(line for line in events if line.get("state") == "ended").update(cases=4)


BY_MARK = {"outcome": "waived", "text": "leaks", "source": "suites/a/test_a.py:3"}
HONEST: list[tuple[str, Change]] = [
    ("results of harness bisect, after the end", append(build.bisected(B, [A]))),
    ("clocks that differ by a second", edit("finish", A, t=1_760_000_001.5)),
    (
        "a case that passed, and broke when it was repeated",
        both(edit("finish", A, detail="Fatal"), insert(7, build.confirmation(A, leaks=[], failure="crashed"))),
    ),
    ("an executor that only repeats", insert(7, *ran("gw0-2", 2, reason="rehearsal"))),
    (
        "a worker that died",
        both(lambda events: events.pop(-2), insert(9, build.finding("worker gw0 died", kind="worker"))),
    ),
    (
        "a case waived by a mark in its file",
        both(edit("finish", B, ruling=BY_MARK), edit("end", exit_status=0)),
    ),
    ("a flaky case", flaky),
    ("a run without an identity", edit("run", identity={})),
    ("a node that was lost", lost_node),
    ("a node that joined later", insert(9, {**LOST_NODE, "state": "ready", "devices": [GPUS[1]]})),
    ("a second device", second),
    ("a finding", insert(9, build.finding("a device is sick"))),
]


@pytest.mark.parametrize("change", [pytest.param(change, id=name) for name, change in HONEST])
def test_it_is_not_refused(change: Change) -> None:
    events: list[dict[str, Any]] = lines()
    change(events)
    files = {**run_files(events), JOURNAL: journal_bytes(events), JUNIT: report(events)}
    known = read_evidence_record(
        {name.removeprefix("run/"): data for name, data in files.items()}, Path("journal.ndjson")
    )
    assert [problem.text for problem in run_problems(known)] == []


def test_a_case_that_was_lost_between_two_attempts_is_only_unfinished() -> None:
    events: list[dict[str, Any]] = lines()
    lost_for_good(events)
    files = {**run_files(events), JOURNAL: journal_bytes(events), JUNIT: report(events)}
    known = read_evidence_record(
        {name.removeprefix("run/"): data for name, data in files.items()}, Path("journal.ndjson")
    )
    found = [problem for problem in run_problems(known) if "must-pass" not in problem.text]
    assert [(problem.text, problem.unfinished) for problem in found] == [
        (f"the harness lost 1 case, which has no verdict: {A}", True)
    ]
