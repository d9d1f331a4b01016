"""Confirms a suspected leak: the case runs several times in a fresh process, and a leak must show as growth.

The first parts decide when a worker may search for leaks: it has a share of the time of the run, and one process of a
host at a time checks shared memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.checks.growth import COUNTED_REPETITIONS, Leak, confirmed_leaks
from harness.checks.meters import format_growths, meter_of
from harness.checks.trend import WARMUP_REPETITIONS
from harness.core import clock
from harness.core.clock import monotonic
from harness.core.outcome import Outcome
from harness.core.text import format_exit_code
from harness.journal.events import Confirmation
from harness.journal.journal import WorkerJournal
from harness.scheduling.stop_request import StoppedError
from harness.supervisor.attempt import GRACE, Attempt, CaseRequest
from harness.supervisor.case import Case
from harness.supervisor.executor_handle import ExecutorHandle, NoMessage
from harness.supervisor.lane import Lane
from harness.zygote.client import ZygoteError

#: The share of a worker's time that its searches may take, and the seconds that they may take in any run.
SHARE = 0.1
LEAST = 10.0
MORE = "--leak-search=SECONDS gives more"


class SearchTime:
    """The time for all searches of one worker. Its time begins when this object is made."""

    def __init__(self, limit: float | None, multiplier: float = 1.0, *, clock: Callable[[], float] = monotonic) -> None:
        """`limit`: in seconds; None for a tenth of the worker's time, at least `LEAST`. Both are multiplied.

        `clock` must be the clock of the executors' deadlines.
        """
        self._limit = limit
        self._multiplier = multiplier
        self._clock = clock
        self._began = clock()
        self._spent = 0.0
        self._since: float | None = None

    @property
    def limit(self) -> float:
        """The seconds that all searches up to now may take together."""
        if self._limit is not None:
            return self._limit * self._multiplier
        return max(LEAST, SHARE * (self._clock() - self._began - self.spent)) * self._multiplier

    @property
    def spent(self) -> float:
        """The seconds that searches took, including the current one."""
        return self._spent + (self._clock() - self._since if self._since is not None else 0.0)

    @property
    def left(self) -> float:
        """The seconds that are left; 0 or less if the time is used up."""
        return self.limit - self.spent

    @property
    def is_off(self) -> bool:
        """Whether there is no time at all: the user wants no search."""
        return self._limit == 0

    @contextlib.contextmanager
    def spending(self) -> Iterator[None]:
        """Count the time in this context as a search. Contexts may nest; only the outer one counts."""
        outer, self._since = self._since, self._clock() if self._since is None else self._since
        try:
            yield
        finally:
            if outer is None:
                self._spent, self._since = self.spent, None

    def used_up(self) -> str:
        """Return a text that says why nothing more is searched."""
        return "--leak-search=off" if self.is_off else f"the {self.limit:.0f} s for leak searches are used up; {MORE}"


SHM = Path("/dev/shm")
#: The meters that count files which other processes may have made.
SHARED_MEMORY_METERS = frozenset({"shm_files", "shm_bytes"})
#: Seconds after which a process no longer waits for its turn: another process may be stopped.
PATIENCE = 600.0
_PAUSE = 0.05


@contextlib.contextmanager
def shared_memory_turn(
    meters: Iterable[str], *, over: Callable[[], bool], folder: Path = SHM, patience: float = PATIENCE
) -> Generator[None]:
    """Wait for the turn of this process, and hold it, if one of these meters counts files of shared memory.

    Any process may have created a file under /dev/shm that no process holds, so each process that reads the folder
    counts it. One such file proves nothing. A new one in each repetition of a case is proof, unless another leaking
    case is repeated at the same time. Therefore only one process of a host at a time repeats a case for its shared
    memory.

    Continue without the turn once the wait is `over`, after `patience` seconds, or if the folder cannot be locked.
    """
    with contextlib.ExitStack() as held:
        if SHARED_MEMORY_METERS.intersection(meters):
            with contextlib.suppress(OSError):
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                held.callback(os.close, descriptor)
                deadline = time.monotonic() + patience
                if _lock_in_time(descriptor, lambda: over() or time.monotonic() >= deadline):
                    # Closing is not enough: a process that a case left behind may have inherited the descriptor.
                    held.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)
        yield


def _lock_in_time(descriptor: int, over: Callable[[], bool]) -> bool:
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if over():
            return False
        time.sleep(_PAUSE)  # the kernel does not notify about a free lock


TIMES = WARMUP_REPETITIONS + COUNTED_REPETITIONS


@dataclass(frozen=True, slots=True)
class RepeatResult:
    """The result of the repetitions: the growth of each by meter, and, by meter, lines about the origin of the growth.

    `failure`: why there is no result.
    """

    growths: tuple[Mapping[str, int], ...] = ()
    origins: Mapping[str, Sequence[str]] | None = None
    failure: str = ""


def repeat(handle: ExecutorHandle, case: Case, history: Sequence[str] = (), *, most: float = math.inf) -> RepeatResult:
    """Have a fresh executor run the case `TIMES` times, or until a leak is ruled out.

    `history`: the meters whose growth is traced to its origin. `most`: the seconds for all repetitions. Raises
    ZygoteError.
    """
    limit = min(case.limit * TIMES, most)
    handle.send({"op": "repeat", **CaseRequest(case).fields, "times": TIMES, "history": list(history)})
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
                shared_memory_turn(attempt.suspicions, over=lambda: self._slot.stop.receive() is not None)
            )
            repeated = self._repeat(case, within=not is_exact)
            leaks = confirmed_leaks(attempt.suspicions, repeated.growths)
            if leaks and not any(meter_of(leak.meter).is_exact for leak in leaks):
                self._end_current()
                again = self._repeat(case, within=not is_exact)
                shown = {leak.meter for leak in confirmed_leaks(attempt.suspicions, again.growths)}
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
        if within and self._time.left <= 0:
            return RepeatResult(failure=self._time.used_up())
        try:
            handle = self._lane.spawn(case)
            repeated = repeat(handle, case, traced, most=self._time.left if within else math.inf)
        except StoppedError as error:
            return RepeatResult(failure=str(error))
        except ZygoteError as error:
            self._slot.drop_zygote()
            return RepeatResult(failure=f"its repetitions failed: {str(error).splitlines()[0]}")
        if repeated.failure and within and self._time.left <= 0:
            return replace(repeated, failure=self._time.used_up())
        return repeated


def leak_lines(leaks: Sequence[Leak], origins: Mapping[str, Sequence[str]] | None) -> list[str]:
    """Return a line for each leak but the first, each followed by lines about its origin."""
    result = []
    for position, leak in enumerate(leaks):
        if position:
            result.append(f"also leaked: {leak.text}")
        result += [f"{leak.meter}: {line}" for line in (origins or {}).get(leak.meter, ())]
    return result
