"""Tells whether a case that exceeds its time limit had a processor.

On a busy machine, a healthy case may not get enough time on one.

The kernel counts how long each thread was ready to run but waited for a processor (`/proc/PID/task/*/schedstat`,
Documentation/scheduler/sched-stats.rst). Waits for other things, such as a lock, a device or a sleep, do not count.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

#: Seconds between two readings. A case that ends before the first one costs nothing.
INTERVAL = 1.0
#: The least seconds between the first and the last reading, and the least share of them in which a thread waited.
LEAST_SPAN, LEAST_SHARE = 2.0, 0.5
_PROC = Path("/proc")


def read_waits(pid: int, proc: Path = _PROC) -> dict[int, float]:
    """Return the seconds for which the threads of a process and its descendants waited for a processor, by thread id.

    Threads that have ended are left out. The result is empty on a kernel without these figures.
    """
    waits: dict[int, float] = {}
    waiting = [pid]
    while waiting:
        tasks = proc / str(waiting.pop()) / "task"
        try:
            threads = os.listdir(tasks)
        except OSError:
            continue
        for thread in threads:
            try:
                _, waited, _ = (tasks / thread / "schedstat").read_text().split()
                children = (tasks / thread / "children").read_text().split()
            except (OSError, ValueError):
                continue
            waits[int(thread)] = int(waited) / 1e9
            waiting += map(int, children)
    return waits


def describe_starvation(first: Mapping[int, float], last: Mapping[int, float], span: float) -> str:
    """Return a text about the starved threads of a case, from two readings `span` seconds apart.

    Empty if there are none.
    """
    if span < LEAST_SPAN:
        return ""
    longest = max((waited - first.get(thread, 0.0) for thread, waited in last.items()), default=0.0)
    if longest < LEAST_SHARE * span:
        return ""
    return f"the machine was too busy: of {span:.0f} s, it waited {longest:.0f} s for a processor"


@dataclass
class StarvationWatch:
    """Reads the waits of a process's threads at intervals while a case runs in it."""

    read: Callable[[int], dict[int, float]] = read_waits
    #: When the next reading is due, on the clock of the deadlines.
    due: float = math.inf
    _first: tuple[float, dict[int, float]] | None = field(default=None, init=False)
    _last: tuple[float, dict[int, float]] | None = field(default=None, init=False)

    def begin(self, now: float) -> None:
        """Start watching a case."""
        self.due = now + INTERVAL
        self._first = self._last = None

    def look(self, pid: int, now: float) -> None:
        """Read the waits, if a reading is due."""
        if now < self.due:
            return
        self.due = now + INTERVAL
        if times := self.read(pid):  # a process that has just ended has none
            self._last = (now, times)
            self._first = self._first or self._last

    def text(self) -> str:
        """Return the text about starved threads of the case, see `describe_starvation`."""
        if self._first is None or self._last is None:
            return ""
        return describe_starvation(self._first[1], self._last[1], self._last[0] - self._first[0])
