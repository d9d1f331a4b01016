"""The peak memory of a case, for comparisons over many runs, and the snapshot of a failed case's allocator."""

from __future__ import annotations

import contextlib
import sys

# Imported by name: a case may have replaced the attributes of the modules.
from os import O_WRONLY, close
from os import open as open_file
from os import write as write_to
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from sys import modules

from harness.backends.backend import Backend

#: Writing 5 to this file makes the kernel reset the peak of the process (man 5 proc_pid_clear_refs). It takes 15 µs;
#: reading the peak takes 1 µs.
_RESET = "/proc/self/clear_refs"


class PeakMemory:
    """Measures one case at a time.

    The host's figure is the rise of the process's resident memory above its size at the begin of the case, as the
    kernel counts it: on machines with many cores it may be some MiB too low. The devices' figure is the peak of the
    memory that tensors used in torch's allocator on one device, including memory from before the case. Both are 0 if
    unknown.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._before: int | None = None

    def begin(self) -> None:
        """Begin to measure a case."""
        self._before = None
        with contextlib.suppress(OSError):  # a sandbox may forbid it, and a case may have used up all descriptors
            descriptor = open_file(_RESET, O_WRONLY)
            try:
                write_to(descriptor, b"5")
            finally:
                close(descriptor)
            self._before = getrusage(RUSAGE_SELF).ru_maxrss
        torch = modules.get("torch")
        if torch is not None and self._backend.accelerator:
            with contextlib.suppress(Exception):  # an allocator without statistics, or one that a case has replaced
                if self._backend.is_initialized(torch):
                    for index in range(self._backend.device_count(torch)):
                        torch.accelerator.reset_peak_memory_stats(index)

    def host(self) -> int:
        """Return the host's figure so far, in bytes."""
        return 0 if self._before is None else max(0, getrusage(RUSAGE_SELF).ru_maxrss - self._before) * 1024

    def device(self) -> int:
        """Return the devices' figure so far, in bytes."""
        torch = modules.get("torch")
        if torch is None or not self._backend.accelerator:
            return 0
        with contextlib.suppress(Exception):
            if self._backend.is_initialized(torch):
                devices = range(self._backend.device_count(torch))
                return max((int(torch.accelerator.max_memory_allocated(index)) for index in devices), default=0)
        return 0


#: The most snapshots of one executor.
MOST_SNAPSHOTS = 10


def write_allocator_snapshot(folder: Path, number: int) -> None:
    """Write a snapshot into `folder`, or a text that says why there is none. Write nothing if no GPU is in use."""
    path = folder / f"allocator-snapshot-{number}.pickle"
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # https://docs.pytorch.org/docs/stable/torch_cuda_memory.html documents this function under its private name.
        torch.cuda.memory._dump_snapshot(str(path))
    except Exception as error:  # noqa: BLE001 - the context may be broken: the case has failed
        path.with_suffix(".txt").write_text(f"{error!r}\n", encoding="utf-8", errors="backslashreplace")
