"""The attempts at one case, in order, and the verdict that follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.core.outcome import AttemptResult, Outcome, Ruling, deciding_attempt, final_verdict
from harness.supervisor.attempt import Attempt
from harness.supervisor.case import Case, first_line


@dataclass(slots=True)
class CaseHistory:
    """The attempts at a case so far. `ruling` is the decision of a rule of the run, None if no rule applies.

    `earlier` counts attempts that are not stored here: the case already had a verdict and is examined again.
    """

    case: Case
    earlier: int = 0
    attempts: list[Attempt] = field(default_factory=list)
    finals: list[bool] = field(default_factory=list)
    ruling: Ruling | None = None
    _results: list[AttemptResult] = field(default_factory=list)
    _settled: Outcome | None = None

    @property
    def next_number(self) -> int:
        """The number of the next attempt, from 1."""
        return self.case.before + self.earlier + len(self.attempts) + 1

    def add(self, attempt: Attempt, *, final: bool) -> None:
        """Add a finished attempt. An attempt that makes the case run again is not `final`."""
        self.attempts.append(attempt)
        self.finals.append(final)
        self._results.append(attempt_result(attempt, final=final))
        self.ruling = self._settled = None

    @property
    def settled(self) -> Outcome:
        """The outcome of the attempts, before any ruling."""
        if self._settled is None:
            self._settled = final_verdict(self._results, len(self._results))
        return self._settled

    @property
    def outcome(self) -> Outcome:
        """The current verdict."""
        return self.settled if self.ruling is None else self.ruling.outcome

    @property
    def decisive(self) -> Attempt:
        """The attempt that explains the verdict, see `deciding_attempt`; the worst one while none is final."""
        if len(self.attempts) == 1:
            return self.attempts[0]
        place = deciding_attempt(self._results, self.outcome, ruled=self.ruling is not None)
        if place is None:
            return max(reversed(self.attempts), key=lambda attempt: attempt.outcome.severity)
        return self.attempts[place]

    def counting(self) -> list[AttemptResult]:
        """Return the attempts that count, in the form that rules need."""
        return [result for result in self._results if result.final]

    @property
    def message(self) -> str:
        """One line about what happened in the last attempt; "" for a plain pass."""
        return self._results[-1].message


def attempt_result(attempt: Attempt, *, final: bool = True) -> AttemptResult:
    """Return an attempt in the form that verdicts and rules need."""
    return AttemptResult(
        attempt.outcome, final=final, message=message(attempt), alone=attempt.alone, duration=attempt.duration
    )


def message(attempt: Attempt) -> str:
    """Return one line about what happened; "" for a plain pass."""
    return attempt.judgement.message or first_line(attempt.reports)
