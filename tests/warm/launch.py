"""A description of a Python process to start, and the code that turns a fork into it."""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Self

#: A variable in each process of a run, whose value has this length: tests find the processes by it.
MARK = "ACCEPTANCE_RUN"
MARK_LENGTH = 16
#: The prefixes of variables that take effect when the interpreter or a library is loaded.
_EARLY = ("GLIBC_", "LANG", "LC_", "LD_", "MALLOC_", "PYTHON")
_MAX_DESCRIPTORS = 1 << 20


@dataclass(frozen=True, slots=True)
class Launch:
    """A Python to start. `arguments` are those after the interpreter's name.

    `descriptors` are the numbers that the passed descriptors get. `blocked` and `ignored` are signals.
    """

    arguments: tuple[str, ...]
    folder: str
    environment: dict[str, str]
    descriptors: tuple[int, ...]
    session: bool = False
    blocked: tuple[int, ...] = ()
    ignored: tuple[int, ...] = ()

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Self:
        values: Any = {
            name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(data).items()
        }
        return cls(**values)


def can_be_warm(arguments: Sequence[str]) -> bool:
    """Return whether a fork can continue as a Python with these arguments."""
    return arguments[0] == "-m" or tuple(arguments[:2]) == ("-u", "-c")


def early(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that have no effect once a process has started."""
    return {name: value for name, value in environment.items() if name.startswith(_EARLY)}


def become(launch: Launch, descriptors: Sequence[int], path: Sequence[str]) -> None:
    """Turn this fork into the Python of `launch`, up to its arguments. `path` is ``sys.path`` without its first entry.

    `descriptors` were passed to this process. All others are closed.
    """
    if launch.session:
        os.setsid()
    _place(descriptors, launch.descriptors)
    os.chdir(launch.folder)
    os.environ.clear()
    os.environ.update(launch.environment)
    if mark := launch.environment.get(MARK):
        _show_mark(mark)
    for number in launch.ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, launch.blocked)
    tempfile.tempdir = None
    sys.orig_argv = [sys.executable, *launch.arguments]
    sys.path[:] = [launch.folder if launch.arguments[0] == "-m" else "", *path]
    if xdist := sys.modules.get("xdist.plugin"):
        xdist._sys_path[:] = sys.path  # xdist keeps the path of its import for its workers
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]  # a project may have a package of this name


def go_on(arguments: Sequence[str]) -> None:
    """Run what `arguments` name, as the interpreter does. Raise SystemExit if that has an exit status."""
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        if not hasattr(sys.modules.get(arguments[1]), "__path__"):
            sys.modules.pop(arguments[1], None)  # importers must not get the module that runs; a package has another
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["-c", *arguments[3:]]
        exec(arguments[2], {"__name__": "__main__"})


def _place(descriptors: Sequence[int], numbers: Sequence[int]) -> None:
    """Move the descriptors to these numbers, and close all others."""
    above = max((*descriptors, *numbers)) + 1
    for offset, descriptor in enumerate(descriptors):
        os.dup2(descriptor, above + offset)
    os.closerange(0, above)
    for offset, number in enumerate(numbers):
        os.dup2(above + offset, number)
    os.closerange(above, _MAX_DESCRIPTORS)


def _show_mark(mark: str) -> None:
    """Write the mark to the memory in which the kernel finds this process's initial environment.

    The server was started with a mark of the same length.
    """
    with open("/proc/self/stat", encoding="utf-8", errors="backslashreplace") as file:
        begin, end = (int(field) for field in file.read().rpartition(")")[2].split()[47:49])
    place = ctypes.string_at(begin, end - begin).index(f"{MARK}=".encode()) + len(MARK) + 1
    ctypes.memmove(begin + place, mark.encode(), MARK_LENGTH)
