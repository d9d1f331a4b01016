"""What looks odd and is honest is not refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.evidence.checks import of_run
from harness.evidence.record import read
from tests.evidence.forge import GPUS, JOURNAL, JUNIT, A, B, journal_bytes, lines, report, run_files, seeds
from tests.evidence.tamperings import both, edit, insert
from tests.reporting import build
from tests.reporting.build import Line

Change = Callable[[list[Line]], object]


def append(*new: Line) -> Change:
    return lambda events: events.extend(new)


def ran(executor: str, cases: int, **facts: Any) -> tuple[Line, Line]:
    """The lines of an executor that no case of the run was in."""
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
    ("a run of an older harness, without an identity", edit("run", identity={})),
    ("a finding", insert(9, build.finding("a device is sick"))),
]


@pytest.mark.parametrize("change", [pytest.param(change, id=name) for name, change in HONEST])
def test_it_is_not_refused(change: Change) -> None:
    events: list[dict[str, Any]] = lines()
    change(events)
    files = {**run_files(events), JOURNAL: journal_bytes(events), JUNIT: report(events)}
    known = read({name.removeprefix("run/"): data for name, data in files.items()}, Path("journal.ndjson"))
    assert [problem.text for problem in of_run(known)] == []
