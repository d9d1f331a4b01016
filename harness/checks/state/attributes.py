"""Attributes of a process that Python does not expose: those of prctl(2), and those of its status in /proc.

docs/process-state.md lists them. One read of the status serves many attributes; each other reader makes one call into
C. The functions are bound when the rows are made, before the first case, since a case may replace them.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

from harness import _compat
from harness.checks.state.section import FlatSection, SectionValues, StateChange, StateRow, Unreadable
from harness.core import linux
from harness.core.text import signal_name

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


class KernelStatus(FlatSection):
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


def _works(read: Callable[[], object]) -> bool:
    try:
        read()
    except (OSError, AttributeError):  # AttributeError: the C library lacks the function
        return False
    return True
