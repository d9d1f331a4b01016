"""Whether this process may still be forked for CUDA. Looks, and wakes nothing."""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.backends.table import BACKENDS

_NODES = frozenset(node for backend in BACKENDS.values() for node in backend.device_nodes)
_TASKS = Path("/proc/self/task")
_STACK_BYTES = 4096
# Idle threads of a pool spin for some 30 ms before they sleep, and only a sleeping thread's stack can be read.
_SETTLING = 1.0  # seconds
_C_LIBRARY = ("libc.so", "libc-", "libc.musl", "libpthread", "ld-", "[vdso]")


def cuda_touched(descriptors: Path = Path("/proc/self/fd")) -> str | None:
    """In words, why a fork of this process could not use CUDA; None when it could.

    CUDA holds ``/dev/nvidia-uvm`` open from its initialisation on, whoever caused that: torch, another library, or a
    mere question for the number of devices. `descriptors` is a folder of links as in ``/proc/self/fd``. Torch is
    asked as well, if it has been imported, and in its own bad forks too, where it denies that it is initialised.
    Raises OSError when the descriptors cannot be listed, for then nobody knows.
    """
    for number in os.listdir(descriptors):
        try:
            target = os.readlink(descriptors / number)
        except FileNotFoundError:
            continue  # closed since: the one that listed the folder always is
        if (node := target.removesuffix(" (deleted)")) in _NODES:
            return f"cuda is initialised: descriptor {number} is {node}"
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    for question, meaning in (
        ("is_initialized", "cuda is initialised, says torch"),
        ("_is_in_bad_fork", "cuda was initialised before this process was forked, says torch"),
    ):
        ask = getattr(cuda, question, None)
        if ask is not None and ask():
            return meaning
    return None


@dataclass(frozen=True, slots=True)
class Thread:
    """A thread of this process besides the main one.

    `name` is Python's name for it, or the system's for one that Python did not start (`python` tells which). `library`
    is the shared object a system thread waits in, as far as its stack shows; None for Python's and when it is busy.
    """

    tid: int
    name: str
    python: bool
    library: str | None = None

    @property
    def survives_fork(self) -> bool:
        """Whether its library ends it before a fork and starts it again when needed, in the parent and in the child.

        OpenBLAS does (``pthread_atfork``), and has its threads from the import of NumPy on. GNU's OpenMP does not: a
        child whose parent has used the pool waits in its own first parallel region for ever.
        """
        return self.library is not None and "openblas" in self.library

    def __str__(self) -> str:
        if self.python:
            return f"python thread {self.name!r}"
        return f"system thread {self.name!r} of {self.library or 'an unknown library'}"


def extra_threads() -> list[str]:
    """In words, the threads of this process, besides the main one, that a fork would lose; empty when it may be forked.

    Takes up to a second when a system thread is busy. Raises OSError where there is no ``/proc``.
    """
    return [str(thread) for thread in threads() if not thread.survives_fork]


def threads() -> list[Thread]:
    """Every thread of this process besides the main one, Python's first. See `extra_threads`."""
    main = threading.main_thread()
    known = {thread.native_id: thread for thread in threading.enumerate() if thread is not main}
    found = [Thread(tid, thread.name, python=True) for tid, thread in known.items() if tid is not None]
    deadline = time.monotonic() + _SETTLING
    for tid in sorted(int(entry) for entry in os.listdir(_TASKS)):
        if tid == os.getpid() or tid in known:
            continue
        try:
            name = (_TASKS / str(tid) / "comm").read_text(errors="replace").rstrip("\n")
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended since
        library = _library_of(tid, deadline)
        if library is not None or (_TASKS / str(tid)).exists():
            found.append(Thread(tid, name, python=False, library=library))
    return found


@dataclass(frozen=True, slots=True)
class _Mapping:
    start: int
    end: int
    name: str


def _executable_mappings() -> list[_Mapping]:
    mappings = []
    for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and "x" in fields[1]:
            start, end = (int(bound, 16) for bound in fields[0].split("-"))
            mappings.append(_Mapping(start, end, os.path.basename(fields[5])))
    return mappings


def _library_of(tid: int, deadline: float) -> str | None:
    """The innermost shared object on a sleeping thread's stack that is not the C library; None when it does not sleep.

    A guess: a word of the stack that points into code is mostly, not always, a return address.
    """
    try:
        while (stack_pointer := _stack_pointer(tid)) is None:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.001)
        stack = _words(stack_pointer)
    except OSError:
        return None  # ended since, or a kernel that does not show stacks
    mappings = _executable_mappings()
    for word in stack:
        for mapping in mappings:
            if mapping.start <= word < mapping.end and not mapping.name.startswith(_C_LIBRARY):
                return mapping.name
    return None


def _stack_pointer(tid: int) -> int | None:
    """Where a sleeping thread's stack ends; None for a running one."""
    fields = (_TASKS / str(tid) / "syscall").read_text().split()
    return int(fields[-2], 16) if len(fields) > 2 else None


def _words(address: int) -> Iterator[int]:
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        data = os.pread(memory.fileno(), _STACK_BYTES, address)
    size = struct.calcsize("P")
    return (word for (word,) in struct.iter_unpack("P", data[: len(data) // size * size]))
