"""From events to verdicts: each case is accounted for once, and the run is judged by all records."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.caseid import suite_of
from harness.core.outcome import EXIT_NOTHING_RAN, EXIT_OK, EXIT_RED, Outcome
from harness.journal import journal, reader
from harness.journal.ledger import Cost, Ledger
from tests.journal import journals
from tests.reporting import build
from tests.reporting.build import ledger

A, B, C = "suites/streams/test_a.py::a", "suites/amp/test_b.py::b", "suites/streams/test_c.py::c[x]"


@pytest.mark.parametrize(
    ("case", "suite"),
    [
        ("suites/streams/test_events.py::TestX::test_y[cpu-3]", "streams"),
        ("suites/streams/deep/test_events.py::test_y", "streams"),
        ("here/suites/amp/test_x.py::test_y", "amp"),
        ("suites/test_x.py::test_y", "suites"),
        ("tests/unit/test_x.py::test_y", "unit"),
        ("tests/unit/test_x.py::test_y[suites/amp/x::z]", "unit"),
        ("test_x.py::test_y", "test_x"),
        ("../test_x.py::test_y", "test_x"),
        ("/test_x.py::test_y", "test_x"),
        ("::", "::"),
    ],
)
def test_suite_of(case: str, suite: str) -> None:
    assert suite_of(case) == suite


def test_one_verdict_each_in_collection_order() -> None:
    account = ledger(
        build.run(),
        build.collected(A, B, C),
        build.start(C),
        build.finish(C, Outcome.FAILED, message="assert 1 == 2"),
        build.start(A),
        build.finish(A),
        build.end(exit_status=1),
    )
    assert [(v.case, v.suite, v.outcome, v.message, v.collected) for v in account.verdicts] == [
        (A, "streams", Outcome.PASSED, "", True),
        (B, "amp", Outcome.NOT_RUN, "the run ended, and the journal has no start of this case", True),
        (C, "streams", Outcome.FAILED, "assert 1 == 2", True),
    ]
    assert account.counts == {Outcome.NOT_RUN: 1, Outcome.PASSED: 1, Outcome.FAILED: 1}
    assert list(account.counts) == [Outcome.NOT_RUN, Outcome.PASSED, Outcome.FAILED]
    assert [verdict.case for verdict in account.red] == [B, C]
    assert account.findings == ()
    assert account.exit_status() == EXIT_RED


def test_what_did_not_run_says_what_stopped_the_run() -> None:
    account = ledger(build.run(), build.collected(A, B), build.start(A), build.finish(A), build.stopped("SIGHUP"))
    assert [verdict.message for verdict in account.verdicts] == [
        "",
        "the run was stopped by SIGHUP, and the journal has no start of this case",
    ]


@pytest.mark.parametrize(
    ("lines", "outcome", "message", "decided"),
    [
        pytest.param(
            [
                build.start(A),
                build.finish(A, Outcome.CRASHED, final=False, message="SIGSEGV in call"),
                build.start(A, attempt=2),
                build.finish(A, Outcome.NOT_RUN, attempt=2, message="stopped by SIGTERM"),
            ],
            Outcome.CRASHED,
            "SIGSEGV in call",
            0,
            id="cut short when it was tried again",
        ),
        pytest.param([build.start(A), build.finish(A)], Outcome.PASSED, "", 0, id="passed"),
        pytest.param(
            [build.start(A), build.finish(A, Outcome.CRASHED, exit_status=-11)],
            Outcome.CRASHED,
            "crashed: SIGSEGV",
            0,
            id="without a message the exit status is it",
        ),
        pytest.param(
            [build.finish(A, Outcome.GATED, gate={"capability": "memory", "wanted": ">=12GiB", "found": "8.0GiB"})],
            Outcome.GATED,
            "memory: wanted >=12GiB, found 8.0GiB",
            0,
            id="or the gate",
        ),
        pytest.param([build.finish(A, Outcome.SKIPPED)], Outcome.SKIPPED, "skipped", 0, id="or the outcome"),
        pytest.param(
            [build.start(A)],
            Outcome.LOST,
            "started on worker gw0, executor gw0-1, devices cpu, seed 11, and never finished",
            None,
            id="lost",
        ),
        pytest.param(
            [build.start(A, worker="", executor=None, devices=[])],
            Outcome.LOST,
            "started on worker none, executor none, devices none, seed 11, and never finished",
            None,
            id="lost without isolation",
        ),
        pytest.param(
            [build.start(A), build.executor(state="ended", exit_status=-9, reason="the supervisor went away")],
            Outcome.LOST,
            "started on worker gw0, executor gw0-1, devices cpu, seed 11, and never finished; "
            "that executor ended with SIGKILL (the supervisor went away)",
            None,
            id="lost, with what became of its executor",
        ),
        pytest.param(
            build.broke_and(A, Outcome.CRASHED, None),
            Outcome.LOST,
            "broke after other cases (crashed) and was never confirmed alone: broke here",
            None,
            id="never confirmed",
        ),
        pytest.param(
            build.broke_and(A, Outcome.CRASHED, Outcome.PASSED),
            Outcome.FLAKY,
            "crashed after other cases, passed alone: broke here",
            1,
            id="flaky",
        ),
        pytest.param(
            build.broke_and(A, Outcome.CRASHED, Outcome.TIMEOUT), Outcome.TIMEOUT, "timeout", 1, id="confirmed"
        ),
        pytest.param(
            [build.finish(A, worker="gw0"), build.finish(A, Outcome.ERROR, worker="gw1", message="no")],
            Outcome.ERROR,
            "no",
            1,
            id="two workers, the worse counts",
        ),
        pytest.param(
            [build.finish(A, Outcome.FAILED, message="first"), build.finish(A, Outcome.FAILED, message="second")],
            Outcome.FAILED,
            "first",
            0,
            id="twice the same, the first decides",
        ),
        pytest.param(
            [build.finish(A, Outcome.NOT_RUN, message="no device left")],
            Outcome.NOT_RUN,
            "no device left",
            0,
            id="not run, and it is known why",
        ),
        pytest.param(
            [
                build.finish(A, Outcome.FAILED, final=False, alone=True, message="first"),
                build.finish(A, attempt=2, alone=True),
            ],
            Outcome.FLAKY,
            "failed at first, passed on retry: first",
            1,
            id="tried again",
        ),
        pytest.param(
            [build.finish(A, Outcome.CRASHED, ruling=build.ruling(Outcome.WAIVED), message="SIGSEGV")],
            Outcome.WAIVED,
            "a rule says so",
            0,
            id="a rule's words stand in for the attempt's",
        ),
        pytest.param(
            [
                build.finish(A, Outcome.FAILED, message="no"),
                build.finish(A, attempt=2, ruling=build.ruling(Outcome.FAILED, "failed in 1 of 2")),
            ],
            Outcome.FAILED,
            "failed in 1 of 2",
            0,
            id="of a ruled case the attempt is shown that went wrong",
        ),
        pytest.param(
            [
                build.finish(A, ruling=build.ruling(Outcome.UNEXPECTED_PASS)),
                build.finish(A, Outcome.CRASHED, attempt=2, message="SIGSEGV"),
            ],
            Outcome.CRASHED,
            "SIGSEGV",
            1,
            id="what comes after a rule was applied, and is worse, counts",
        ),
    ],
)
def test_verdicts(lines: list[build.Line], outcome: Outcome, message: str, decided: int | None) -> None:
    (verdict,) = ledger(build.run(), build.collected(A), *lines).verdicts
    assert verdict.outcome is outcome
    assert verdict.message == message
    assert verdict.decided is (None if decided is None else verdict.finishes[decided])


def test_earlier_attempts_are_kept_and_their_time_counts() -> None:
    (verdict,) = ledger(build.collected(A), *build.broke_and(A, Outcome.CRASHED, Outcome.PASSED)).verdicts
    assert [finish.outcome for finish in verdict.earlier] == [Outcome.CRASHED]
    assert verdict.started == 2
    assert verdict.duration == 1.0


def test_flaky_is_red_only_when_the_run_says_so() -> None:
    lines = [build.collected(A), *build.broke_and(A, Outcome.CRASHED, Outcome.PASSED)]
    green = ledger(build.run(), *lines)
    red = ledger(build.run(fail_on_flaky=True), *lines)
    assert (green.exit_status(), green.red) == (EXIT_OK, ())
    assert red.exit_status() == EXIT_RED
    assert [verdict.case for verdict in red.red] == [A]


@pytest.mark.parametrize(
    ("lines", "kinds", "status"),
    [
        pytest.param([], [], EXIT_NOTHING_RAN, id="nothing at all"),
        pytest.param([build.run()], [], EXIT_NOTHING_RAN, id="ended before it collected"),
        pytest.param([build.run(), build.collected()], [], EXIT_NOTHING_RAN, id="no cases"),
        pytest.param([build.collected(A), build.finish(A, Outcome.GATED)], [], EXIT_NOTHING_RAN, id="all gated"),
        pytest.param([build.collected(A), build.finish(A)], [], EXIT_OK, id="green"),
        pytest.param(
            [build.collected(A), build.collected(A, worker="gw1"), build.finish(A)], [], EXIT_OK, id="workers agree"
        ),
        pytest.param(
            [build.collected(A, ids=[], worker="gw1"), build.collected(A), build.finish(A)],
            [],
            EXIT_OK,
            id="one worker has the ids",
        ),
        pytest.param(
            [build.collected(A), build.finish(A), build.finding("gone")],
            ["device_lost"],
            EXIT_RED,
            id="a finding is red",
        ),
        pytest.param([build.finding("gone")], ["device_lost"], EXIT_RED, id="a finding is red without cases too"),
        pytest.param(
            [build.collected(A), build.collected(A, B, worker="gw1"), build.finish(A), build.finish(B)],
            ["collections_differ"],
            EXIT_RED,
            id="workers disagree",
        ),
        pytest.param(
            [build.collected(A, ids=[]), build.finish(A)],
            ["collection_missing", "not_collected"],
            EXIT_RED,
            id="nobody has the ids",
        ),
        pytest.param(
            [build.collected(A, count=2), build.finish(A)], ["collection_wrong"], EXIT_RED, id="count does not fit"
        ),
        pytest.param(
            [build.collected(A, ids=[B]), build.finish(B)], ["collection_wrong"], EXIT_RED, id="hash does not fit"
        ),
        pytest.param([build.collected(A, A), build.finish(A)], ["duplicate_ids"], EXIT_RED, id="the same id twice"),
        pytest.param([build.finish(A)], ["not_collected"], EXIT_RED, id="the list is not there"),
        pytest.param(
            [build.collected(A), build.finish(A), build.start(B)], ["not_collected"], EXIT_RED, id="an uncollected case"
        ),
    ],
)
def test_findings_and_exit_status(lines: list[build.Line], kinds: list[str], status: int) -> None:
    account = ledger(*lines)
    assert [finding.kind for finding in account.findings] == kinds
    assert account.exit_status() == status


def test_a_must_pass_list_is_satisfied_by_passes_alone() -> None:
    lines = [build.run(), build.collected(A, B), build.start(A), build.finish(A)]
    satisfied = ledger(*lines, build.finish(B, Outcome.WAIVED), build.must_pass(A))
    assert [result.missed for result in satisfied.lists] == [()]
    assert satisfied.lists[0].text.endswith("): satisfied")
    assert satisfied.exit_status() == EXIT_OK
    missed = ledger(*lines, build.finish(B, Outcome.WAIVED), build.must_pass(A, B, "suites/x.py::gone"))
    assert [result.missed for result in missed.lists] == [(B, "suites/x.py::gone")]
    assert [(finding.kind, finding.cases) for finding in missed.findings] == [("must_pass", (B, "suites/x.py::gone"))]
    assert f"not satisfied, 2 did not pass, the first {B}" in missed.findings[0].message
    assert missed.exit_status() == EXIT_RED


@pytest.mark.parametrize(("wanted", "red"), [(0, False), (1, False), (2, True)])
def test_a_run_in_which_fewer_cases_ran_than_it_should_is_red(wanted: int, red: bool) -> None:
    run = build.run(minimum_cases=wanted, profile="nightly")
    forbidden = build.finish(C, Outcome.SKIPPED, ruling=build.ruling(Outcome.FAILED))
    found = ledger(run, build.collected(A, B, C), build.finish(A), build.finish(B, Outcome.GATED), forbidden)
    assert [verdict.ran for verdict in found.verdicts] == [True, False, False]
    messages = [finding.message for finding in found.findings]
    assert messages == (["1 case ran, but profile nightly requires at least 2"] if red else [])


def test_uncollected_cases_come_last_and_are_flagged() -> None:
    account = ledger(build.finish(B), build.collected(A), build.start(C), build.finish(A))
    assert [(v.case, v.outcome, v.collected) for v in account.verdicts] == [
        (A, Outcome.PASSED, True),
        (B, Outcome.PASSED, False),
        (C, Outcome.LOST, False),
    ]
    assert account.findings[0].cases == (B, C)


def test_differing_collections_are_all_accounted_for() -> None:
    account = ledger(build.collected(B, A), build.collected(A, C, worker="gw1"))
    assert [verdict.case for verdict in account.verdicts] == [B, A, C]
    assert "gw0 has sha256:" in account.findings[0].message
    assert "gw1 has sha256:" in account.findings[0].message


def test_cost_of_isolation() -> None:
    account = ledger(
        build.collected(A, B),
        build.executor("gw0-1", startup=0.25),
        build.executor("gw1-1", startup=0.5),
        *build.broke_and(A, Outcome.CRASHED, Outcome.PASSED),
        build.executor("gw0-1", "ended", exit_status=-11),
        build.executor("gw0-2", startup=0.125),
        build.executor("gw0-3"),
    )
    assert account.cost == Cost(executors=4, startup=0.875, restarts=2, retries=1)


def test_a_repetition_is_no_retry() -> None:
    """With ``--repeat`` each attempt counts; an attempt that confirms a break after other cases does not."""
    twice = [build.start(A), build.finish(A), build.start(A, attempt=2), build.finish(A, attempt=2)]
    assert ledger(build.collected(A), *twice).cost.retries == 0
    begun = build.start(A, attempt=3)
    assert ledger(build.collected(A), *twice, begun).cost.retries == 1
    assert ledger(build.collected(A), begun).cost.retries == 0


def test_a_run_carried_on_is_judged_by_its_last_leg() -> None:
    account = ledger(build.run(seed=1), build.end(exit_status=2), build.run(seed=2))
    assert account.run is not None
    assert account.run.seed == 2
    assert account.end is None


def test_unreadable_lines_make_a_run_red(tmp_path: Path) -> None:
    lines = [build.run(), build.collected(A), build.start(A), build.finish(A), {"event": "finding"}]
    account = Ledger.from_journal(reader.read_journal(journals.write(tmp_path, lines) / journal.FILE_NAME))
    assert [verdict.outcome for verdict in account.verdicts] == [Outcome.PASSED]
    (finding,) = account.findings
    assert finding.kind == "damaged_journal"
    assert "(line 5)" in finding.message
    assert account.exit_status() == EXIT_RED


def test_a_line_that_comes_twice_counts_once() -> None:
    second = [build.start(A, attempt=2), build.finish(A, Outcome.FAILED, attempt=2)]
    lines = [build.run(), build.collected(A), build.start(A), build.start(A, attempt=2), build.finish(A), *second]
    once = ledger(*lines[:3], build.finish(A), *second)
    account = ledger(*lines, *second, build.finish(A))
    assert account.verdicts[0].finishes == once.verdicts[0].finishes
    assert account.verdicts[0].started == 2
    assert account.cost.retries == once.cost.retries
    assert account.read_problems.doubled_lines == 4
