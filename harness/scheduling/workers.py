"""The number of workers of ``-n auto``."""

from __future__ import annotations

import os
from pathlib import Path

#: Estimated memory of a CPU worker, in bytes: torch, the collected cases, and the allocations of a case.
WORKER_MEMORY = 1 << 30


def worker_count(gpus: int, cores: int, memory: int, *, software: int = 0, slots: int = 1) -> int:
    """Return one worker per slot of a GPU; more than one per GPU only if `memory` (bytes) allows 1 GiB each.

    Without a GPU, return one per core, limited by `memory` in the same way; at least one. On software devices, return
    one per device, but at most one per core, because they compute on the cores.
    """
    if gpus:
        return max(gpus, min(gpus * slots, memory // WORKER_MEMORY))
    if software:
        return max(1, min(software, cores))
    return max(1, min(cores, memory // WORKER_MEMORY))


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def available_memory() -> int:
    """Return the bytes that this process may still use: the machine's free memory, or less under a cgroup limit."""
    import psutil

    available = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):
        return available
    return available if limit == "max" else min(available, max(0, int(limit) - used))
