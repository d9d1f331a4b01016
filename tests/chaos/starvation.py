"""Takes from processes of a run what they need: descriptors, memory, further processes, room on a disk."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

_GROUPS = Path("/sys/fs/cgroup")
_NAME = f"chaos-{os.getpid()}"
_MIB = 1 << 20


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


class Group:
    """A control group that a run starts in."""

    def __init__(self, folder: Path, limit: str) -> None:
        self._folder = folder
        self._limit = limit

    def enter(self) -> None:
        """Move the calling process into it."""
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def allow(self, amount: int | None) -> None:
        """Processes or bytes, as the group limits; None for any number."""
        (self._folder / self._limit).write_text("max" if amount is None else str(amount))

    def used(self) -> int:
        """How many processes are in it."""
        return int((self._folder / "pids.current").read_text())


@contextmanager
def process_group_limit() -> Iterator[Group]:
    """A control group in which the number of processes can be limited; skips the test where none can be made."""
    # Version 1 has a tree for each controller, version 2 one for all.
    base = next((path for path in (_GROUPS / "pids", _GROUPS) if (path / "cgroup.procs").exists()), None)
    if base is None:
        pytest.skip("there are no control groups, and a limit on processes says nothing to root")
    folder = base / _NAME
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made: {error}")
    try:
        if not (folder / "pids.max").exists():
            pytest.skip(f"the control group {str(folder)!r} has no limit on processes")
        yield Group(folder, "pids.max")
    finally:
        folder.rmdir()


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
