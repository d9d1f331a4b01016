"""The processor and memory of the host that this process may use."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from harness.core.text import single_line

_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class _Group:
    """A control group: the files with its limit, usage and statistics. `reclaimable` is a field of `statistics`."""

    limit: Path
    usage: Path
    statistics: Path
    reclaimable: str


def host_memory(cgroups: Path = _GROUPS, own: Path = _OWN_GROUPS) -> int:
    """Return bytes of memory: of the host, or of this process's control group if its limit is lower."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    limits += [limit for group in _groups(cgroups, own) if (limit := _number(group.limit)) is not None]
    return min(limits)


def host_free_memory(
    cgroups: Path = _GROUPS, own: Path = _OWN_GROUPS, meminfo: Path = Path("/proc/meminfo")
) -> int | None:
    """Return bytes of memory available now: the lowest of the host and each control group of this process.

    Reclaimable file pages count as free. None if the kernel does not report it.
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


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    """Return the processor's product name; None on architectures whose kernel does not report it."""
    for line in _lines(cpuinfo):
        name, separator, value = line.partition(":")
        if separator and name.strip() == "model name" and value.strip():
            return single_line(value, 200)
    return None


def _groups(cgroups: Path, own: Path) -> list[_Group]:
    """Return the group of this process and all its parents, in both layouts (cgroup v1 and v2).

    A machine has one or none.
    """
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
    """Return the number in the file. None if the file has no number: "max" means no limit."""
    text = "".join(_lines(file)).strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _field(file: Path, name: str) -> int | None:
    """Return the number after `name` at the start of a line."""
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
