"""Confirms a suspected leak: the case runs several times in a fresh process, and a leak must show as growth."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.checks import growth, shm_turn
from harness.checks.growth import Leak
from harness.checks.meters import format_growths, meter_of
from harness.core import clock
from harness.core.outcome import Outcome
from harness.core.text import format_exit_code
from harness.journal.events import Confirmation
from harness.protocol.wire import Message
from harness.scheduling.stop_request import StoppedError
from harness.supervisor.attempt import GRACE, Attempt, CaseRequest
from harness.supervisor.case import Case
from harness.supervisor.executor_handle import ExecutorHandle, NoMessage
from harness.supervisor.lane import Lane
from harness.supervisor.search_time import SearchTime
from harness.supervisor.worker_journal import WorkerJournal
from harness.zygote.client import ZygoteError

TIMES = growth.WARMUP_REPETITIONS + growth.COUNTED_REPETITIONS


@dataclass(frozen=True, slots=True)
class RepeatResult:
    """The result of the repetitions: the growth of each by meter, and, by meter, lines about the origin of the growth.

    `failure`: why there is no result.
    """

    growths: tuple[Mapping[str, int], ...] = ()
    origins: Mapping[str, Sequence[str]] | None = None
    failure: str = ""


def repeat(
    handle: ExecutorHandle, request: CaseRequest, history: Sequence[str] = (), *, most: float = math.inf
) -> RepeatResult:
    """Have a fresh executor run the case `TIMES` times, or until a leak is ruled out.

    `history`: the meters whose growth is traced to its origin. `most`: the seconds for all repetitions. Raises
    ZygoteError.
    """
    limit = min(request.limit * TIMES, most)
    message: Message = {"op": "repeat", "case": request.case, "next": None, "seed": request.seed}
    counts = {"limit": request.limit, "times": TIMES, "warmup": growth.WARMUP_REPETITIONS, "history": list(history)}
    handle.send({**message, **counts})
    answer = handle.receive(clock.monotonic() + min(limit + GRACE, most))
    if isinstance(answer, dict) and answer.get("op") == "repeated":
        return RepeatResult(tuple(dict(grown) for grown in answer["growths"]), answer["origins"])
    if answer is NoMessage.DEADLINE:
        return RepeatResult(failure=f"its repetitions did not finish within {limit:.3g} s")
    ended = (
        format_exit_code(handle.exit_status)
        if handle.exit_status is not None
        else "the executor sent an invalid message"
    )
    return RepeatResult(failure=f"its repetitions failed: {ended}")


class LeakConfirmation:
    """Confirms or rejects the suspected leaks of attempts."""

    def __init__(self, lane: Lane, journal: WorkerJournal, search_time: SearchTime) -> None:
        self._lane = lane
        self._slot = lane.slot
        self._journal = journal
        self._time = search_time

    def confirm(self, case: Case, attempt: Attempt) -> Attempt:
        """Return the attempt with its final judgement. Raises NoDeviceError.

        Growth of a meter that may have harmless reasons is a leak only if two processes show it, within the time for
        searches.
        """
        if not attempt.suspicions or attempt.outcome.is_red:
            return attempt
        is_exact = any(meter_of(name).is_exact for name in attempt.suspicions)
        with contextlib.ExitStack() as held:
            if not is_exact:
                held.enter_context(self._time.spending())
            held.enter_context(self._slot.set_aside())
            held.enter_context(self._journal.doing(f"confirming a leak of {case.id}"))
            held.enter_context(
                shm_turn.shared_memory_turn(attempt.suspicions, over=lambda: self._slot.stop.receive() is not None)
            )
            repeated = self._repeat(case, within=not is_exact)
            leaks = _leaks(attempt, repeated)
            if leaks and not any(meter_of(leak.meter).is_exact for leak in leaks):
                self._end_current()
                again = self._repeat(case, within=not is_exact)
                shown = {leak.meter for leak in _leaks(attempt, again)}
                leaks = [leak for leak in leaks if leak.meter in shown]
                repeated = replace(repeated, failure=again.failure)
            where = None
            if leaks:
                self._end_current()
                where = self._repeat(case, [leak.meter for leak in leaks], within=not is_exact).origins
        self._journal.record(
            Confirmation(
                t=clock.now(),
                case=case.id,
                suspicions={**attempt.suspicions},
                growths=tuple({**growth} for growth in repeated.growths),
                leaks=tuple(leak.text for leak in leaks),
                failure=repeated.failure,
            )
        )
        if repeated.failure:
            grew = f"it grew by {format_growths(attempt.suspicions)}"
            notes = (*attempt.notes, f"a suspected leak could not be confirmed: {repeated.failure} ({grew})")
            return replace(attempt, notes=notes)
        if not leaks:
            return attempt
        judgement = replace(attempt.judgement, outcome=Outcome.LEAKED, message=leaks[0].text)
        return replace(attempt, judgement=judgement, notes=(*attempt.notes, *leak_lines(leaks, where)))

    def _end_current(self) -> None:
        if self._slot.current is not None:
            self._slot.dispose(self._slot.current, "rehearsal", hold=True)

    def _repeat(self, case: Case, traced: Sequence[str] = (), *, within: bool) -> RepeatResult:
        """Repeat the case in a fresh executor. `within`: the time for searches."""
        request = CaseRequest(case.item, case.id, case.seed, case.limit)
        if within and self._time.left <= 0:
            return RepeatResult(failure=self._time.used_up())
        try:
            handle = self._lane.spawn(case)
            repeated = repeat(handle, request, traced, most=self._time.left if within else math.inf)
        except StoppedError as error:
            return RepeatResult(failure=str(error))
        except ZygoteError as error:
            self._slot.drop_zygote()
            return RepeatResult(failure=f"its repetitions failed: {str(error).splitlines()[0]}")
        if repeated.failure and within and self._time.left <= 0:
            return replace(repeated, failure=self._time.used_up())
        return repeated


def _leaks(attempt: Attempt, repeated: RepeatResult) -> list[Leak]:
    return growth.confirmed_leaks(attempt.suspicions, repeated.growths) if repeated.growths else []


def leak_lines(leaks: Sequence[Leak], origins: Mapping[str, Sequence[str]] | None) -> list[str]:
    """Return a line for each leak but the first, each followed by lines about its origin."""
    result = []
    for position, leak in enumerate(leaks):
        if position:
            result.append(f"also leaked: {leak.text}")
        result += [f"{leak.meter}: {line}" for line in (origins or {}).get(leak.meter, ())]
    return result
