"""The attempts at one case, in order, and what they come to together."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.outcome import AttemptResult, Outcome, Ruling, settle
from harness.supervisor.attempt import Attempt
from harness.supervisor.case import Case, first_line


@dataclass(slots=True)
class CaseHistory:
    """What happened with a case so far. `ruling` is what a rule of the run makes of it, None where none has a say.

    `earlier` counts attempts that are not held here: the case had come to its verdict, and is looked into again.
    """

    case: Case
    earlier: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    finals: list[bool] = field(default_factory=list)
    ruling: Ruling | None = None

    @property
    def next_number(self) -> int:
        """The number of the next attempt, from 1 on."""
        return self.earlier + len(self.attempts) + 1

    def add(self, attempt: Attempt, *, final: bool) -> None:
        """Enter a finished attempt; not `final` when the case will be tried again on its account."""
        self.attempts.append(attempt)
        self.finals.append(final)
        self.ruling = None

    @property
    def settled(self) -> Outcome:
        """What the attempts come to by themselves."""
        attempts = [result(each, final=final) for each, final in zip(self.attempts, self.finals, strict=True)]
        return settle(attempts, len(attempts))

    @property
    def outcome(self) -> Outcome:
        """The verdict as it stands."""
        return self.settled if self.ruling is None else self.ruling.outcome

    @property
    def decisive(self) -> Attempt:
        """The attempt that shows best why the verdict is what it is: of those that count, the last of the worst."""
        counting = [attempt for attempt, final in zip(self.attempts, self.finals, strict=True) if final]
        if all(attempt.outcome is Outcome.NOT_RUN for attempt in counting):  # or there are none
            counting = self.attempts
        if self.ruling is not None and self.ruling.outcome.is_red:
            counting = self.attempts
        return max(reversed(counting), key=lambda attempt: attempt.outcome.severity)

    def counting(self) -> list[AttemptResult]:
        """The attempts that count, as rules take them."""
        return [result(attempt) for attempt, final in zip(self.attempts, self.finals, strict=True) if final]


def result(attempt: Attempt, *, final: bool = True) -> AttemptResult:
    """An attempt as verdicts and rules take it."""
    return AttemptResult(
        attempt.outcome, final=final, message=message(attempt), alone=attempt.alone, duration=attempt.duration
    )


def message(attempt: Attempt) -> str:
    """One line that says what happened; "" for a plain pass."""
    return attempt.judgement.message or first_line(attempt.reports)
