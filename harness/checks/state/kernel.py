"""Process state in the kernel other than memory, descriptors and limits, and the Python state that follows from it.

docs/process-state.md lists all of it, with the state that is not checked. Each reader makes at most one system call,
because all of them run after every case. One read of the status in /proc serves many attributes. The functions are
bound when the rows are made, before the first case, since a case may replace them.
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
from harness.checks.state.section import SectionValues, StateChange, StateRow, StateSection, Unreadable
from harness.core import clock, linux
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
    except (OSError, AttributeError):  # AttributeError: the C library lacks the function
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


#: Fields of proc_pid_status(5) that fork(2) passes on, with their names in reports. A kernel may lack some.
_FIELDS = {
    b"Uid": "the user for files",
    b"Gid": "the group for files",
    b"THP_enabled": "whether it may have transparent huge pages",
    b"CapInh": "the inheritable capabilities",
    b"CapPrm": "the permitted capabilities",
    b"CapEff": "the effective capabilities",
    b"CapBnd": "the bounding set of capabilities",
    b"CapAmb": "the ambient capabilities",
    b"NoNewPrivs": "no_new_privs",
    b"Seccomp": "the seccomp mode",
    b"Seccomp_filters": "the number of seccomp filters",
    b"Mems_allowed_list": "the memory nodes that it may use",
}
#: The parts of the status with these fields, from the first word up to the second. The text between the parts, such as
#: counters of memory, changes all the time.
_PARTS = ((b"\nUid:", b"\nFDSize:"), (b"\nTHP_enabled:", b"\nThreads:"), (b"\nSigIgn:", b"\nCpus_allowed:"))
_LAST_PART = (b"\nMems_allowed_list:", b"\nvoluntary_ctxt_switches:")
_STATUS = "the status in /proc"
_USERS = "the users"
_SIGNALS = "the signals that C code handles"
#: faulthandler, which has its own row, handles these in C.
_OF_FAULTHANDLER = frozenset((signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL))


class KernelStatus(StateSection):
    """The inherited fields of /proc/self/status, and the signals whose handling Python does not know about."""

    def __init__(self) -> None:
        self._text = b""
        self._last: dict[str, object] = {}
        self._signals = {
            int(number): signal_name(number) for number in sorted(signal.valid_signals() - _OF_FAULTHANDLER)
        }

    def read(self) -> SectionValues:
        try:
            status = linux.process_status()
        except OSError as error:  # a case has changed to another root folder
            self._text, self._last = b"", {_STATUS: Unreadable(str(error))}
            return self._last
        text = b"".join(_part(status, *ends) for ends in (*_PARTS, _LAST_PART))
        if text != self._text:
            fields = dict(line.split(b":\t", 1) for line in text.splitlines() if b":\t" in line)
            values: dict[str, object] = {
                name: fields[field].split()[-1].decode() for field, name in _FIELDS.items() if fields.get(field)
            }
            values[_USERS] = fields.get(b"Uid", b"").split()[:3]
            values[_SIGNALS] = self._unknown_to_python(fields.get(b"SigIgn", b"0"), fields.get(b"SigCgt", b"0"))
            self._text, self._last = text, values
        return self._last

    def changes(self, before: SectionValues, after: SectionValues, imported: frozenset[str]) -> list[StateChange]:  # noqa: ARG002
        if _STATUS in before or _STATUS in after:
            was, now = before.get(_STATUS, "readable"), after.get(_STATUS, "readable")
            return [] if was == now else [StateChange(_STATUS, was, now)]
        # A change of the user clears capabilities (capabilities(7)) and sets the user for files (credentials(7)).
        # The row of the users reports it.
        user_changed = before.get(_USERS) != after.get(_USERS)
        return [
            StateChange(name, old, after[name])
            for name, old in before.items()
            if name in after
            and old != after[name]
            and name != _USERS
            and not (user_changed and ("capabilities" in name or "for files" in name))
        ]

    def restore(self, change: StateChange) -> None:
        """Give signals back to Python. A process cannot restore its own rights."""
        if change.name == _SIGNALS:
            for number in self._numbers(change.new) - self._numbers(change.old):
                handler: Any = _compat.bare_signal_handler(number)
                signal.signal(number, handler)

    def _numbers(self, texts: object) -> set[int]:
        names = {text.partition(" ")[0] for text in texts} if isinstance(texts, tuple) else set()
        return {number for number, name in self._signals.items() if name in names}

    def _unknown_to_python(self, ignored: bytes, caught: bytes) -> tuple[str, ...]:
        """Return the signals that the kernel does not handle as Python expects, with what it does."""
        by_kernel = {"ignored": int(ignored, 16), "caught": int(caught, 16)}
        texts = []
        for number, name in self._signals.items():
            done = next((word for word, mask in by_kernel.items() if mask >> (number - 1) & 1), "default")
            text = f"{name} {done}"
            if done != _expected(_compat.bare_signal_handler(number)) and _KEPT_BY.get(text) not in sys.modules:
                texts.append(text)
        return tuple(texts)


#: Changes that a library makes permanently when it is used, with its module. gevent's loop learns in this way how its
#: children end.
_KEPT_BY = {"SIGCHLD caught": "gevent"}


def _part(text: bytes, begin: bytes, end: bytes) -> bytes:
    start = text.find(begin)
    return b"" if start < 0 else text[start : text.find(end, start)]


def _expected(handler: object) -> str:
    """Return what the kernel does with a signal whose handler Python has set."""
    if handler == signal.SIG_DFL:
        return "default"
    return "ignored" if handler == signal.SIG_IGN else "caught"


def attribute_settings() -> Sequence[StateRow]:
    """Return the attributes that this kernel and this C library have calls for."""
    death, orphans = linux.set_parent_death_signal, linux.set_adopts_orphans
    rows = [
        StateRow("the signal at its parent's death", linux.parent_death_signal, death),
        StateRow("whether it adopts orphans", linux.adopts_orphans, orphans),
        StateRow("whether it can dump core", linux.is_dumpable, linux.set_dumpable),
        StateRow("the time stamp counter", linux.timestamp_counter, linux.set_timestamp_counter),
        StateRow("the timer slack in ns", linux.timer_slack, linux.set_timer_slack),
        StateRow("the securebits", linux.securebits),
        StateRow("when memory errors kill it", linux.memory_error_policy),
        StateRow("the execution domain", linux.personality),
        StateRow(
            "the floating-point exceptions that trap",
            linux.floating_point_traps,
            linux.set_floating_point_traps,
        ),
        StateRow("the adjustment of its OOM score", linux.oom_score_adjustment),
        StateRow("the number of timers of C code", linux.posix_timers, ignore=_are_fewer),
    ]
    return [row for row in rows if _works(row.read)]


def _are_fewer(old: object, new: object, imported: frozenset[str]) -> bool:  # noqa: ARG001
    return isinstance(old, int) and isinstance(new, int) and new < old
