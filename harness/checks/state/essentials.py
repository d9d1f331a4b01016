"""State that an executor itself needs to report and to run further cases. It is checked also with ``--leak-check=off``.

The working folder, resource limits, the timers that end a process, standard streams, the descriptors of the harness,
the folder for temporary files.
"""

from __future__ import annotations

import faulthandler
import functools
import resource
import sys
from collections.abc import Callable, Iterable, Sequence

# Imported by name: a case may have replaced the attributes of these modules by the time of the check.
from os import fstat, getcwd, stat
from resource import getrlimit
from signal import ITIMER_REAL, getitimer, setitimer
from typing import Any

from harness.checks.state.section import StateRow
from harness.core import clock


class DumpLater:
    """Records whether ``faulthandler.dump_traceback_later`` will fire. Python does not report that.

    With ``exit=True``, it would end the process of a later case.
    """

    def __init__(self) -> None:
        self._until = 0.0
        self._cancel: Callable[[], None] = faulthandler.cancel_dump_traceback_later

    def install(self) -> None:
        """Replace the functions of faulthandler by ones that do the same and record the call."""
        later, cancel = faulthandler.dump_traceback_later, faulthandler.cancel_dump_traceback_later

        def dump_traceback_later(timeout: float, repeat: bool = False, *more: Any, **named: Any) -> None:
            later(timeout, repeat, *more, **named)
            self._until = float("inf") if repeat else clock.monotonic() + timeout

        def cancel_dump_traceback_later() -> None:
            cancel()
            self._until = 0.0

        faulthandler.dump_traceback_later = dump_traceback_later
        faulthandler.cancel_dump_traceback_later = cancel_dump_traceback_later

    @property
    def is_pending(self) -> bool:
        """Whether the dump will fire."""
        return self._until > 0.0 and clock.monotonic() < self._until

    def disarm(self) -> None:
        """Cancel the dump."""
        self._until = 0.0
        self._cancel()


DUMP_LATER = DumpLater()


#: All limits of this kernel. RLIMIT_OFILE is another name of RLIMIT_NOFILE.
LIMITS = {
    name: getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"
}


def essential_settings(descriptors: Iterable[int], temp: str) -> Sequence[StateRow]:
    """Return the rows. `descriptors`: those that a case must not touch. `temp`: the folder for temporary files."""
    return [
        StateRow("the working folder", _working_folder),
        *(StateRow(name, functools.partial(_limit, number)) for name, number in LIMITS.items()),
        StateRow("the timer that sends SIGALRM", _alarm, lambda _: setitimer(ITIMER_REAL, 0), ignore=_stopped),
        StateRow(
            "the dump of faulthandler.dump_traceback_later()",
            lambda: "pending" if DUMP_LATER.is_pending else "none",
            lambda _: DUMP_LATER.disarm(),
            ignore=_stopped,
        ),
        *_stream_rows(),
        *(
            StateRow(f"descriptor {number}, which belongs to the process", functools.partial(_file_of, number))
            for number in descriptors
        ),
        *(
            [StateRow("the folder for temporary files", functools.partial(_folder, temp), ignore=_unreadable)]
            if temp
            else []
        ),
    ]


def descriptor_identity(descriptor: int) -> tuple[int, int] | None:
    """Return device and inode of a descriptor, None if it is closed."""
    try:
        status = fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _working_folder() -> str:
    try:
        return getcwd()
    except OSError:
        return "a removed folder"


def _limit(number: int) -> list[int]:
    return [*getrlimit(number)]


def _alarm() -> str:
    return "pending" if getitimer(ITIMER_REAL)[0] > 0 else "none"


def _stopped(old: object, new: object, imported: frozenset[str]) -> bool:  # noqa: ARG001
    return new == "none"


def _stream_rows() -> list[StateRow]:
    rows = []
    for name in ("stdin", "stdout", "stderr"):
        rows.append(StateRow(f"sys.{name}", functools.partial(getattr, sys, name, None)))
        rows.append(StateRow(f"whether sys.{name} is closed", functools.partial(_is_closed, sys, name)))
    return rows


def _is_closed(owner: Any, name: str) -> bool:
    try:
        return bool(getattr(getattr(owner, name, None), "closed", False))
    except ValueError:  # its buffer was detached
        return True


def _file_of(descriptor: int) -> str:
    identity = descriptor_identity(descriptor)
    return "closed" if identity is None else _named(*identity)


def _folder(path: str) -> str:
    try:
        status = stat(path)
    except FileNotFoundError:
        return "removed"
    except OSError:  # a case has given up the right to read this
        return _UNREADABLE
    return _named(status.st_dev, status.st_ino)


_UNREADABLE = "unreadable"


def _unreadable(old: object, new: object, imported: frozenset[str]) -> bool:  # noqa: ARG001
    return new == _UNREADABLE


def _named(device: int, inode: int) -> str:
    return f"inode {inode} of device {device}"
