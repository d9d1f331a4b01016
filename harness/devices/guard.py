"""Check whether a fork of this process could still use CUDA. The check does not initialise CUDA."""

from __future__ import annotations

import os
import struct
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.backends.backend import Backend
from harness.backends.table import BACKENDS

_TASKS = Path("/proc/self/task")
_STACK_BYTES = 4096
# Idle threads of a pool spin for about 30 ms before they sleep. Only the stack of a sleeping thread can be read.
_SETTLING = 1.0  # seconds
_C_LIBRARY = ("libc.so", "libc-", "libc.musl", "libpthread", "ld-", "[vdso]")


def cuda_in_use(descriptors: Path = Path("/proc/self/fd")) -> str | None:
    """Return why a fork of this process could not use CUDA, as text. None if the fork could.

    Once CUDA is initialised, it keeps ``/dev/nvidia-uvm`` open; the simulated runtime reports it. Torch, another
    library, or a call that only counts the devices may have initialised it. `descriptors` is a folder of links like
    ``/proc/self/fd``. If torch is imported, its own state is checked too, also in a fork of an initialised process,
    where ``is_initialized`` returns False. Raise OSError if the descriptors cannot be listed, because the answer is
    then unknown.
    """
    for backend in BACKENDS.values():
        if (reason := device_in_use(backend)) is not None:
            return reason
    nodes = {node: backend.kind for backend in BACKENDS.values() for node in backend.device_nodes}
    for number in os.listdir(descriptors):
        try:
            target = os.readlink(descriptors / number)
        except FileNotFoundError:
            continue  # closed since, as always the descriptor that listed the folder
        if (node := target.removesuffix(" (deleted)")) in nodes:
            return f"{nodes[node]} is initialised: descriptor {number} is {node}"
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    for question, meaning in (
        ("is_initialized", "torch reports that cuda is initialised"),
        ("_is_in_bad_fork", "torch reports that cuda was initialised before this process was forked"),
    ):
        ask = getattr(cuda, question, None)
        if ask is not None and ask():
            return meaning
    return None


def device_in_use(backend: Backend) -> str | None:
    """Return why a fork of this process could not use the devices of one kind, as far as its backend and torch know."""
    if backend.in_use():
        return f"{backend.label or backend.kind} is initialised"
    torch = sys.modules.get("torch")
    if torch is None or not backend.warmed:
        return None
    if backend.is_initialized(torch):
        return f"torch reports that {backend.kind} is initialised"
    forked = getattr(getattr(torch, backend.torch_type, None), "_is_in_bad_fork", None)
    if callable(forked) and forked():
        return f"torch reports that {backend.kind} was initialised before this process was forked"
    return None


@dataclass(frozen=True, slots=True)
class ProcessThread:
    """A thread of this process other than the main thread.

    `python`: Python started it. `name` is Python's name for it, otherwise the system's. `library` is the shared object
    in which a system thread waits, as far as its stack shows. None for a Python thread or a busy thread.
    """

    tid: int
    name: str
    python: bool
    library: str | None = None

    @property
    def survives_fork(self) -> bool:
        """Whether its library ends it before a fork and restarts it when needed, in the parent and in the child.

        OpenBLAS does so (``pthread_atfork``); its threads exist from the import of NumPy on. GNU OpenMP does not: if
        the parent has used the pool, the child hangs forever in its first parallel region.
        """
        return self.library is not None and "openblas" in self.library

    def __str__(self) -> str:
        if self.python:
            return f"python thread {self.name!r}"
        return f"system thread {self.name!r} of {self.library or 'an unknown library'}"


def threads_lost_in_fork() -> list[str]:
    """Return the threads that a fork of this process would lose, as text, without the main thread.

    The list is empty if a fork is safe. The call takes up to a second if a system thread is busy. Raise OSError if
    there is no ``/proc``.
    """
    return [str(thread) for thread in other_threads() if not thread.survives_fork]


def other_threads() -> list[ProcessThread]:
    """Return all threads of this process except the main thread, Python's first. See `threads_lost_in_fork`."""
    main = threading.main_thread()
    python_threads = {thread.native_id: thread for thread in threading.enumerate() if thread is not main}
    threads = [
        ProcessThread(tid, thread.name, python=True) for tid, thread in python_threads.items() if tid is not None
    ]
    deadline = time.monotonic() + _SETTLING
    for tid in sorted(int(entry) for entry in os.listdir(_TASKS)):
        if tid == os.getpid() or tid in python_threads:
            continue
        try:
            name = (_TASKS / str(tid) / "comm").read_text(errors="replace").rstrip("\n")
        except (FileNotFoundError, ProcessLookupError):
            continue  # ended since
        library = _library_of(tid, deadline)
        if library is not None or (_TASKS / str(tid)).exists():
            threads.append(ProcessThread(tid, name, python=False, library=library))
    return threads


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
    """Return the innermost shared object on a sleeping thread's stack, except the C library. None for a running thread.

    This is a guess: a word on the stack that points into code is usually, but not always, a return address.
    """
    try:
        while (stack_pointer := _stack_pointer(tid)) is None:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.001)
        stack = _words(stack_pointer)
    except OSError:
        return None  # the thread has ended since, or the kernel does not show stacks
    mappings = _executable_mappings()
    for word in stack:
        for mapping in mappings:
            if mapping.start <= word < mapping.end and not mapping.name.startswith(_C_LIBRARY):
                return mapping.name
    return None


def _stack_pointer(tid: int) -> int | None:
    """Return the stack pointer of a sleeping thread. None for a running thread."""
    fields = (_TASKS / str(tid) / "syscall").read_text().split()
    return int(fields[-2], 16) if len(fields) > 2 else None


def _words(address: int) -> Iterator[int]:
    with open("/proc/self/mem", "rb", buffering=0) as memory:
        data = os.pread(memory.fileno(), _STACK_BYTES, address)
    size = struct.calcsize("P")
    return (word for (word,) in struct.iter_unpack("P", data[: len(data) // size * size]))
