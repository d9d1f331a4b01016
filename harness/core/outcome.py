"""The outcomes of a case and their properties. Plain values; imports nothing of this package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Outcome(StrEnum):
    """The verdict of a case, or the result of one attempt.

    Members are in order of severity, mildest first. Of two verdicts on one case, the more severe one counts.
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
    RACED = "raced"
    LEAKED = "leaked"
    FAILED = "failed"
    ERROR = "error"
    POISONED = "poisoned"
    TIMEOUT = "timeout"
    CRASHED = "crashed"

    @property
    def severity(self) -> int:
        """The position in the order of severity. 0 is the mildest."""
        return _SEVERITY[self]

    @property
    def ran(self) -> bool:
        """Whether the case's own code ran to a verdict. False for `lost`, a fault of the harness."""
        return self not in (Outcome.NOT_RUN, Outcome.GATED, Outcome.SKIPPED, Outcome.LOST)

    @property
    def is_red(self) -> bool:
        """Whether the outcome alone makes a run red. False for `flaky`, which is red only with ``--fail-on-flaky``."""
        return self in _RED

    @property
    def breaks_executor(self) -> bool:
        """Whether the process that ran the case must not run another case."""
        return self in _BREAKS


_SEVERITY = {outcome: position for position, outcome in enumerate(Outcome)}
_BREAKS = frozenset({Outcome.CRASHED, Outcome.TIMEOUT, Outcome.POISONED, Outcome.LEAKED, Outcome.CONTAMINATED})
_RED = _BREAKS | {
    Outcome.FAILED,
    Outcome.ERROR,
    Outcome.RACED,
    Outcome.LOST,
    Outcome.NOT_RUN,
    Outcome.UNEXPECTED_PASS,
}


@dataclass(frozen=True, slots=True)
class Ruling:
    """The outcome that a rule of the run (waiver, gate, repetition …) gives to a case.

    The ruling replaces the outcomes of the attempts. `text` is the reason on one line. `source` is where the rule is
    defined: ``configs/waivers/known.yaml:12``, or an option.
    """

    outcome: Outcome
    text: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class AttemptResult:
    """One finished attempt at a case: the input of verdicts and rules.

    `final`: the harness will not run the case again because of this attempt. `ruled`: the outcome that a rule gives to
    the case after this attempt. `message`: what happened, on one line. `alone`: the process ran no other case before.
    `duration` is in seconds.
    """

    outcome: Outcome
    final: bool = True
    ruled: Outcome | None = None
    message: str = ""
    alone: bool = True
    duration: float = 0.0


def final_verdict(attempts: Sequence[AttemptResult], started: int) -> Outcome:
    """Return the verdict on a case, from its finished attempts in order and the number of started attempts.

    - A case that never started is `not_run`.
    - A case that started and has no final attempt is `lost`: the fault is in the harness, not in the case.
    - A final attempt that is not red is `flaky` if a red attempt that is not final came before it. A `lost` attempt
      does not count as red here.
    - If the run was stopped during a final attempt, the attempt is `not_run`, and the red attempts before it decide.
    - Of several final attempts, the most severe counts. There are several if a case is repeated, or if the scheduler
      sent it to more than one worker.
    - A rule takes all earlier attempts into account, so its outcome replaces those of the attempts.
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


def deciding_attempt(attempts: Sequence[AttemptResult], outcome: Outcome, *, ruled: bool) -> int | None:
    """Return the position of the attempt that explains the verdict `outcome`: every report shows this one.

    None if no attempt is final and no rule applies, so that the case is `lost` or `not_run`.

    - Of the final attempts with the outcome, the first one. If a stop cut the last attempt short, the last one of all
      attempts with the outcome.
    - A `flaky` case is explained by the last attempt that recovered. The red one before it is in the history.
    - If a rule gave the outcome (`ruled`), the last one of the worst red attempts: of the final ones if the rule
      excuses them, of all if the rule makes the case red. Without a red attempt, the last one that counts.
    """
    finals = [place for place, attempt in enumerate(attempts) if attempt.final]
    if ruled:
        pool = range(len(attempts)) if outcome.is_red or not finals else finals
        red = [place for place in pool if attempts[place].outcome.is_red]
        return max(red, key=lambda place: (attempts[place].outcome.severity, place)) if red else [*pool][-1]
    if not finals:
        return None
    if same := [place for place in finals if attempts[place].outcome is outcome]:
        return same[0]
    if same := [place for place, attempt in enumerate(attempts) if attempt.outcome is outcome]:
        return same[-1]
    # No attempt has the outcome `flaky`.
    recovered = [place for place in finals if place and not attempts[place - 1].final]
    return (recovered or finals)[-1]


EXIT_OK, EXIT_RED, EXIT_INTERRUPTED, EXIT_INTERNAL, EXIT_USAGE, EXIT_NOTHING_RAN = range(6)


def run_exit_status(verdicts: Sequence[Outcome], *, fail_on_flaky: bool = False) -> int:
    """Return the exit status of a finished run, with pytest's numbers: 0 green, 1 red, 5 if no case ran."""
    if any(v.is_red or (fail_on_flaky and v is Outcome.FLAKY) for v in verdicts):
        return EXIT_RED
    return EXIT_OK if any(v.ran for v in verdicts) else EXIT_NOTHING_RAN
