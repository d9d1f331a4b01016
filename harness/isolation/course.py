"""The attempts at one case, in order, and what they come to together."""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.gating.policy import Tried
from harness.isolation.attempt import Attempted
from harness.isolation.case import Case, first_line
from harness.outcome import Attempt, Outcome, Ruling, settle


@dataclass(slots=True)
class Course:
    """What happened with a case so far. `ruling` is what a rule of the run makes of it, None where none has a say.

    `earlier` counts attempts that are not held here: the case had come to its verdict, and is looked into again.
    """

    case: Case
    earlier: int = 0
    tries: list[Attempted] = field(default_factory=list)
    finals: list[bool] = field(default_factory=list)
    ruling: Ruling | None = None

    @property
    def next_number(self) -> int:
        """The number of the next attempt, from 1 on."""
        return self.earlier + len(self.tries) + 1

    def add(self, tried: Attempted, *, final: bool) -> None:
        """Enter a finished attempt; not `final` when the case will be tried again on its account."""
        self.tries.append(tried)
        self.finals.append(final)
        self.ruling = None

    @property
    def settled(self) -> Outcome:
        """What the attempts come to by themselves."""
        attempts = [Attempt(t.outcome, final) for t, final in zip(self.tries, self.finals, strict=True)]
        return settle(attempts, len(attempts))

    @property
    def outcome(self) -> Outcome:
        """The verdict as it stands."""
        return self.settled if self.ruling is None else self.ruling.outcome

    @property
    def decisive(self) -> Attempted:
        """The attempt that shows best why the verdict is what it is: of those that count, the last of the worst."""
        counting = [tried for tried, final in zip(self.tries, self.finals, strict=True) if final] or self.tries
        if self.ruling is not None and self.ruling.outcome.is_red:
            counting = self.tries
        return max(reversed(counting), key=lambda tried: tried.outcome.severity)

    def counting(self) -> list[Tried]:
        """The attempts that count, as rules take them."""
        return [summary(tried) for tried, final in zip(self.tries, self.finals, strict=True) if final]


def summary(tried: Attempted) -> Tried:
    """An attempt as rules take it."""
    return Tried(tried.outcome, message(tried), tried.alone, tried.duration)


def message(tried: Attempted) -> str:
    """One line that says what happened; "" for a plain pass."""
    return tried.judgement.message or first_line(tried.reports)
