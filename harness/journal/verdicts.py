"""Decide the verdict of one case from its events. Pure functions, used by every report and for the exit status."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from harness.core.caseid import suite_of
from harness.core.outcome import AttemptResult, Outcome, deciding_attempt, final_verdict
from harness.journal.events import Executor, Finish, Levels, Reopened, SecondDevice, Start
from harness.protocol.endings import format_executor_exit

CaseEvent = Start | Finish | Levels | Reopened


class Verdict(msgspec.Struct, frozen=True):  # made five times as fast as a frozen dataclass
    """The verdict on one case.

    `finishes`: all ended attempts in order. `decided`: the attempt that gave the outcome, or to which a rule of the run
    was applied; None for `lost` and `not_run`. `message`: one line, "" for a plain pass. `devices`: the devices of the
    deciding attempt, else of the latest one. `collected`: False for a case that has events but is in no collected list.
    `second_devices`: the results of a red case on other devices; they do not change the verdict.
    """

    case: str
    suite: str
    outcome: Outcome
    message: str
    finishes: tuple[Finish, ...]
    decided: Finish | None
    started: int
    devices: tuple[str, ...]
    collected: bool
    second_devices: tuple[SecondDevice, ...] = ()

    @property
    def ran(self) -> bool:
        """Whether the case's own code ran to a verdict. False if a rule made a gated or skipped case red."""
        return self.outcome.ran and self.decided is not None and self.decided.outcome.ran

    @property
    def earlier(self) -> tuple[Finish, ...]:
        """The red attempts that did not decide the verdict, in order.

        `lost` attempts are left out: they give no information about the case.
        """
        if len(self.finishes) == 1 and self.decided is not None:
            return ()
        others = (finish for finish in self.finishes if finish is not self.decided)
        return tuple(finish for finish in others if finish.outcome.is_red and finish.outcome is not Outcome.LOST)

    @property
    def reproduce(self) -> str | None:
        """The command of the latest attempt that has one: the deciding attempt, else the last red one."""
        return next((finish.reproduce for finish in reversed(self.finishes) if finish.reproduce), None)

    @property
    def duration(self) -> float:
        """Seconds of all attempts together."""
        return sum((finish.duration for finish in self.finishes), start=0.0)


class CaseEvents:
    """The events of one case, in journal order. A duplicate line counts once.

    `mentioned`: an attempt started or ended, so the case needs a verdict even if it was not collected.
    """

    __slots__ = ("_before", "_keys", "doubled", "finishes", "levels", "mentioned", "starts")

    def __init__(self) -> None:
        self.starts: list[Start] = []
        self.finishes: list[Finish] = []
        self.levels: list[Levels] = []
        self.doubled = 0
        self.mentioned = False
        self._keys: set[tuple[str, float, int]] | None = None
        #: The attempts before the case was reopened, to recognise duplicates of their lines.
        self._before: list[Finish] = []

    def add(self, event: CaseEvent) -> None:
        """Add the next event of the case."""
        if isinstance(event, Reopened):
            self._reopen()
            return
        same: list[Any] = self.finishes
        if isinstance(event, Start):
            same = self.starts
        elif isinstance(event, Levels):
            same = self.levels
        if (same or self._keys or self._before) and self._is_there(event):
            self.doubled += 1
            return
        self.mentioned = self.mentioned or same is not self.levels
        same.append(event)

    def _is_there(self, event: Start | Finish | Levels) -> bool:
        """Return whether an equal event was added before.

        The key is looked up first: a case may have thousands of attempts.
        """
        if self._keys is None:
            every: list[Any] = [*self.starts, *self.finishes, *self.levels, *self._before]
            self._keys = {(earlier.event, earlier.t, earlier.attempt) for earlier in every}
        key = (event.event, event.t, event.attempt)
        if key in self._keys and event in (*self.starts, *self.finishes, *self.levels, *self._before):
            return True
        self._keys.add(key)
        return False

    def _reopen(self) -> None:
        """Drop the attempts that ended without a verdict on the case."""
        self._before += self.finishes
        self.finishes = [
            msgspec.structs.replace(finish, final=False) if finish.outcome is Outcome.LOST else finish
            for finish in self.finishes
            if finish.outcome is not Outcome.NOT_RUN
        ]

    @property
    def retries(self) -> int:
        """The attempts beyond those that count: one, or every repetition with ``--repeat``."""
        return max(0, len(self.starts) - max(1, sum(finish.final for finish in self.finishes)))


def decide_outcome(finishes: Sequence[Finish], started: int) -> tuple[Outcome, Finish | None, Finish | None]:
    """Return the outcome of a case, from its ended attempts in order and the number of started ones.

    Also return the attempt that gave it, or to which a rule of the run was applied (None for `lost` and `not_run`), and
    the attempt whose ruling is the outcome (None if no rule gave it). See `final_verdict` and `deciding_attempt` in
    harness.core.outcome.
    """
    if len(finishes) == 1 and finishes[0].final and finishes[0].ruling is None:
        return finishes[0].outcome, finishes[0], None  # as below; most of a million cases end so
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
    return outcome, None if place is None else finishes[place], ruled


def decide_verdict(
    case: str,
    events: CaseEvents,
    *,
    collected: bool,
    stopped: str = "",
    ended: Callable[[str], Executor | None] = lambda _: None,
    second_devices: Sequence[SecondDevice] = (),
) -> Verdict:
    """Return the verdict on a case.

    `stopped`: the signal that stopped the run. `ended`: returns how an executor ended, by its name. `second_devices`:
    the results of the case on other devices.
    """
    starts, finishes = events.starts, events.finishes
    outcome, decided, ruled = decide_outcome(finishes, len(starts))
    if ruled is not None and ruled.ruling is not None:
        message = ruled.ruling.text
    elif outcome is Outcome.NOT_RUN and decided is None:
        # No claim that the case did not run: a killed worker may have run its last cases without a line.
        how = f"was stopped by {stopped}" if stopped else "ended"
        message = f"the run {how}, and the journal has no start of this case"
    elif outcome is Outcome.LOST and decided is None:
        message = _lost_message(starts, finishes, ended)
    elif outcome is Outcome.FLAKY:
        message = _flaky_message(finishes)
    else:
        message = "" if decided is None else _message(decided)
    attempts: list[Start | Finish] = [] if decided is not None else [*starts, *finishes]
    latest = decided or (attempts[-1] if attempts else None)
    return Verdict(
        case=case,
        suite=suite_of(case),
        outcome=outcome,
        message=message,
        finishes=tuple(finishes),
        decided=decided,
        started=len(starts),
        devices=() if latest is None else latest.devices,
        collected=collected,
        second_devices=tuple(second_devices),
    )


def _lost_message(starts: Sequence[Start], finishes: Sequence[Finish], ended: Callable[[str], Executor | None]) -> str:
    if finishes:
        broke = finishes[-1]
        message = f"broke after other cases ({broke.outcome}) and was never confirmed alone"
        return f"{message}: {broke.message}" if broke.message else message
    start = starts[-1]
    where = f"worker {start.worker or 'none'}, executor {start.executor or 'none'}"
    devices = " ".join(start.devices) or "none"
    message = f"started on {where}, devices {devices}, seed {start.seed}, and never finished"
    end = ended(start.executor or "")
    if end is not None and end.exit_status is not None:
        message += f"; that executor ended with {format_executor_exit(end.exit_status, Outcome.LOST)}"
    if end is not None and end.reason:
        message += f" ({end.reason})"
    return message


def _flaky_message(finishes: Sequence[Finish]) -> str:
    for finish in finishes:
        if finish.outcome.is_red and not finish.final:
            how = "at first, passed on retry" if finish.alone else "after other cases, passed alone"
            return f"{finish.outcome} {how}: {_message(finish)}"
    return "broke after other cases, passed alone"


def executor_end(finish: Finish) -> str:
    """Return a sentence on the end of an attempt's executor; "" if it ended in order or goes on."""
    if finish.exit_status is None or (finish.exit_status == 0 and not finish.outcome.breaks_executor):
        return ""
    return f"the executor ended with {format_executor_exit(finish.exit_status, finish.outcome)}"


def _message(finish: Finish) -> str:
    """Return the attempt's own message, otherwise the gate, exit status or outcome; "" for a plain pass."""
    if finish.message or finish.outcome is Outcome.PASSED:
        return finish.message
    if finish.gate is not None:
        return finish.gate.text
    if finish.exit_status is not None:
        return f"{finish.outcome}: {format_executor_exit(finish.exit_status, finish.outcome)}"
    return str(finish.outcome)
