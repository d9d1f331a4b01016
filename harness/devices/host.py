"""The machine's own memory, as this process may use it."""

from __future__ import annotations

import os
from pathlib import Path


def memory(cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes of memory of the host, or of the control group this process is in when that has less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in _limit_files(cgroups, own):
        try:
            text = file.read_text().strip()
        except OSError:
            continue  # of the two layouts of control groups a machine has one, and containers may show neither
        if text.isascii() and text.isdigit():  # "max" stands for no limit
            limits.append(int(text))
    return min(limits)


def _limit_files(cgroups: Path, own: Path) -> list[Path]:
    """Where limits on this process may stand: its group and all groups above it, in both layouts."""
    try:
        groups = [line.split(":", 2)[2] for line in own.read_text().splitlines() if line.count(":") >= 2]
    except OSError:
        groups = []
    files = []
    for group in {"/", *groups}:
        for level in (Path(group), *Path(group).parents):
            below = str(level).lstrip("/")
            files += [cgroups / below / "memory.max", cgroups / "memory" / below / "memory.limit_in_bytes"]
    return files
