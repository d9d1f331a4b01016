"""The machine's processor and memory, as this process may use them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from harness.text import one_line

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class _Group:
    """A control group: the files of its limit and its use, and in `statistics` the name of what it could give back."""

    limit: Path
    usage: Path
    statistics: Path
    reclaimable: str


def memory(cgroups: Path = _GROUPS, own: Path = _OWN_GROUPS) -> int:
    """Bytes of memory of the host, or of the control group this process is in when that has less."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limits += [limit for group in _groups(cgroups, own) if (limit := _number(group.limit)) is not None]
    return min(limits)


def free_memory(cgroups: Path = _GROUPS, own: Path = _OWN_GROUPS, meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes of memory that could be had now, in the host and in each control group this process is in.

    File pages that would be given back count as free. None when the kernel does not tell it.
    """
    available = _field(meminfo, "MemAvailable:")
    if available is None:
        return None
    rooms = [available * 1024]
    for group in _groups(cgroups, own):
        limit, used = _number(group.limit), _number(group.usage)
        if limit is not None and used is not None:
            rooms.append(max(0, limit - used + (_field(group.statistics, group.reclaimable) or 0)))
    return min(rooms)


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """The processor's product name; None on architectures whose kernel does not tell it."""
    for line in _lines(cpuinfo):
        name, separator, value = line.partition(":")
        if separator and name.strip() == "model name" and value.strip():
            return one_line(value, 200)
    return None


def _groups(cgroups: Path, own: Path) -> list[_Group]:
    """The group of this process and all groups above it, in both layouts: a machine has one of them, or shows none."""
    names = {"/", *(line.split(":", 2)[2] for line in _lines(own) if line.count(":") >= 2)}
    groups = []
    for name in names:
        for level in (Path(name), *Path(name).parents):
            below = str(level).lstrip("/")
            new, old = cgroups / below, cgroups / "memory" / below
            groups += [
                _Group(new / "memory.max", new / "memory.current", new / "memory.stat", "inactive_file"),
                _Group(
                    old / "memory.limit_in_bytes",
                    old / "memory.usage_in_bytes",
                    old / "memory.stat",
                    "total_inactive_file",
                ),
            ]
    return groups


def _number(file: Path) -> int | None:
    """The number that is all of the file; None without one, as where "max" stands for no limit."""
    text = "".join(_lines(file)).strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _field(file: Path, name: str) -> int | None:
    """The number behind `name` at the beginning of a line."""
    for line in _lines(file):
        words = line.split()
        if len(words) >= 2 and words[0] == name and words[1].isascii() and words[1].isdigit():
            return int(words[1])
    return None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(errors="replace").splitlines()
    except OSError:
        return []  # containers and other layouts lack some of these files
