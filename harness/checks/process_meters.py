"""Readings of this process from the kernel and the C library: memory, threads, files; one or two system calls each."""

from __future__ import annotations

import ctypes
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from harness.checks.process import describe_leftover
from harness.core import linux

# The free space in the arenas of Python's allocator, from which small objects come.
#
# Python maps arenas of 1 MiB, and unmaps an arena when all of it is free. A case that briefly needs 10 MiB of small
# objects, and keeps three of them, pins up to three arenas in each run until the pinned arenas hold 10 MiB. The address
# space grows by some MiB in each of these runs, although Python can reuse all of it. The meter ``python_blocks`` counts
# the small objects that are kept.

#: Bytes of an arena in 64-bit builds of CPython since 3.10.
ARENA = 1 << 20
#: Bytes of an object, and its bytes after the header. Arenas serve at most 512 bytes, including those that Python's
#: debug mode adds.
_OBJECT, _CONTENT = 448, 448 - 33
#: The search for free space ends here. These objects are made in 10 ms.
_MOST_OF_ARENAS = 64 << 20
#: Objects between two readings of the address space.
_STEP = 256


def room_in_arenas(mapped: Callable[[], int]) -> int:
    """Return how many bytes of objects fit into the existing arenas, at most 64 MiB.

    `mapped` returns the bytes of address space. Objects are made until the address space grows, and then freed.
    """
    # Allocate all places before measuring, in lists that malloc takes from its heap.
    held: list[list[bytes | None]] = [[None] * _STEP for _ in range(_MOST_OF_ARENAS // _OBJECT // _STEP)]
    before = mapped()
    for number, places in enumerate(held):
        for place in range(_STEP):
            places[place] = bytes(_CONTENT)
        if mapped() > before:
            return number * _STEP * _OBJECT
    return _MOST_OF_ARENAS


class PinnedArenas:
    """The arenas that became free for reuse since this object was made."""

    def __init__(self, mapped: Callable[[], int]) -> None:
        self._mapped = mapped
        self._has_arenas = not os.environ.get("PYTHONMALLOC", "").startswith("malloc")
        self._room = room_in_arenas(mapped) if self._has_arenas else 0
        self._seen = mapped()
        self._bytes = 0

    def size(self) -> int:
        """Return the bytes of these arenas. They are measured again if the address space has grown."""
        mapped = self._mapped()
        if mapped > self._seen and self._has_arenas:
            # Kept objects occupy some pools of each arena: two thirds of the arena are free.
            gained = max(0, room_in_arenas(self._mapped) - self._room)
            self._bytes = math.ceil(gained * 1.5 / ARENA) * ARENA
        self._seen = mapped
        return self._bytes


_PAGE = os.sysconf("SC_PAGE_SIZE")
_THREADS = "/proc/self/task"
_DESCRIPTORS = "/proc/self/fd"
#: Whether the kernel reports the number without a listing, which is slower. It does so for descriptors since Linux 6.2.
#: Without /proc the run does not start (`harness.controller.preparation`), but the import of this module must not fail.
_THREADS_BY_LINKS = os.path.isdir(_THREADS) and os.stat(_THREADS).st_nlink - 2 == len(os.listdir(_THREADS))
_DESCRIPTORS_BY_SIZE = os.path.isdir(_DESCRIPTORS) and (
    os.stat(_DESCRIPTORS).st_size == len(os.listdir(_DESCRIPTORS)) - 1
)
_STATM = "/proc/self/statm"
#: The start of the names of folders in which pytest keeps `tmp_path` for the user.
_PYTEST_FOLDER = "pytest-of-"
#: The start of the name of inductor's default folder. The harness creates a link of that name.
INDUCTOR_FOLDER = "torchinductor_"
#: The start of the names of the folders in shared memory that joblib creates, one per parallel call. joblib removes
#: them at the end of the process. Files in them count.
_JOBLIB_FOLDER = "joblib_memmapping_folder_"
#: The most entries of the folder for temporary files that are counted.
_MOST_FILES = 10_000
#: Nanoseconds, more than the resolution of file times (10 ms at most). Two changes within one step have the same time,
#: so a listing within one step after a change may miss a second change.
_CLOCK_STEP = 50_000_000
#: torch's names of shared memory contain the id of the process that created it.
_MAKER = re.compile(r"torch_(\d+)_")
#: NVIDIA's driver keeps a file with such a name, of 80 KiB, for each process that uses CUDA. The name contains the user
#: and the process.
_OF_THE_DRIVER = re.compile(r"cuda\.shm\.[0-9a-f]+\.[0-9a-f]+\.[0-9a-f]+")


class _MallocInfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc 2.33 and later. `hblkhd`: bytes in separately mapped blocks; `uordblks`: others."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )
    arena: int
    hblkhd: int
    uordblks: int


# Missing in other C libraries and in older versions of glibc.
_mallinfo: Any = getattr(ctypes.CDLL(None), "mallinfo2", None)
if _mallinfo is not None:
    _mallinfo.restype = _MallocInfo


def read_process_meters(blind: MutableMapping[str, str]) -> dict[str, int]:
    """Return readings of memory, threads and descriptors. Add each failed reading to `blind`, with the reason."""
    values = {
        "children": len(running_children()),
        "threads": _count_threads(),
        "descriptors": _count_descriptors(),
    }
    in_malloc = 0
    if _mallinfo is None:
        blind["heap_bytes"] = "the C library has no mallinfo2"
    else:
        info = _mallinfo()
        values["heap_bytes"] = info.uordblks + info.hblkhd
        in_malloc = info.arena + info.hblkhd
    values["mapped_bytes"] = address_space() - in_malloc
    return values


def running_children() -> list[tuple[int, str]]:
    """Return process id and command line of each child that runs, without the helpers that libraries keep."""
    if not linux.has_children():
        return []
    described = [(pid, linux.describe_process(pid)) for pid in linux.child_pids()]
    return [
        (pid, found.command)
        for pid, found in described
        if found is not None and describe_leftover(found, pid, "") is not None
    ]


def _count_threads() -> int:
    if _THREADS_BY_LINKS:
        return os.stat(_THREADS).st_nlink - 2  # each thread is a subfolder, which adds a link to the folder
    return len(os.listdir(_THREADS))


def _count_descriptors() -> int:
    if _DESCRIPTORS_BY_SIZE:
        return os.stat(_DESCRIPTORS).st_size
    return len(os.listdir(_DESCRIPTORS)) - 1  # without the descriptor of the listing


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes. The kernel updates it in steps of some 100 KiB per core."""
    return _pages()[1] * _PAGE


def address_space() -> int:
    """Return the bytes of address space of this process."""
    return _pages()[0] * _PAGE


def _pages() -> list[int]:
    descriptor = os.open(_STATM, os.O_RDONLY)
    try:
        return [int(number) for number in os.read(descriptor, 256).split()]
    finally:
        os.close(descriptor)


class FileMeters:
    """Counts the files that this process has created: temporary files and shared memory.

    Shared memory of all processes is in one folder, including that of other workers and other runs. A file there counts
    if it is new, belongs to this user, and is open or mapped in this process or a descendant. A file does not count if
    only other processes have it open, or if another living process created it, according to its name (torch's names
    contain the pid). A file that no process has open, and whose name has no pid, counts too: if another process created
    it, the only cost is repetitions of one case (`shared_memory_turn` in `harness.supervisor.leak_confirmation`). A
    file that the driver makes for a process does not count: it stays if the process is killed.
    """

    def __init__(self, temp: Path, shm: Path) -> None:
        self._temp = temp
        self._temp_path, self._shm_path = str(temp), str(shm)
        self._shm = shm
        self._others = {(entry.name, entry.inode()) for entry in _entries(shm)}
        self._ours: set[tuple[str, int]] = set()
        #: By folder, its modification time when it had no file of this process.
        self._nothing_at: dict[str, int] = {}

    def read(self) -> dict[str, int]:
        """Return the readings of both folders."""
        values: dict[str, int] = {}
        # Other processes may have left hundreds of files there. Listing them takes longer than all other readings.
        values["shm_files"], values["shm_bytes"] = self._if_changed(
            self._shm_path, lambda: _weigh(self._list_shared_memory())
        )
        values["temp_files"], values["temp_bytes"] = self._if_changed(
            self._temp_path, lambda: _weigh(self.temporary_files())
        )
        return values

    def shared_memory(self) -> list[str]:
        """Return the names of the shared memory files that count."""
        return sorted(entry.name for entry in self._list_shared_memory())

    def temporary_files(self) -> Iterator[os.DirEntry[str]]:
        """Yield the entries of the temporary folder at any depth, except pytest's folder and inductor's link."""
        folders = [self._temp]
        count = 0
        while folders and count < _MOST_FILES:
            folder = folders.pop()
            for entry in _entries(folder):
                if folder == self._temp and entry.name.startswith(_PYTEST_FOLDER):
                    continue
                if folder == self._temp and entry.name.startswith(INDUCTOR_FOLDER) and entry.is_symlink():
                    continue
                count += 1
                yield entry
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))

    def _if_changed(self, folder: str, weigh: Callable[[], tuple[int, int]]) -> tuple[int, int]:
        """Return number and bytes of the files that count in `folder`.

        The folder is listed again only if some of its files counted or it has changed.
        """
        changed = _changed(folder)
        if changed is not None and changed == self._nothing_at.get(folder):
            return 0, 0
        now = time.time_ns()
        count, size = weigh()
        self._nothing_at.pop(folder, None)
        if changed is not None and now - changed > _CLOCK_STEP and not count:
            self._nothing_at[folder] = changed
        return count, size

    def _list_shared_memory(self) -> list[os.DirEntry[str]]:
        kept = []
        undecided = {}
        for entry in _entries(self._shm):
            if entry.name.startswith(_JOBLIB_FOLDER) and not _entries(Path(entry.path)):
                continue
            if _OF_THE_DRIVER.fullmatch(entry.name):
                continue
            key = (entry.name, entry.inode())
            if key in self._ours:
                kept.append(entry)
            elif key not in self._others:
                undecided[os.path.join(self._shm, entry.name)] = entry
        if undecided:
            kept += self._decide(undecided)
        return kept

    def _decide(self, undecided: Mapping[str, os.DirEntry[str]]) -> list[os.DirEntry[str]]:
        """Return those of the new files, by path, that count.

        This decides once per file: a scan of all processes takes 30 ms.
        """
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
            line = linux.ancestor_pids(process)
            if me in line:
                mine |= paths
            elif line:  # a process that has ended may have been a child of this one, so its files count
                claimed |= paths
        kept = []
        for path, entry in undecided.items():
            ours = path in mine or path not in claimed
            try:
                ours = ours and os.stat(path).st_uid == os.geteuid()
            except FileNotFoundError:
                continue  # removed since, as semaphores are
            (self._ours if ours else self._others).add((entry.name, entry.inode()))
            if ours:
                kept.append(entry)
        return kept


def _held(process: int, paths: Iterable[str]) -> set[str]:
    """Return those of `paths` that a process has open or mapped; none for another user's process."""
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
    except OSError:  # closed since
        return ""


def _changed(folder: str) -> int | None:
    """Return when an entry was last created, renamed or removed in a folder, in ns; None if the folder is gone."""
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return None


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return the current entries of a folder; none if it does not exist or is unreadable."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:  # the folder is missing, or its path is longer than the kernel allows
        return []


def _weigh(entries: Iterable[os.DirEntry[str]]) -> tuple[int, int]:
    """Return the number of entries, and the total bytes of the files among them."""
    count = size = 0
    for entry in entries:
        count += 1
        try:
            if entry.is_file(follow_symlinks=False):
                size += entry.stat(follow_symlinks=False).st_size
        except OSError:  # removed since
            count -= 1
    return count, size
