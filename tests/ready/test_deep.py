"""The judgement on a run of the suites, and that it gets what it needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.core.caseid import digest_of_ids
from harness.core.disposable import DisposableRun
from harness.core.outcome import Outcome
from harness.journal.events import Collected, Event, RunStarted, Start
from harness.journal.ledger import Ledger
from harness.ready import deep
from harness.ready.node import Request
from tests.ready.test_judge_node import judged

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


def output(*results: dict[str, Any]) -> bytes:
    tests = [{"name": "PCIe", "results": [{"gpu_id": "0", "status": "Pass"}]}, {"name": "Memory", "results": results}]
    return json.dumps({"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": tests}]}}).encode()


PASS, SKIP = {"gpu_id": "1", "status": "Pass"}, {"gpu_id": "1", "status": "Skip"}
FAIL, FAIL4 = {"gpu_id": "1", "status": "Fail", "warnings": "DBE"}, {"entity_id": 1, "status": "Fail"}


@pytest.mark.parametrize(
    ("end", "state", "kinds", "text"),
    [
        (DisposableRun(0, True, 9.0, output(PASS, SKIP)), "ok", [], ""),
        (DisposableRun(226, True, 9.0, output(PASS, FAIL)), "problem", ["dcgm"], "Memory (GPU 1)"),
        (DisposableRun(0, True, 9.0, output(FAIL4)), "problem", ["dcgm"], "Memory (GPU 1)"),
        (DisposableRun(226, True, 9.0, output(PASS)), "unknown", ["cannot_run"], "exit status 226, and no test failed"),
        (DisposableRun(1, True, 1.0, b"", b"no host engine\n"), "unknown", ["cannot_run"], "no JSON: no host engine"),
        (DisposableRun(0, True, 1.0, b"[" * 100000), "unknown", ["cannot_run"], "no JSON"),
        (DisposableRun(-9, False, 60.0), "unknown", ["cannot_run"], "did not end within 60 s"),
        (DisposableRun(None, False, 60.0), "problem", ["unkillable"], "dcgmi diag"),
    ],
)
def test_what_dcgm_says(end: DisposableRun, state: str, kinds: list[str], text: str) -> None:
    (run,), problems = judged(deep.judge_dcgm, end)
    assert (run.state, [problem.kind for problem in problems]) == (state, kinds)
    assert text in run.text


@pytest.mark.parametrize(("budget", "level"), [(300.0, 1), (600.0, 2)])
def test_a_fake_dcgmi_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: float, level: int) -> None:
    program = tmp_path / "dcgmi"
    program.write_text(f'#!/bin/sh\necho "$@" >"{tmp_path}/asked"\necho \'{output(FAIL).decode()}\'\nexit 226\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (run,), (problem,) = judged(deep.run_dcgm, Request(budget=budget), 100.0)
    assert (run.state, problem.kind, problem.found) == ("problem", "dcgm", "Memory (GPU 1)")
    assert (tmp_path / "asked").read_text() == f"diag -r {level} -j\n"


def test_without_the_program_the_check_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (run,), problems = judged(deep.run_dcgm, Request(), 100.0)
    assert (run.state, run.text, problems) == ("skipped", "dcgmi is not installed", [])
