"""Decide which attempt at a case gives its verdict. Pure functions, for every reader of journals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from harness.core.outcome import AttemptResult, Outcome, deciding_attempt, final_verdict


class Ruled(Protocol):
    """The outcome that a rule of the run gives to a case."""

    @property
    def outcome(self) -> Outcome: ...


class Ended(Protocol):
    """An ended attempt: a `finish` line, or the part of it that a reader keeps."""

    @property
    def outcome(self) -> Outcome: ...

    @property
    def final(self) -> bool: ...

    @property
    def ruling(self) -> Ruled | None: ...


E = TypeVar("E", bound=Ended)


class Decision(msgspec.Struct, Generic[E], frozen=True):
    """The verdict on a case.

    `decided`: the attempt that gave the outcome, or to which a rule of the run was applied; None for `lost` and
    `not_run`. `ruled`: the attempt whose ruling is the outcome; None if no rule gave it.
    """

    outcome: Outcome
    decided: E | None
    ruled: E | None


def decide_outcome(finishes: Sequence[E], started: int) -> Decision[E]:
    """Return the verdict from the ended attempts, in order, and the number of started ones.

    See `final_verdict` and `deciding_attempt` in harness.core.outcome.
    """
    if len(finishes) == 1 and finishes[0].final and finishes[0].ruling is None:
        return Decision(finishes[0].outcome, finishes[0], None)  # as below; most of a million cases end so
    attempts = [
        AttemptResult(finish.outcome, finish.final, None if finish.ruling is None else finish.ruling.outcome)
        for finish in finishes
    ]
    outcome = final_verdict(attempts, started)
    ruled = next(
        (finish for finish in reversed(finishes) if finish.ruling is not None and finish.ruling.outcome is outcome),
        None,
    )
    place = deciding_attempt(attempts, outcome, ruled=ruled is not None)
    return Decision(outcome, None if place is None else finishes[place], ruled)


def reopened_attempts(finishes: Sequence[E], not_final: Callable[[E], E]) -> list[E]:
    """Return the attempts that still count when a resumed run takes up the case: all that ended with a verdict.

    `not_final` makes a copy of an attempt that is not final.
    """
    return [
        not_final(finish) if finish.outcome is Outcome.LOST else finish
        for finish in finishes
        if finish.outcome is not Outcome.NOT_RUN
    ]


def not_run_message(stopped: str) -> str:
    """Return why a case without a start has no verdict. `stopped`: the signal that stopped the run, if any.

    The text does not claim that the case did not run: a killed worker may have run its last cases without a line.
    """
    how = f"was stopped by {stopped}" if stopped else "ended"
    return f"the run {how}, and the journal has no start of this case"
