"""The finished work of an interrupted run: pure functions of its journal."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.outcome import Outcome
from harness.journal.events import Event, RunStarted
from harness.journal.ledger import Ledger
from harness.journal.reader import JournalContents
from harness.scheduling.resume import Needed, finals_needed, in_flight, lost_lines, reopened_lines, resumption_of
from harness.scheduling.workers import Finished, ResumeError, Resumption
from tests.reporting import build

A, B, C = "suites/a.py::a", "suites/a.py::b", "suites/a.py::c"


def interrupted(*lines: build.Line, **run: object) -> JournalContents:
    return build.contents(build.run(**run), build.collected(A, B, C), *lines)


REPEATED = {"settings": {"repeat": 3}}
UNTIL = {"settings": {"repeat": 3, "until_fail": True}}
GATE = {"capability": "device", "wanted": "cuda", "found": "cpu"}


@pytest.mark.parametrize(
    ("lines", "run", "finished"),
    [
        ([], {}, False),
        ([build.start(A)], {}, False),
        ([build.start(A), build.finish(A)], {}, True),
        ([build.finish(A, Outcome.GATED, gate=GATE)], {}, True),
        ([build.start(A), build.finish(A, Outcome.LOST)], {}, False),
        ([build.finish(A), build.finish(A, Outcome.LOST), build.finish(A)], REPEATED, False),
        ([build.finish(A, Outcome.NOT_RUN)], {}, False),
        (build.broke_and(A, Outcome.CRASHED, None), {}, False),
        (build.broke_and(A, Outcome.CRASHED, Outcome.CRASHED), {}, True),
        (build.broke_and(A, Outcome.CRASHED, Outcome.NOT_RUN), {}, False),
        ([build.finish(A), build.finish(A)], REPEATED, False),
        ([build.finish(A, attempt=number) for number in (1, 2, 3)], REPEATED, True),
        ([build.finish(A, Outcome.GATED, gate=GATE)], REPEATED, True),
        ([build.finish(A), build.finish(A, Outcome.FAILED)], UNTIL, True),
        ([build.finish(A), build.finish(A)], UNTIL, False),
        ([build.finish(A)], {"settings": {"repeat": 3, "verify": 2}}, True),
        ([build.finish(A)], {"settings": {"repeat": 3}, "isolation": "none"}, True),
        ([build.finish(A), build.start(A, attempt=2)], {}, True),
    ],
)
def test_a_case_with_its_verdict_is_finished(lines: list[build.Line], run: dict[str, object], finished: bool) -> None:
    assert (A in resumption_of(interrupted(*lines, **run)).finished) is finished


def test_what_is_replayed_and_what_is_left() -> None:
    found = resumption_of(
        interrupted(
            build.executor("gw0-e2"),
            build.executor("gw0-e11"),
            build.executor("main-e1"),
            build.finish(
                A, Outcome.FAILED, message="no", detail="Traceback", phases={"call": 0.5}, reproduce="pytest a"
            ),
            *build.broke_and(B, Outcome.CRASHED, None),
            build.finding("worker gw0 died", kind="worker"),
        )
    )
    assert found == Resumption(
        finished={A: Finished(Outcome.FAILED, "no", "Traceback", 0.5, {"call": 0.5}, "pytest a")},
        attempts={B: 2, C: 0},
        executors={"gw0": 11, "main": 1},
        ids=(A, B, C),
        findings=frozenset({("worker", "worker gw0 died")}),
        part=2,
    )


def test_a_ruling_is_replayed_and_not_the_attempt() -> None:
    ruled = build.finish(A, Outcome.FAILED, ruling=build.ruling(Outcome.WAIVED, "waived: known"))
    assert resumption_of(interrupted(ruled)).finished[A].outcome is Outcome.WAIVED


def test_without_a_list_of_cases_there_is_nothing_to_resume() -> None:
    with pytest.raises(ResumeError, match="ended before it had collected its cases: start it again"):
        resumption_of(build.contents(build.run()))


def test_an_attempt_in_flight_is_lost_and_no_other() -> None:
    run = interrupted(
        build.start(A, t=1.0), build.finish(A), *build.broke_and(B, Outcome.CRASHED, None), build.start(C, pid=3)
    )
    lines = lost_lines(run)
    assert [(line.case, line.attempt, line.outcome, line.final) for line in lines] == [
        (B, 2, "lost", False),
        (C, 1, "lost", False),
    ]
    assert all(line.message == "the run was interrupted while the case ran" for line in lines)
    again = replace(run, events=(*run.events, *lines))
    assert lost_lines(again) == []
    assert resumption_of(again).attempts == {B: 2, C: 1}


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ([], set()),
        ([build.start(A)], {A}),
        ([build.start(A), build.finish(A)], set()),
        ([build.start(A), build.finish(A, Outcome.LOST, final=False)], {A}),
        ([build.start(A), build.finish(A, Outcome.LOST)], {A}),
        ([build.start(A), build.finish(A, Outcome.CRASHED, final=False)], set()),
        ([build.finish(A, Outcome.LOST, final=False), build.finish(A, Outcome.NOT_RUN, attempt=2)], set()),
        ([*build.broke_and(A, Outcome.CRASHED, None), build.start(B)], {A, B}),
    ],
)
def test_what_ran_when_a_run_was_interrupted(lines: list[build.Line], found: set[str]) -> None:
    run = interrupted(*lines)
    assert in_flight(run, resumption_of(run)) == found


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ((A, B, C), ""),
        ((C, B, A), ""),
        ((A, B), f"1 case is gone ({C})"),
        ((A, B, C, "x", "y"), "2 cases are new (x, y)"),
        (("1", "2", "3", "4"), f"4 cases are new (1, 2, 3, …); 3 cases are gone ({A}, {B}, {C})"),
    ],
)
def test_how_lists_of_cases_differ(ids: tuple[str, ...], text: str) -> None:
    assert Resumption(ids=(A, B, C)).difference(ids) == text


def test_workers_read_what_the_controller_wrote(tmp_path: Path) -> None:
    found = resumption_of(
        interrupted(build.finish(A, phases={"call": 0.5}), build.finding("f"), build.start(B)), forced=True
    )
    assert Resumption.read(found.write(tmp_path)) == found


def test_what_the_options_ask_for() -> None:
    (run,) = build.events(build.run(**UNTIL))
    assert isinstance(run, RunStarted)
    assert finals_needed(run) == Needed(3, until_red=True)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from([A, B, C]), st.sampled_from(["start", "finish"]), st.sampled_from(Outcome), st.booleans()
    ),
    max_size=20,
)


@given(EVENTS)
def test_what_is_left_runs_and_nothing_twice(events: list[tuple[str, str, Outcome, bool]]) -> None:
    """Whatever the journal contains, a resumed run that passes all remaining cases has a verdict for each case."""
    lines = [
        build.start(case, attempt=number)
        if kind == "start"
        else build.finish(case, outcome, final=final, attempt=number)
        for number, (case, kind, outcome, final) in enumerate(events, start=1)
    ]
    run = interrupted(*lines)
    found = resumption_of(run)
    left = [case for case in (A, B, C) if case not in found.finished]
    assert {*found.attempts} == {*left}
    more = [build.finish(case, attempt=found.attempts[case] + 1) for case in left]
    between: list[Event] = [*lost_lines(run), *reopened_lines(run, found)]
    events_now = [*run.events, *between, *build.events(*more)]
    after = {verdict.case: verdict for verdict in Ledger.from_lines(events_now).verdicts}
    for case in left:
        assert after[case].decided is not None or after[case].outcome.is_red or after[case].outcome is Outcome.FLAKY
        assert after[case].outcome not in (Outcome.LOST, Outcome.NOT_RUN)
    for case, finished in found.finished.items():
        assert after[case].outcome is finished.outcome


def test_a_case_that_the_harness_lost_is_open_again() -> None:
    """When a run is killed, a worker may outlive its executor, and finish the case as lost."""
    crashed = build.broke_and(A, Outcome.CRASHED, Outcome.LOST)
    run = interrupted(*crashed, build.finish(B, Outcome.NOT_RUN), build.finish(C))
    found = resumption_of(run)
    assert found.attempts == {A: 2, B: 1}
    lines = reopened_lines(run, found)
    assert [line.case for line in lines] == [A, B]
    passed = [build.finish(A, attempt=3), build.finish(B, attempt=2)]
    after = Ledger.from_lines([*run.events, *lines, *build.events(*passed)])
    assert [verdict.outcome for verdict in after.verdicts] == [Outcome.FLAKY, Outcome.PASSED, Outcome.PASSED]
