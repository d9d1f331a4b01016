"""What the kernel and the C library tell of this process, a system call or two each: memory, threads, files."""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from harness import linux

_PAGE = os.sysconf("SC_PAGE_SIZE")
_STATM = "/proc/self/statm"
#: Folders that pytest keeps its `tmp_path` in, for the user to look into afterwards.
_PYTEST_FOLDER = "pytest-of-"
#: Entries of the folder for temporary files after which counting stops.
_MOST_FILES = 10_000
#: Nanoseconds, more than the step of the clock that files' times are taken from (10 ms at most): two changes within a
#: step have the same time, so a list made that soon after a change may lack the second.
_CLOCK_STEP = 50_000_000
#: torch's names of shared memory begin with the id of the process that made it.
_MAKER = re.compile(r"torch_(\d+)_")


class _MallocInfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc 2.33 and later. `hblkhd`: bytes in blocks mapped one by one; `uordblks`: others."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )
    arena: int
    hblkhd: int
    uordblks: int


# Another C library, or an older one, has none.
_mallinfo: Any = getattr(ctypes.CDLL(None), "mallinfo2", None)
if _mallinfo is not None:
    _mallinfo.restype = _MallocInfo


def read(blind: MutableMapping[str, str]) -> dict[str, int]:
    """Readings of memory, threads and descriptors; what cannot be read goes to `blind`, with the reason."""
    values = {
        "threads": len(os.listdir("/proc/self/task")),
        "descriptors": len(os.listdir("/proc/self/fd")),
    }
    in_malloc = 0
    if _mallinfo is None:
        blind["heap_bytes"] = "this c library has no mallinfo2"
    else:
        info = _mallinfo()
        values["heap_bytes"] = info.uordblks + info.hblkhd
        in_malloc = info.arena + info.hblkhd
    values["mapped_bytes"] = _address_space() - in_malloc
    return values


def resident() -> int:
    """Bytes of memory that this process has in use. The kernel counts them in batches, some 100 KiB for each core."""
    return _pages()[1] * _PAGE


def _address_space() -> int:
    return _pages()[0] * _PAGE


def _pages() -> list[int]:
    descriptor = os.open(_STATM, os.O_RDONLY)
    try:
        return [int(number) for number in os.read(descriptor, 256).split()]
    finally:
        os.close(descriptor)


class Files:
    """Counts the files that this process has made for itself: temporary ones, and shared memory.

    Everybody's shared memory lies in one folder: that of other workers and of other runs, too. A file there counts when
    it is new and this user's, and this process or a descendant has it open or mapped. A file that only other processes
    have does not count, nor does one that another living process has made by its name (torch's names tell). A file
    that nobody has open, and whose name tells nothing, was left behind: in doubt by us, since a doubt costs a
    repetition and no more.
    """

    def __init__(self, temp: Path, shm: Path) -> None:
        self._temp = temp
        self._shm = shm
        self._others = {(entry.name, entry.inode()) for entry in _entries(shm)}
        self._ours: set[tuple[str, int]] = set()
        #: The time of change of the folder of shared memory at which it had nothing of ours.
        self._nothing_at: int | None = None

    def read(self) -> dict[str, int]:
        """Readings of both folders."""
        values: dict[str, int] = {}
        values["shm_files"], values["shm_bytes"] = _weigh(self._shared_memory())
        values["temp_files"], values["temp_bytes"] = _weigh(self.temporary_files())
        return values

    def shared_memory(self) -> list[str]:
        """The names of the files of shared memory that count."""
        return sorted(entry.name for entry in self._shared_memory())

    def temporary_files(self) -> Iterator[os.DirEntry[str]]:
        """The entries of the folder for temporary files at any depth, without those of pytest's own folder."""
        folders = [self._temp]
        found = 0
        while folders and found < _MOST_FILES:
            folder = folders.pop()
            for entry in _entries(folder):
                if folder == self._temp and entry.name.startswith(_PYTEST_FOLDER):
                    continue
                found += 1
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))

    def _shared_memory(self) -> list[os.DirEntry[str]]:
        # Others may have left hundreds of files there, which to list takes longer than all other readings together.
        changed, now = _changed(self._shm), time.time_ns()
        if changed is not None and changed == self._nothing_at:
            return []
        kept = self._list_shared_memory()
        settled = changed is not None and now - changed > _CLOCK_STEP
        self._nothing_at = changed if settled and not kept else None
        return kept

    def _list_shared_memory(self) -> list[os.DirEntry[str]]:
        kept = []
        undecided = {}
        for entry in _entries(self._shm):
            key = (entry.name, entry.inode())
            if key in self._ours:
                kept.append(entry)
            elif key not in self._others:
                undecided[os.path.join(self._shm, entry.name)] = entry
        if undecided:
            kept += self._decide(undecided)
        return kept

    def _decide(self, undecided: Mapping[str, os.DirEntry[str]]) -> list[os.DirEntry[str]]:
        """Which of the new files, by path, are ours. Once for each file, since to ask all processes takes 30 ms."""
        me = os.getpid()
        claims: dict[int, set[str]] = {me: _held(me, undecided)}
        for path, entry in undecided.items():
            if match := _MAKER.match(entry.name):
                claims.setdefault(int(match[1]), set()).add(path)
        if len(claims[me]) < len(undecided):
            for process in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
                if process != me and (held := _held(process, undecided)):
                    claims.setdefault(process, set()).update(held)
        mine, claimed = set[str](), set[str]()
        for process, paths in claims.items():
            line = linux.ancestry(process)
            if me in line:
                mine |= paths
            elif line:  # what one that has ended has made, a child of ours may have
                claimed |= paths
        kept = []
        for path, entry in undecided.items():
            ours = path in mine or path not in claimed
            try:
                ours = ours and os.stat(path).st_uid == os.geteuid()
            except FileNotFoundError:
                continue  # short-lived, as semaphores are
            (self._ours if ours else self._others).add((entry.name, entry.inode()))
            if ours:
                kept.append(entry)
        return kept


def _held(process: int, paths: Iterable[str]) -> set[str]:
    """Which of `paths` a process has open or mapped; of a stranger's process that is not known and taken as none."""
    folder = f"/proc/{process}"
    try:
        with open(f"{folder}/maps", "rb") as file:
            mapped = file.read()
        opened = {_target(f"{folder}/fd/{number}") for number in os.listdir(f"{folder}/fd")}
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return set()
    return {path for path in paths if path in opened or os.fsencode(path) + b"\n" in mapped}


def _target(link: str) -> str:
    try:
        return os.readlink(link)
    except OSError:  # closed meanwhile
        return ""


def _changed(folder: Path) -> int | None:
    """When an entry was last made, renamed or removed in a folder, in ns since the epoch; None where it is gone."""
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return None


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """What is in a folder now; nothing, where it is gone or never was."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []


def _weigh(entries: Iterable[os.DirEntry[str]]) -> tuple[int, int]:
    """How many entries there are, and the bytes of those that are files."""
    count = size = 0
    for entry in entries:
        count += 1
        try:
            if entry.is_file(follow_symlinks=False):
                size += entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:  # removed meanwhile
            count -= 1
    return count, size
