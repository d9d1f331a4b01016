"""Lets one process of a host at a time check shared memory.

Otherwise a leak of one process could be confirmed for another.

Any process may have created a file under /dev/shm that no process holds, so each process that reads the folder counts
it. One such file proves nothing. A new one in each repetition of a case is proof, unless another leaking case is
repeated at the same time. Therefore only one process of a host at a time repeats a case for its shared memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Generator, Iterable
from pathlib import Path

SHM = Path("/dev/shm")
#: The meters that count files which other processes may have made.
SHARED_MEMORY_METERS = frozenset({"shm_files", "shm_bytes"})
#: Seconds after which a process no longer waits for its turn: another process may be stopped.
PATIENCE = 600.0
_PAUSE = 0.05


@contextlib.contextmanager
def shared_memory_turn(
    meters: Iterable[str], *, over: Callable[[], bool], folder: Path = SHM, patience: float = PATIENCE
) -> Generator[None]:
    """Wait for the turn of this process, and hold it, if one of these meters counts files of shared memory.

    Continue without the turn once the wait is `over`, after `patience` seconds, or if the folder cannot be locked.
    """
    with contextlib.ExitStack() as held:
        if SHARED_MEMORY_METERS.intersection(meters):
            with contextlib.suppress(OSError):
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                held.callback(os.close, descriptor)
                deadline = time.monotonic() + patience
                if _lock(descriptor, lambda: over() or time.monotonic() >= deadline):
                    # Closing is not enough: a process that a case left behind may have inherited the descriptor.
                    held.callback(fcntl.flock, descriptor, fcntl.LOCK_UN)
        yield


def _lock(descriptor: int, over: Callable[[], bool]) -> bool:
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if over():
            return False
        time.sleep(_PAUSE)  # the kernel does not notify about a free lock
