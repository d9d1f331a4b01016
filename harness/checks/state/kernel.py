"""Process state in the kernel other than memory, descriptors and limits, and the Python state that follows from it.

docs/process-state.md lists all of it, with the state that is not checked. Each reader makes at most one system call,
because all of them run after every case.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

from harness import _compat
from harness.checks.state.section import StateRow
from harness.core import clock
from harness.core.text import signal_name

#: With one of these set, OpenMP binds the first thread of a process to a CPU when it first computes in parallel.
_BINDING = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND")
#: Seconds by which Python's time of day may differ from the machine's.
_LAG = 60.0


def kernel_settings() -> Sequence[StateRow]:
    """Return the settings that this kernel, or a sandbox around this process, allows reading."""
    return [row for row in _rows() if _works(row.read)]


def _rows() -> list[StateRow]:
    # Bind the functions here, before the first case, since a case may replace them.
    mask, block, change = _compat.bare_signal_mask, int(signal.SIG_BLOCK), int(signal.SIG_SETMASK)
    timer, virtual, profiling = signal.getitimer, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF
    affinity, scheduler = os.sched_getaffinity, os.sched_getscheduler
    users, groups = os.getresuid, os.getresgid
    priority, process = os.getpriority, os.PRIO_PROCESS
    rows = [
        StateRow("the blocked signals", lambda: _named(mask(block, ())), lambda old: mask(change, _numbers(old))),
        StateRow("the scheduling policy", lambda: scheduler(0)),
        StateRow("the nice value", lambda: priority(process, 0)),
        StateRow("the users (real, effective, saved)", lambda: [*users()]),
        StateRow("the groups (real, effective, saved)", lambda: [*groups()]),
        StateRow("the supplementary groups", os.getgroups),
        StateRow("the timer of the process's time", lambda: timer(virtual)[0] > 0, _stopping(signal.ITIMER_VIRTUAL)),
        StateRow(
            "the timer of the process's and the kernel's time", lambda: timer(profiling)[0] > 0, _stopping(profiling)
        ),
        StateRow("the wakeup descriptor of signals", _wakeup_reader(), signal.set_wakeup_fd),
        StateRow("Python's clock", _clock_reader()),
        StateRow(
            "faulthandler.is_enabled()", faulthandler.is_enabled, ignore=lambda old, *_: not old
        ),  # enabling it is harmless
        StateRow("tracemalloc.is_tracing()", tracemalloc.is_tracing, _trace),
        StateRow(
            "the hooks of asynchronous generators",
            lambda: tuple(sys.get_asyncgen_hooks()),
            lambda old: sys.set_asyncgen_hooks(*old),
        ),
        StateRow(
            "sys.get_coroutine_origin_tracking_depth()",
            sys.get_coroutine_origin_tracking_depth,
            sys.set_coroutine_origin_tracking_depth,
        ),
    ]
    if not any(name in os.environ for name in _BINDING):
        rows.append(
            StateRow("the CPUs that it may run on", lambda: affinity(0), lambda old: os.sched_setaffinity(0, old))
        )
    return rows


def _named(numbers: set[int]) -> list[str]:
    return sorted(signal_name(number) for number in numbers) if numbers else []


def _numbers(names: Sequence[str]) -> tuple[int, ...]:
    return tuple(int(number) for number in signal.valid_signals() if signal_name(number) in names)


def _works(read: Callable[[], object]) -> bool:
    try:
        read()
    except OSError:
        return False
    return True


def _stopping(which: int) -> Callable[[Any], object]:
    """Return a function that stops a timer that a case has started. A timer that a case has stopped stays stopped."""
    return lambda old: None if old else signal.setitimer(which, 0)


def _trace(old: Any) -> None:
    if not old:
        tracemalloc.stop()


def _wakeup_reader() -> Callable[[], object]:
    wakeup = signal.set_wakeup_fd

    def read() -> int:
        descriptor = wakeup(-1)
        if descriptor != -1:
            wakeup(descriptor, warn_on_full_buffer=False)
        return descriptor

    return read


def _clock_reader() -> Callable[[], object]:
    time_of_day, began = time.time, clock.now() - clock.monotonic()

    def read() -> str:
        moment = time_of_day()
        is_right = abs(moment - clock.monotonic() - began) < _LAG or abs(moment - clock.now()) < _LAG
        return "the machine's" if is_right else "another time"

    return read
