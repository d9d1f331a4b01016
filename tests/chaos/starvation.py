"""Takes resources from processes of a run: descriptors, memory, further processes, and disk space."""

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
    """Keep the process from opening files from now on; open files stay open."""
    before = process.rlimit(psutil.RLIMIT_NOFILE)
    used = {int(name) for name in os.listdir(f"/proc/{process.pid}/fd")}
    lowest_free = next(number for number in range(len(used) + 1) if number not in used)
    return _limit(process, psutil.RLIMIT_NOFILE, lowest_free, before)


def take_memory(process: psutil.Process) -> Callable[[], None]:
    """Keep the process's address space from growing from now on."""
    before = process.rlimit(psutil.RLIMIT_AS)
    return _limit(process, psutil.RLIMIT_AS, process.memory_info().vms, before)


def _limit(process: psutil.Process, which: int, most: int, before: tuple[int, int]) -> Callable[[], None]:
    process.rlimit(which, (most, before[1]))  # the hard limit stays, so that this can be undone

    def give_back() -> None:
        try:
            process.rlimit(which, before)
        except psutil.NoSuchProcess:
            return

    return give_back


def prefer_for_oom_kill(process: psutil.Process) -> None:
    """Make the kernel prefer this process, and its later children, when it kills a process for memory."""
    with suppress(FileNotFoundError, ProcessLookupError):
        Path(f"/proc/{process.pid}/oom_score_adj").write_text("1000")


class Group:
    """A control group in which a run starts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def enter(self) -> None:
        """Move the calling process into the group."""
        (self._folder / "cgroup.procs").write_text(str(os.getpid()))

    def allow_processes(self, number: int | None) -> None:
        """Limit the number of processes; None removes the limit."""
        (self._folder / "pids.max").write_text("max" if number is None else str(number))

    def take_memory(self) -> None:
        """Limit the memory to the current use, or to less if the kernel can reclaim some.

        Has no effect if the use grows meanwhile, since the limit must not be below the use.
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
        """Remove the limit on memory."""
        self._allow_bytes(self._memory("-1", "max"))

    def killed_for_memory(self) -> int:
        """Return how many of the group's processes the kernel has killed for lack of memory."""
        events = (self._folder / self._memory("memory.oom_control", "memory.events")).read_text()
        return next(int(line.split()[1]) for line in events.splitlines() if line.startswith("oom_kill "))

    def _allow_bytes(self, text: str) -> None:
        (self._folder / self._memory("memory.limit_in_bytes", "memory.max")).write_text(text)

    def _memory(self, first: str, second: str) -> str:
        """Return `first` for version 1 of control groups, and `second` for version 2."""
        return first if (self._folder / "memory.limit_in_bytes").exists() else second


@contextmanager
def control_group(controller: str) -> Iterator[Group]:
    """Create a control group with a limit on ``pids`` or ``memory``; skip the test if that is impossible."""
    # Version 1 has a tree per controller, version 2 a single tree.
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
    """Mount a file system of this size at `folder`; skip the test if that is not permitted."""
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
