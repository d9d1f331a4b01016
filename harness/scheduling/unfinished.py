"""The finished and unfinished cases of an interrupted run: pure functions of its journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from harness.core.outcome import Outcome
from harness.journal import lines
from harness.journal.events import Collected, Executor, Finding, Finish, RunStarted, Start
from harness.journal.ledger import Ledger
from harness.journal.reader import JournalContents
from harness.journal.verdicts import Verdict
from harness.scheduling.resumption import Finished, ResumeError, Resumption

#: The outcomes of attempts that give no information about the case.
_NO_VERDICT = (Outcome.NOT_RUN, Outcome.LOST)


def resumption_of(contents: JournalContents, *, forced: bool = False) -> Resumption:
    """Return the state of the run in this journal. Raise ResumeError if it had not collected its cases yet."""
    lines = [event for event in contents.events if isinstance(event, Collected)]
    if not lines:
        raise ResumeError("the run ended before it had collected its cases: start it again")
    run = next(event for event in contents.events if isinstance(event, RunStarted))
    if run.imported is not None:
        raise ResumeError(f"its cases were run {run.imported.text}: only a run of the harness can be resumed")
    needed = finals_needed(run)
    verdicts = Ledger.from_events(contents.events).verdicts
    finished = {verdict.case: _finished(verdict) for verdict in verdicts if is_finished(verdict, needed)}
    last: dict[str, int] = {}
    for event in contents.events:
        if isinstance(event, Start | Finish):
            last[event.case] = max(last.get(event.case, 0), event.attempt)
    return Resumption(
        finished=finished,
        attempts={verdict.case: last.get(verdict.case, 0) for verdict in verdicts if verdict.case not in finished},
        executors=_numbers(event.executor for event in contents.events if isinstance(event, Executor)),
        ids=tuple(dict.fromkeys(case for line in lines for case in line.ids)),
        findings=frozenset((event.kind, event.message) for event in contents.events if isinstance(event, Finding)),
        part=1 + sum(isinstance(event, RunStarted) for event in contents.events),
        forced=forced,
    )


@dataclass(frozen=True, slots=True)
class Needed:
    """The number of attempts that must count before a case has its verdict. `until_red`: one red attempt is enough."""

    finals: int = 1
    until_red: bool = False


def finals_needed(run: RunStarted) -> Needed:
    """Return the numbers that the run's options require."""
    repeat = run.settings.get("repeat")
    if run.isolation == "none" or run.settings.get("verify") or not isinstance(repeat, int):
        return Needed()
    return Needed(repeat, until_red=bool(run.settings.get("until_fail")))


def is_finished(verdict: Verdict, needed: Needed) -> bool:
    """Return whether a case has its verdict.

    A case that was stopped, not run or lost by the harness has no verdict. The loss may be recorded: a worker may live
    for a moment after its zygote and its executor have been killed with the run.
    """
    finals = [finish for finish in verdict.finishes if finish.final]
    if not finals or finals[-1].outcome in _NO_VERDICT:
        return False
    if finals[-1].gate is not None or (needed.until_red and finals[-1].outcome.is_red):
        return True
    return sum(finish.outcome not in _NO_VERDICT for finish in finals) >= needed.finals


def _finished(verdict: Verdict) -> Finished:
    decided = verdict.decided or verdict.finishes[-1]
    return Finished(
        outcome=verdict.outcome,
        message=verdict.message,
        detail=decided.detail,
        duration=verdict.duration,
        phases=decided.phases,
        reproduce=verdict.reproduce or "",
    )


def _numbers(names: Iterable[str]) -> dict[str, int]:
    highest: dict[str, int] = {}
    for name in names:
        worker, _, number = name.rpartition("-e")
        if number.isdecimal():
            highest[worker] = max(highest.get(worker, 0), int(number))
    return highest


def reopened_lines(contents: JournalContents, resumption: Resumption) -> list[dict[str, Any]]:
    """Return a journal line for each case that has ended but runs again: its end no longer counts."""
    ended = {
        event.case: None
        for event in contents.events
        if isinstance(event, Finish) and event.final and event.outcome in _NO_VERDICT
    }
    return [lines.reopened(case) for case in ended if case in resumption.attempts]


def in_flight(contents: JournalContents, resumption: Resumption) -> frozenset[str]:
    """Return the unfinished cases that ran when the run was interrupted: their last attempt has not ended, or was lost.

    A worker that lived for a moment longer may have written the loss itself.
    """
    last: dict[str, Start | Finish] = {}
    for event in contents.events:
        if isinstance(event, Start | Finish) and event.case in resumption.attempts:
            last[event.case] = event
    return frozenset(case for case, event in last.items() if isinstance(event, Start) or event.outcome is Outcome.LOST)


def lost_lines(contents: JournalContents) -> list[dict[str, Any]]:
    """Return a journal line for each attempt that was in flight when the run was interrupted: the attempt is lost."""
    begun: Counter[tuple[str, int, str, str | None]] = Counter()
    starts: dict[tuple[str, int, str, str | None], Start] = {}
    for event in contents.events:
        if isinstance(event, Start | Finish):
            key = event.case, event.attempt, event.worker, event.executor
            begun[key] += 1 if isinstance(event, Start) else -1
            if isinstance(event, Start):
                starts[key] = event
    return [
        {
            "event": "finish",
            **start.model_dump(mode="json", exclude={"event", "t", "pid"}),
            "outcome": Outcome.LOST.value,
            "final": False,
            "duration": 0.0,
            "message": "the run was interrupted while the case ran",
        }
        for key, start in starts.items()
        if begun[key] > 0
    ]
