"""The place to which the kernel writes the core file of a process: core(5)."""

from __future__ import annotations

import glob
import os
import re
import resource
import signal
from dataclasses import dataclass
from pathlib import Path

PATTERN = Path("/proc/sys/kernel/core_pattern")
USES_PID = Path("/proc/sys/kernel/core_uses_pid")
#: Signals whose default action writes a core file: signal(7).
SIGNALS = frozenset(
    {
        signal.SIGQUIT, signal.SIGILL, signal.SIGABRT, signal.SIGFPE, signal.SIGSEGV, signal.SIGBUS, signal.SIGSYS,
        signal.SIGTRAP, signal.SIGXCPU, signal.SIGXFSZ,
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class CorePlace:
    """The place of a core file: files that match `files`, or no place, for the reason `why`."""

    files: str = ""
    why: str = ""


def place(pattern: str, *, uses_pid: bool, limit: int, pid: int, folder: Path) -> CorePlace:
    """Return the place of a process's core file.

    `pattern`: the kernel's core_pattern. `limit`: the process's limit for core files in bytes. `folder`: its working
    folder.
    """
    pattern = pattern.strip()
    if pattern.startswith("|"):
        program = pattern[1:].split(maxsplit=1)[0] if pattern[1:].strip() else "a program"
        return CorePlace(
            why=f"the kernel gives it to {program} (process {pid}), see coredumpctl or that program's folder"
        )
    if limit == 0:
        return CorePlace(why="the limit for core files is 0, see ulimit -c")
    if not pattern:
        return CorePlace(why="the kernel's core_pattern is empty")
    has_pid = "%p" in pattern or "%P" in pattern
    name = re.sub(r"%(.?)", lambda match: _value(match[1], pid), glob.escape(pattern))
    if uses_pid and not has_pid:
        name += f".{pid}"
    return CorePlace(files=os.path.join(glob.escape(str(folder)), name))


def newest(files: str, since: float) -> Path | None:
    """Return the newest file that matches `files` and was written at `since` or later, in seconds since 1970."""
    candidates = []
    for name in glob.glob(files):
        path = Path(name)
        try:
            written = path.stat().st_mtime
        except OSError:
            continue  # removed since
        if path.is_file() and written >= since:
            candidates.append((written, path))
    return max(candidates)[1] if candidates else None


def of_process(pid: int, folder: Path, since: float) -> tuple[Path | None, str]:
    """Return the core file of a process that has ended, or None and the reason."""
    try:
        pattern = PATTERN.read_text(errors="replace")
        uses_pid = USES_PID.read_text().strip() != "0"
    except OSError as error:
        return None, f"cannot read the kernel's core_pattern: {error.strerror}"
    limit = resource.getrlimit(resource.RLIMIT_CORE)[0]  # executors inherit the limit of their supervisor
    where = place(pattern, uses_pid=uses_pid, limit=limit, pid=pid, folder=folder)
    if where.why:
        return None, where.why
    path = newest(where.files, since)
    return path, "" if path is not None else f"there is none at {where.files}"


def _value(specifier: str, pid: int) -> str:
    """Return the glob pattern for ``%`` and this letter in the name of a core file."""
    if specifier in ("p", "P", "i", "I"):
        return str(pid) if specifier in ("p", "P") else "*"
    return "%" if specifier == "%" else "*" if specifier else ""
