"""Decide which attempt at a case gives its verdict. Pure functions, for every reader of journals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from harness.core.outcome import AttemptResult, Outcome, final_verdict


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


@dataclass(frozen=True, slots=True)
class Decision(Generic[E]):
    """The verdict on a case.

    `decided`: the attempt that gave the outcome, or to which a rule of the run was applied; None for `lost` and
    `not_run`. `ruled`: the attempt whose ruling is the outcome; None if no rule gave it.
    """

    outcome: Outcome
    decided: E | None
    ruled: E | None


def decide_outcome(finishes: Sequence[E], started: int) -> Decision[E]:
    """Return the verdict from the ended attempts, in order, and the number of started ones.

    See harness.core.outcome.final_verdict.
    """
    outcome = final_verdict(
        [
            AttemptResult(finish.outcome, finish.final, None if finish.ruling is None else finish.ruling.outcome)
            for finish in finishes
        ],
        started,
    )
    ruled = next(
        (finish for finish in reversed(finishes) if finish.ruling is not None and finish.ruling.outcome is outcome),
        None,
    )
    return Decision(outcome, _decided(outcome, finishes) if ruled is None else _ruled_on(finishes), ruled)


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


def _decided(outcome: Outcome, finishes: Sequence[E]) -> E | None:
    finals = [finish for finish in finishes if finish.final]
    for finish in finals:
        if finish.outcome is outcome:
            return finish
    if finals and finals[-1].outcome is Outcome.NOT_RUN:  # the retry was cut short; the earlier outcome counts
        return next((finish for finish in reversed(finishes) if finish.outcome is outcome), finals[-1])
    # No attempt has the outcome `flaky`: the last attempt, which passed, decides.
    return finals[-1] if finals else None


def _ruled_on(finishes: Sequence[E]) -> E:
    """Return the most informative attempt that a rule was applied to: the last red one, otherwise the last one."""
    return next((finish for finish in reversed(finishes) if finish.outcome.is_red), finishes[-1])
