"""Attempts at one case, in order, and the verdict that follows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.outcome import Outcome, Ruling
from harness.supervisor.attempt import CaseHistory, attempt_result, message
from tests.supervisor.fakes import attempt, case

P, F, C, L, LEAKED = Outcome.PASSED, Outcome.FAILED, Outcome.CRASHED, Outcome.LOST, Outcome.LEAKED


def history(*attempts: tuple[Outcome, bool], earlier: int = 0) -> CaseHistory:
    """Return a history of attempts, each with whether it is final."""
    made = CaseHistory(case(), earlier)
    for outcome, final in attempts:
        made.add(attempt(outcome, made.next_number), final=final)
    return made


@pytest.mark.parametrize(
    ("attempts", "settled", "decisive"),
    [
        ([(P, True)], P, 1),
        ([(C, False), (P, True)], Outcome.FLAKY, 2),
        ([(C, False), (C, True)], C, 2),
        ([(L, False), (P, True)], P, 2),
        ([(L, False), (L, True)], L, 2),
        ([(L, False), (C, False), (P, True)], Outcome.FLAKY, 3),
        ([(P, True), (F, True), (P, True)], F, 2),
        ([(F, True), (F, True)], F, 1),
        ([(F, True), (C, True), (F, True)], C, 2),
        ([(C, False)], L, 1),  # it was to be tried again, but was not
    ],
)
def test_what_attempts_come_to(attempts: list[tuple[Outcome, bool]], settled: Outcome, decisive: int) -> None:
    made = history(*attempts)
    assert made.settled is settled
    assert made.outcome is settled
    assert made.decisive.number == decisive


def test_attempts_are_numbered_on_where_a_case_is_looked_into_again() -> None:
    made = history((P, True), earlier=2)
    assert [each.number for each in made.attempts] == [3]
    assert made.next_number == 4


def test_a_ruling_stands_until_the_next_attempt() -> None:
    made = history((F, True))
    made.ruling = Ruling(Outcome.WAIVED, "known")
    assert (made.outcome, made.settled) == (Outcome.WAIVED, F)
    made.add(attempt(P, 2), final=True)
    assert made.ruling is None
    assert made.outcome is F


def test_under_a_red_ruling_all_attempts_may_show_why() -> None:
    """If a repetition is red because of an attempt that was tried again, that attempt is shown."""
    made = history((C, False), (P, True))
    assert made.decisive.number == 2
    made.ruling = Ruling(F, "no attempt may go wrong")
    assert made.decisive.number == 1
    made.ruling = Ruling(Outcome.WAIVED, "known")
    assert made.decisive.number == 2


def test_only_final_attempts_count_for_rules() -> None:
    made = history((C, False), (P, True), (LEAKED, True))
    assert [each.outcome for each in made.counting()] == [P, LEAKED]
    assert all(each.final for each in made.counting())


def test_an_attempt_as_rules_take_it() -> None:
    taken = attempt_result(attempt(F, text="why"), final=False)
    assert (taken.outcome, taken.final, taken.message, taken.alone, taken.duration) == (F, False, "why", True, 0.5)
    assert message(replace(attempt(P))) == ""
