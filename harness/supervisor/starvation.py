"""Whether a case that exceeds its time limit had a processor: on a busy machine, a healthy case may get none in time.

The kernel counts how long each thread ran, and how long it was ready to run and waited (`/proc/PID/task/*/schedstat`,
Documentation/scheduler/sched-stats.rst). Waiting for other things, such as a lock, a device or a sleep, is neither.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

#: Seconds between two looks. A case that ends before the first one costs nothing.
INTERVAL = 1.0
#: The least seconds between the first and the last look, and the least share of them in which a thread waited.
LEAST_SPAN, LEAST_SHARE = 2.0, 0.5
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """Seconds for which a thread ran, and for which it waited for a processor."""

    ran: float
    waited: float


def read_processor_times(pid: int, proc: Path = _PROC) -> dict[int, ProcessorTime]:
    """Return the times of all threads of a process and its descendants, by thread id. Threads that end are left out.

    Empty for a kernel without these figures.
    """
    found: dict[int, ProcessorTime] = {}
    waiting = [pid]
    while waiting:
        tasks = proc / str(waiting.pop()) / "task"
        try:
            threads = os.listdir(tasks)
        except OSError:
            continue
        for thread in threads:
            try:
                ran, waited, _ = (tasks / thread / "schedstat").read_text().split()
                children = (tasks / thread / "children").read_text().split()
            except (OSError, ValueError):
                continue
            found[int(thread)] = ProcessorTime(int(ran) / 1e9, int(waited) / 1e9)
            waiting += map(int, children)
    return found


def describe_starvation(first: Mapping[int, ProcessorTime], last: Mapping[int, ProcessorTime], span: float) -> str:
    """Return what to say of the threads of a case, from two looks `span` seconds apart. Empty if none was starved."""
    if span < LEAST_SPAN:
        return ""
    starved = max(_differences(first, last), key=lambda times: times.waited, default=ProcessorTime(0.0, 0.0))
    if starved.waited < LEAST_SHARE * span:
        return ""
    return f"the machine was too busy: of {span:.0f} s, it waited {starved.waited:.0f} s for a processor"


def _differences(first: Mapping[int, ProcessorTime], last: Mapping[int, ProcessorTime]) -> Iterable[ProcessorTime]:
    none = ProcessorTime(0.0, 0.0)
    for thread, times in last.items():
        before = first.get(thread, none)
        yield ProcessorTime(times.ran - before.ran, times.waited - before.waited)


@dataclass
class StarvationWatch:
    """Looks at the threads of a process now and then, while a case runs in it."""

    read: Callable[[int], dict[int, ProcessorTime]] = read_processor_times
    #: When the next look is due, on the clock of the deadlines.
    due: float = math.inf
    _first: tuple[float, dict[int, ProcessorTime]] | None = field(default=None, init=False)
    _last: tuple[float, dict[int, ProcessorTime]] | None = field(default=None, init=False)

    def begin(self, now: float) -> None:
        """A case begins."""
        self.due = now + INTERVAL
        self._first = self._last = None

    def look(self, pid: int, now: float) -> None:
        """Look once, if it is due."""
        if now < self.due:
            return
        self.due = now + INTERVAL
        if times := self.read(pid):  # a process that has just ended has none
            self._last = (now, times)
            self._first = self._first or self._last

    def text(self) -> str:
        """Return what to say of the case, see `describe_starvation`."""
        if self._first is None or self._last is None:
            return ""
        return describe_starvation(self._first[1], self._last[1], self._last[0] - self._first[0])
