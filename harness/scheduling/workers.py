"""How many workers ``-n auto`` means."""

from __future__ import annotations

import os
from pathlib import Path

#: Memory a CPU worker is reckoned to need: torch, the collected cases and what a case allocates.
WORKER_MEMORY = 1 << 30


def worker_count(gpus: int, cores: int, memory: int, *, software: int = 0) -> int:
    """One worker a GPU; without a GPU, one a core as far as memory (bytes) goes at 1 GiB each, and at least one.

    One a software device, where the run is on these: but they compute on the cores, so no more than there are.
    """
    if gpus:
        return gpus
    if software:
        return max(1, min(software, cores))
    return max(1, min(cores, memory // WORKER_MEMORY))


def usable_cores() -> int:
    """Cores this process may run on."""
    return len(os.sched_getaffinity(0))


def available_memory() -> int:
    """Bytes this process may still use: what the machine has free, or less under a cgroup's limit."""
    import psutil

    available = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):
        return available
    return available if limit == "max" else min(available, max(0, int(limit) - used))
