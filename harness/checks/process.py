"""Child processes of a case, processes that do not end, and processes that get no processor."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep  # imported by name: a case may have replaced the attribute of the module

from harness.core import clock, linux
from harness.core.linux import ProcessDescription

#: Helper processes that libraries start once. They remove shared memory after all its users have ended: one of
#: multiprocessing, one of joblib's loky, and one of torch for tensors shared through files. Each entry is a part of the
#: command line.
CLEANUP_HELPERS = ("multiprocessing.resource_tracker", "loky.backend.resource_tracker", "torch_shm_manager")
#: Helper processes that libraries start once and keep. They are not leftovers of a case. torch keeps an addr2line for
#: each library in which it has looked up a C++ frame (Symbolizer in torch/csrc/profiler/unwind/unwind.cpp). loky keeps
#: the workers of its reusable pool, which joblib and scikit-learn use with each ``n_jobs``.
KEPT_HELPERS = (
    *CLEANUP_HELPERS,
    "multiprocessing.forkserver",
    "loky.backend.popen_loky_posix",
    "torch/_inductor/compile_worker",
    "addr2line -C -f -e ",
)

#: The name for a process that a case forked and that did not call exec: its own command line is the harness's.
FORK_OF_CASE = "a fork of the case"

#: The meaning of the state letters of proc(5).
_STATES = {
    "D": "uninterruptible sleep",
    "I": "idle",
    "R": "running",
    "S": "sleeping",
    "T": "stopped",
    "t": "held by a debugger",
    "X": "dead",
    "Z": "zombie",
}

#: Seconds within which a new child must call exec, and a child that ends must have ended. That takes milliseconds, more
#: on a busy machine. A child that has not called exec after this time is reported as a fork.
TRANSITION_PATIENCE = 2.0
_STEP = 0.001


class Patience:
    """A pause between two checks. Each call waits a moment; it returns false `seconds` after the first call."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline: float | None = None

    def __call__(self) -> bool:
        now = clock.monotonic()
        if self._deadline is None:
            self._deadline = now + self._seconds
        if now >= self._deadline:
            return False
        sleep(_STEP)
        return True


def describe_settled(
    pid: int,
    pause: Callable[[], bool],
    describe: Callable[[int], ProcessDescription | None] = linux.describe_process,
) -> ProcessDescription | None:
    """Return the description of a child once it has called exec, or has ended; None if it is gone.

    Before that, a helper cannot be distinguished from a leftover process. `pause` waits a moment, and returns false at
    the end of the time.
    """
    while (found := describe(pid)) is not None and (found.starting or found.ending) and pause():
        continue
    return found


def describe_leftover(found: ProcessDescription | None, pid: int, own: str) -> str | None:
    """Return text about a child that still runs; None for a zombie, which holds only its pid, and for a kept helper.

    `own`: the command line of this process, which its forks share.
    """
    if found is None or found.state in "ZX" or any(helper in found.command for helper in KEPT_HELPERS):
        return None
    return f"{pid}, {FORK_OF_CASE}" if found.command == own else f"{pid} {found.command[:200]!r}"


def stuck_text(pid: int, command: str, state: str, wait_channel: str) -> str:
    """Return text about a process that does not end although it was killed: its command and its state.

    `state` is a letter of proc(5). `wait_channel` is the kernel function in which it sleeps, or an empty string.
    """
    where = f" in {wait_channel}" if wait_channel else ""
    return f"process {pid} {command[:200]!r}: state {state}, {_STATES.get(state, 'unknown')}{where}"


def describe_stuck(pid: int) -> str:
    """Return `stuck_text` for the current state of a process."""
    found = linux.describe_process(pid) or linux.GONE
    return stuck_text(pid, found.command, found.state, linux.kernel_wait_channel(pid))


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
    """Reads the waits of a process's threads for a processor at intervals while a case runs in it.

    On a busy machine, a healthy case may not get enough time on one. The kernel counts how long each thread was ready
    to run but waited (`/proc/PID/task/*/schedstat`, Documentation/scheduler/sched-stats.rst). Waits for other things,
    such as a lock, a device or a sleep, do not count.
    """

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
