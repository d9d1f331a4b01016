"""The judgement on a run of the suites, and that it gets what it needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.caseid import digest_of_ids
from harness.core.disposable import DisposableRun
from harness.core.outcome import Outcome
from harness.journal.events import Collected, Event, RunStarted, Start
from harness.journal.ledger import Ledger
from harness.ready import deep
from harness.ready.node import Request
from tests.ready.test_judge import judged

WHERE = Path("results/ready-1")


def ledger(**outcomes: Outcome) -> Ledger:
    """Return the results of a run with these cases; those that did not run have no attempt."""
    started = RunStarted(
        t=1.0,
        schema_version=1,
        run_id="r",
        argv=("pytest",),
        seed=1,
        isolation="batch",
        host="h",
        pid=1,
        devices=("GPU-a",),
        fail_on_flaky=False,
        rootdir="/",
    )
    events: list[Event] = [
        started,
        Collected(t=1.0, worker="", count=len(outcomes), hash=digest_of_ids(list(outcomes)), ids=tuple(outcomes)),
    ]
    for case, outcome in outcomes.items():
        if outcome is not Outcome.NOT_RUN:
            start = Start(t=2.0, case=case, attempt=1, seed=1)
            events += [start, start.ended(outcome, "", t=3.0, final=True)]
    return Ledger.from_lines(events)


@pytest.mark.parametrize(
    ("outcomes", "status", "state", "kinds", "text"),
    [
        ({"a": Outcome.PASSED, "b": Outcome.GATED}, 0, "ok", [], "1 case ran"),
        ({"a": Outcome.PASSED, "b": Outcome.NOT_RUN}, 2, "ok", [], "1 case ran, 1 did not within the budget"),
        ({"a": Outcome.PASSED, "b": Outcome.FAILED}, 1, "problem", ["suites"], "1 of 2 cases ran: b: failed"),
        (
            {"a": Outcome.CRASHED, "b": Outcome.NOT_RUN},
            -9,
            "problem",
            ["suites"],
            "1 of 1 case ran, 1 did not within the budget: a: crashed",
        ),
        ({"a": Outcome.NOT_RUN}, 2, "unknown", ["cannot_run"], "0 cases ran, 1 did not within the budget"),
        ({"a": Outcome.GATED}, 5, "unknown", ["cannot_run"], "0 cases ran"),
        ({"a": Outcome.PASSED}, 3, "unknown", ["cannot_run"], "1 case ran; exit status 3"),
    ],
)
def test_what_a_run_says_about_the_node(
    outcomes: dict[str, Outcome], status: int, state: str, kinds: list[str], text: str
) -> None:
    (run,), problems = judged(deep.judge_run, DisposableRun(status, True, 60.0), ledger(**outcomes), WHERE)
    assert (run.state, [problem.kind for problem in problems]) == (state, kinds)
    assert run.text.startswith(text)


def test_a_run_without_a_journal_is_unknown() -> None:
    end = DisposableRun(4, True, 1.0, errors=b"ERROR: no such file\n")
    (run,), (problem,) = judged(deep.judge_run, end, None, WHERE)
    assert (run.state, problem.kind) == ("unknown", "cannot_run")
    assert run.text == "the run left no journal: exit status 4; ERROR: no such file"


def test_a_run_that_cannot_be_killed_needs_a_reboot() -> None:
    _, (problem,) = judged(deep.judge_run, DisposableRun(None, False, 60.0), None, WHERE)
    assert problem.kind == "unkillable"


@pytest.mark.parametrize(("gpus", "budget", "why"), [([], 600.0, "no GPU"), (["GPU-a"], 20.0, "budget is used up")])
def test_a_run_that_makes_no_sense_is_skipped(gpus: list[str], budget: float, why: str) -> None:
    (run,), problems = judged(deep.run_suites, Request(), gpus, budget)
    assert (run.state, problems) == ("skipped", [])
    assert why in run.text
