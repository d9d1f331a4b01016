"""The outcomes' predicates and the two decisions based on them, as tables."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.core.outcome import (
    EXIT_NOTHING_RAN,
    EXIT_OK,
    EXIT_RED,
    AttemptResult,
    Outcome,
    final_verdict,
    run_exit_status,
)

O = Outcome  # noqa: E741 - the tables below are read by column

#         outcome            red    ran    breaks
PREDICATES = {
    O.NOT_RUN: (True, False, False),
    O.GATED: (False, False, False),
    O.SKIPPED: (False, False, False),
    O.WAIVED: (False, True, False),
    O.PASSED: (False, True, False),
    O.FLAKY: (False, True, False),
    O.UNEXPECTED_PASS: (True, True, False),
    O.LOST: (True, False, False),
    O.CONTAMINATED: (True, True, True),
    O.RACED: (True, True, False),
    O.LEAKED: (True, True, True),
    O.FAILED: (True, True, False),
    O.ERROR: (True, True, False),
    O.POISONED: (True, True, True),
    O.TIMEOUT: (True, True, True),
    O.CRASHED: (True, True, True),
}


def test_the_table_has_every_outcome_mildest_first() -> None:
    assert list(PREDICATES) == list(Outcome)
    assert [outcome.severity for outcome in PREDICATES] == list(range(len(Outcome)))


@pytest.mark.parametrize("outcome", Outcome)
def test_predicates(outcome: Outcome) -> None:
    assert (outcome.is_red, outcome.ran, outcome.breaks_executor) == PREDICATES[outcome]


def final(outcome: Outcome) -> AttemptResult:
    return AttemptResult(outcome, final=True)


def again(outcome: Outcome) -> AttemptResult:
    return AttemptResult(outcome, final=False)


def ruled(outcome: Outcome, ruling: Outcome) -> AttemptResult:
    return AttemptResult(outcome, final=True, ruled=ruling)


@pytest.mark.parametrize(
    ("attempts", "started", "verdict"),
    [
        pytest.param([], 0, O.NOT_RUN, id="never started"),
        pytest.param([], 1, O.LOST, id="started, never ended"),
        pytest.param([again(O.CRASHED)], 1, O.LOST, id="broke after other cases, never tried alone"),
        pytest.param([again(O.CRASHED)], 2, O.LOST, id="broke after other cases, second try never ended"),
        pytest.param([again(O.CRASHED)], 0, O.LOST, id="ended, though its start was never recorded"),
        pytest.param([again(O.CRASHED), final(O.PASSED)], 2, O.FLAKY, id="breaks after other cases, passes alone"),
        pytest.param([again(O.CRASHED), final(O.CRASHED)], 2, O.CRASHED, id="breaks alone too"),
        pytest.param([again(O.CRASHED), final(O.TIMEOUT)], 2, O.TIMEOUT, id="breaks alone in another way"),
        pytest.param([again(O.CRASHED), final(O.FAILED)], 2, O.FAILED, id="breaks after other cases, fails alone"),
        pytest.param([again(O.PASSED), final(O.PASSED)], 2, O.PASSED, id="repeated without having broken"),
        pytest.param([final(O.PASSED), final(O.PASSED)], 2, O.PASSED, id="sent to two workers, passed on both"),
        pytest.param([final(O.PASSED), final(O.FAILED)], 2, O.FAILED, id="sent to two workers, failed on one"),
        pytest.param([final(O.CRASHED), final(O.PASSED)], 2, O.CRASHED, id="a final attempt is never erased"),
        pytest.param([final(O.PASSED)], 2, O.PASSED, id="passed, then started on another worker and killed"),
        pytest.param(
            [again(O.CRASHED), final(O.PASSED), final(O.PASSED)],
            3,
            O.FLAKY,
            id="flaky on one worker, passed on one",
        ),
        pytest.param([again(O.FAILED), final(O.PASSED)], 2, O.FLAKY, id="fails, and passes when tried again"),
        pytest.param([again(O.FAILED), again(O.FAILED), final(O.PASSED)], 3, O.FLAKY, id="passes at the third try"),
        pytest.param([again(O.FAILED), final(O.FAILED)], 2, O.FAILED, id="fails when tried again"),
        pytest.param([again(O.CRASHED), final(O.NOT_RUN)], 2, O.CRASHED, id="breaks, and the second try is cut short"),
        pytest.param([again(O.FAILED), again(O.CRASHED), final(O.NOT_RUN)], 3, O.CRASHED, id="the worse of two tries"),
        pytest.param([again(O.LOST), final(O.NOT_RUN)], 2, O.NOT_RUN, id="lost, and the second try is cut short"),
        pytest.param([final(O.PASSED), final(O.NOT_RUN)], 2, O.PASSED, id="looked into again, which is cut short"),
        pytest.param([again(O.LOST), final(O.PASSED)], 2, O.PASSED, id="what the harness lost counts for nothing"),
        pytest.param([final(O.PASSED), final(O.FAILED), final(O.PASSED)], 3, O.FAILED, id="fails in one of three"),
        pytest.param([ruled(O.CRASHED, O.WAIVED)], 1, O.WAIVED, id="a waiver makes a crash waived"),
        pytest.param([again(O.CRASHED), ruled(O.PASSED, O.WAIVED)], 2, O.WAIVED, id="a rule stands in for flaky too"),
        pytest.param([ruled(O.PASSED, O.UNEXPECTED_PASS)], 1, O.UNEXPECTED_PASS, id="a rule can make a pass red"),
        pytest.param([final(O.CRASHED), ruled(O.PASSED, O.WAIVED)], 2, O.WAIVED, id="a rule knows what was before"),
        pytest.param([ruled(O.CRASHED, O.WAIVED), final(O.CRASHED)], 2, O.CRASHED, id="and not what comes after"),
        *(pytest.param([final(outcome)], 1, outcome, id=f"just {outcome}") for outcome in Outcome),
    ],
)
def test_settle(attempts: Sequence[AttemptResult], started: int, verdict: Outcome) -> None:
    assert final_verdict(attempts, started) is verdict


@pytest.mark.parametrize(
    ("verdicts", "fail_on_flaky", "status"),
    [
        pytest.param([], False, EXIT_NOTHING_RAN, id="no cases"),
        pytest.param([O.GATED, O.SKIPPED], False, EXIT_NOTHING_RAN, id="nothing ran"),
        pytest.param([O.GATED, O.PASSED], False, EXIT_OK, id="a mix is judged by what ran"),
        pytest.param([O.WAIVED], False, EXIT_OK, id="waived cases run"),
        pytest.param([O.GATED, O.NOT_RUN], False, EXIT_RED, id="not run is red"),
        pytest.param([O.PASSED, O.LOST], False, EXIT_RED, id="lost is red"),
        pytest.param([O.FLAKY], False, EXIT_OK, id="flaky is green"),
        pytest.param([O.FLAKY, O.PASSED], True, EXIT_RED, id="flaky is red when asked"),
        pytest.param([O.PASSED], True, EXIT_OK, id="fail on flaky without a flaky case"),
        *(pytest.param([O.PASSED, o], False, EXIT_RED, id=f"{o} is red") for o in Outcome if PREDICATES[o][0]),
    ],
)
def test_exit_status(verdicts: Sequence[Outcome], fail_on_flaky: bool, status: int) -> None:
    assert run_exit_status(verdicts, fail_on_flaky=fail_on_flaky) == status


def test_exit_statuses_are_pytests() -> None:
    assert (EXIT_OK, EXIT_RED, EXIT_NOTHING_RAN) == (
        pytest.ExitCode.OK,
        pytest.ExitCode.TESTS_FAILED,
        pytest.ExitCode.NO_TESTS_COLLECTED,
    )
