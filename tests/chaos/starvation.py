"""Takes from processes of a run what they need: descriptors, memory, further processes, room on a disk."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

_GROUPS = Path("/sys/fs/cgroup")
_NAME = f"chaos-{os.getpid()}"
_MIB = 1 << 20
_DEATH_LIMIT = 30.0  # seconds


def take_descriptors(process: psutil.Process) -> Callable[[], None]:
    """From here on it can open nothing; what it has open stays."""
    before = process.rlimit(psutil.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir(f"/proc/{process.pid}/fd")}
    lowest_free = next(number for number in range(len(used) + 1) if number not in used)
    return _limit(process, psutil.RLIMIT_NOFILE, lowest_free, before)


def take_memory(process: psutil.Process) -> Callable[[], None]:
    """From here on its address space does not grow."""
    before = process.rlimit(psutil.RLIMIT_AS)
    return _limit(process, psutil.RLIMIT_AS, process.memory_info().vms, before)


def _limit(process: psutil.Process, which: int, most: int, before: tuple[int, int]) -> Callable[[], None]:
    process.rlimit(which, (most, before[1]))  # the hard limit stays, so that this can be taken back

    def give_back() -> None:
        try:
            process.rlimit(which, before)
        except psutil.NoSuchProcess:
            return

    return give_back


def prefer_for_oom_kill(process: psutil.Process) -> None:
    """When the kernel has to kill a process for its memory, it kills this one first, and its later children."""
    with suppress(FileNotFoundError, ProcessLookupError):
        Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000")


class Group:
    """A control group that a run starts in."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def enter(self) -> None:
        """Move the calling process into it."""
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def allow_processes(self, number: int | None) -> None:
        """None for any number."""
        (self._folder / "pids.max").write_text("max" if number is None else str(number))

    def take_memory(self) -> None:
        """From here on it may use no more than now, or less where the kernel can take some back.

        Does nothing if it uses more meanwhile: the limit may not be less than what it uses.
        """
        used = int((self._folder / self._memory("memory.usage_in_bytes", "memory.current")).read_text())
        for limit in (used - _MIB, used):
            try:
                self._allow_bytes(str(limit))
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
            else:
                return

    def give_memory_back(self) -> None:
        """It may use any amount again."""
        self._allow_bytes(self._memory("-1", "max"))

    def killed_for_memory(self) -> int:
        """How many of its processes the kernel has killed because it had no memory left."""
        events = (self._folder / self._memory("memory.oom_control", "memory.events")).read_text()
        return next(int(line.split()[1]) for line in events.splitlines() if line.startswith("oom_kill "))

    def _allow_bytes(self, text: str) -> None:
        (self._folder / self._memory("memory.limit_in_bytes", "memory.max")).write_text(text)

    def _memory(self, first: str, second: str) -> str:
        """What version 1 of control groups, or version 2, calls something."""
        return first if (self._folder / "memory.limit_in_bytes").exists() else second


@contextmanager
def control_group(controller: str) -> Iterator[Group]:
    """A control group with a limit on ``pids`` or ``memory``; skips the test where none can be made."""
    # Version 1 has a tree for each controller, version 2 one for all.
    base = next((path for path in (_GROUPS / controller, _GROUPS) if (path / "cgroup.procs").exists()), None)
    if base is None:
        pytest.skip("there are no control groups, and a limit on processes says nothing to root")
    folder = base / _NAME
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        if not list(folder.glob(f"{controller}.*")):
            pytest.skip(f"the control group {str(folder)!r} has no limit on {controller}")
        yield Group(folder)
    finally:
        psutil.wait_procs([psutil.Process(int(pid)) for pid in _living(folder)], timeout=_DEATH_LIMIT)
        folder.rmdir()


def _living(group: Path) -> list[str]:
    return [pid for pid in (group / "cgroup.procs").read_text().split() if psutil.pid_exists(int(pid))]


@contextmanager
def small_disk(folder: Path, mebibytes: float) -> Iterator[Path]:
    """A file system of this size at `folder`; skips the test where none may be mounted."""
    if shutil.which("mount") is None:
        pytest.skip("there is no mount")
    folder.mkdir(parents=True)
    size = int(mebibytes * _MIB)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system may be mounted: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)
