"""The outcomes a case can have, and what follows from each. Plain values, no imports of this package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """The one verdict of a case, or the result of one attempt at it.

    Members stand in order of severity, mildest first: of two verdicts on one case the later member counts.
    """

    NOT_RUN = "not_run"
    GATED = "gated"
    SKIPPED = "skipped"
    WAIVED = "waived"
    PASSED = "passed"
    FLAKY = "flaky"
    UNEXPECTED_PASS = "unexpected_pass"
    LOST = "lost"
    CONTAMINATED = "contaminated"
    LEAKED = "leaked"
    FAILED = "failed"
    ERROR = "error"
    POISONED = "poisoned"
    TIMEOUT = "timeout"
    CRASHED = "crashed"

    @property
    def severity(self) -> int:
        """Position in the order of severity, 0 for the mildest."""
        return _SEVERITY[self]

    @property
    def ran(self) -> bool:
        """Whether the case's own code ran to a verdict (a harness fault is not one)."""
        return self not in (Outcome.NOT_RUN, Outcome.GATED, Outcome.SKIPPED, Outcome.LOST)

    @property
    def is_red(self) -> bool:
        """Whether the outcome alone makes a run red. `flaky` does so only with ``--fail-on-flaky``."""
        return self in _RED

    @property
    def breaks_executor(self) -> bool:
        """Whether the process that ran the case must not run another."""
        return self in _BREAKS


_SEVERITY = {outcome: position for position, outcome in enumerate(Outcome)}
_BREAKS = frozenset({Outcome.CRASHED, Outcome.TIMEOUT, Outcome.POISONED, Outcome.LEAKED, Outcome.CONTAMINATED})
_RED = _BREAKS | {Outcome.FAILED, Outcome.ERROR, Outcome.LOST, Outcome.NOT_RUN, Outcome.UNEXPECTED_PASS}


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a rule of the run (waiver, gate, repetition …) makes of a case, whatever its attempts came to by themselves.

    `text` is one line that says why, `source` where the rule stands: ``configs/waivers/known.yaml:12``, an option.
    """

    outcome: Outcome
    text: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """One finished attempt at a case, as verdicts and rules take it.

    `final`: the harness will not try the case again on its account. `ruled` is what a rule makes of the case as it
    stands after this attempt. `message` is one line that says what happened; `alone`: its process ran nothing before;
    `duration` in seconds.
    """

    outcome: Outcome
    final: bool = True
    ruled: Outcome | None = None
    message: str = ""
    alone: bool = True
    duration: float = 0.0


def settle(attempts: Sequence[AttemptResult], started: int) -> Outcome:
    """The verdict on a case from its finished attempts, in order, and the number of attempts started.

    A case that never started is `not_run`; one that started and has no final attempt is `lost`: the
    harness, not the case, is to blame. A final attempt that is not red after one that was, and was to be tried again,
    is `flaky`; after one that the harness lost, it counts as if it were the first. One that was cut short when the run
    was told to stop says nothing, and what was to be tried again stands. Several final attempts (a case that
    is repeated, or that the scheduler sent to more than one worker) count as the most severe of them. A rule takes
    into account all that was before it, so that it stands in for it.
    """
    if not any(attempt.final for attempt in attempts):
        return Outcome.LOST if started or attempts else Outcome.NOT_RUN
    verdicts: list[Outcome] = []
    red_before: list[Outcome] = []
    for attempt in attempts:
        if not attempt.final:
            red_before += [attempt.outcome] if attempt.outcome.is_red and attempt.outcome is not Outcome.LOST else []
            continue
        if attempt.ruled is not None:
            verdicts = [attempt.ruled]
        elif attempt.outcome is Outcome.NOT_RUN:
            verdicts += red_before or [attempt.outcome]
        else:
            recovered = red_before and not attempt.outcome.is_red
            verdicts.append(Outcome.FLAKY if recovered else attempt.outcome)
        red_before = []
    return max(verdicts, key=lambda outcome: outcome.severity)


EXIT_OK, EXIT_RED, EXIT_INTERRUPTED, EXIT_INTERNAL, EXIT_USAGE, EXIT_NOTHING_RAN = range(6)


def exit_status(verdicts: Sequence[Outcome], *, fail_on_flaky: bool = False) -> int:
    """The exit status of a finished run, in pytest's numbers: 0 green, 1 red, 5 when no case ran."""
    if any(v.is_red or (fail_on_flaky and v is Outcome.FLAKY) for v in verdicts):
        return EXIT_RED
    return EXIT_OK if any(v.ran for v in verdicts) else EXIT_NOTHING_RAN
