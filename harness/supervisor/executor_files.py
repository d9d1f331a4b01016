"""The files of executors in the run directory: those of red cases, and the caches of torch's compilers."""

from __future__ import annotations

import contextlib
import functools
import getpass
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from harness.checks.process_meters import INDUCTOR_FOLDER
from harness.core.text import format_bytes

#: The folder in the run directory.
KEPT = "files"
#: Bytes kept of one executor's files, and of those of all executors of one worker.
MOST_OF_EXECUTOR = 100 << 20
MOST_OF_WORKER = 1 << 30
_LISTED = 1000
#: The most levels of folders that are kept.
_DEEPEST = 100
#: Characters of a path in the list of files that were left out.
_SHOWN = 300


def list_of_left_out(target: Path) -> Path:
    """Return the path of the list of files that were not kept in `target`."""
    return target.with_name(f"{target.name}.left-out.txt")


def kept_files_note(target: Path) -> str:
    """Return one line with the place of the kept files."""
    more = list_of_left_out(target)
    return f"temporary files are kept in {target}" + (f", except for those named in {more}" if more.exists() else "")


def has_files_to_keep(source: Path, left_out: Callable[[Path], bool]) -> bool:
    """Return whether `keep_files` would move anything. Empty folders and files that are `left_out` are not moved."""
    return any(not left_out(path) for path in _files(source, lambda *_: None))


def keep_files(source: Path, target: Path, most: int) -> int:
    """Move the files in `source` to `target`, up to `most` bytes. Returns the bytes moved.

    Links are moved as links. Files that are too large, unreadable, too deep or not regular stay, and a list beside
    `target` names them. Raises OSError if that list cannot be written.
    """
    move = _Move(source, target, most)
    move.run()
    if move.left_out:
        target.parent.mkdir(parents=True, exist_ok=True)
        more = len(move.left_out) - _LISTED
        lines = [*move.left_out[:_LISTED], *([f"and {more} more"] if more > 0 else [])]
        list_of_left_out(target).write_text("\n".join([*lines, ""]), encoding="utf-8", errors="backslashreplace")
    return most - move.room


def _files(source: Path, leave_out: Callable[[Path, str], object]) -> Iterator[Path]:
    """Yield the paths in `source` that are not folders. Call `leave_out` with each folder that is skipped."""
    if source.is_symlink():  # made by a case; its target does not belong to the harness
        leave_out(source, "the folder was replaced by a link")
        return
    waiting = [(source, 0)]  # no recursion: a case may have made thousands of levels
    while waiting:
        folder, depth = waiting.pop()
        if depth > _DEEPEST:
            leave_out(folder, f"more than {_DEEPEST} folders deep")
            continue
        try:
            with os.scandir(folder) as scan:
                entries = sorted(scan, key=lambda entry: entry.name)
            folders = [folder / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError as error:  # unreadable, or its path is longer than the kernel allows
            leave_out(folder, error.strerror or str(error))
            continue
        yield from (path for entry in entries if (path := folder / entry.name) not in folders)
        waiting += [(inner, depth + 1) for inner in reversed(folders)]


@dataclass
class _Move:
    source: Path
    target: Path
    room: int
    left_out: list[str] = field(default_factory=list)

    def run(self) -> None:
        for path in _files(self.source, self._leave_out):
            self._take(path)

    def _take(self, path: Path) -> None:
        try:
            status = path.lstat()
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                self._leave_out(path, "not a regular file")
            elif status.st_size > self.room:
                self._leave_out(path, f"{format_bytes(status.st_size)}, more than may be kept")
            else:
                where = self.target / path.relative_to(self.source)
                where.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(path, where)
                self.room -= status.st_size
        except OSError as error:
            self._leave_out(path, error.strerror or str(error))

    def _leave_out(self, path: Path, why: str) -> None:
        name = str(path.relative_to(self.source))
        shown = name if len(name) <= _SHOWN else f"{name[: _SHOWN // 2]}…{name[-_SHOWN // 2 :]}"
        self.left_out.append(f"{shown}: {why}")


#: The folder of compiler caches, in the run directory; and that of precompiled headers, in the run's temporary folder.
COMPILER_CACHES = "compiler-caches"
_EXTENSIONS = "extensions"
_CACHES = {"TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton", "TORCH_EXTENSIONS_DIR": _EXTENSIONS}


def cache_variables(run_dir: Path, outer: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables of the caches: folders of the run, unless the environment `outer` sets them.

    By default the caches are in the folder for temporary files or in the user's home. An executor's temporary folder is
    removed, so nothing would stay compiled. With the home folder, a run would depend on earlier runs.
    """
    return {name: outer.get(name) or str(run_dir / COMPILER_CACHES / folder) for name, folder in _CACHES.items()}


def share_default_cache(temp: Path) -> None:
    """Make inductor's default folder in `temp`, an executor's folder for temporary files, a link to one beside `temp`.

    Inductor keeps precompiled headers in its default folder, whatever `TORCHINDUCTOR_CACHE_DIR` is (`_HEADER_DIR` of
    torch/_inductor/codecache.py). The headers are 150 MB, and take five seconds. Without the link each executor would
    compile them again.

    A killed compiler leaves an incomplete header. GCC marks a header as complete when it is written, and ignores an
    incomplete one (gcc/c-family/c-pch.cc), so later compilations succeed but take longer. Therefore the folder belongs
    to the run, and the user does not keep it.
    """
    if name := _default_name():
        shared = temp.parent / COMPILER_CACHES
        with contextlib.suppress(OSError):  # such as a full disk, which shows where it matters
            shared.mkdir(exist_ok=True)
            (temp / name).symlink_to(shared, target_is_directory=True)


def unshare_default_cache(temp: Path) -> None:
    """Remove the link that `share_default_cache` has made."""
    link = temp / _default_name()
    if link.is_symlink():
        link.unlink(missing_ok=True)


def is_shared_default_cache(path: Path) -> bool:
    """Return whether `path` is the link that `share_default_cache` has made."""
    return path.name == _default_name() and path.is_symlink()


@functools.cache
def _default_name() -> str:
    """Return the name of inductor's default folder (torch/_inductor/runtime/cache_dir_utils.py), "" if unknown."""
    try:
        return INDUCTOR_FOLDER + re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, ImportError, OSError):  # a user without a name
        return ""


def release_cache_locks(run_dir: Path) -> None:
    """Remove stale locks of builds of C++ extensions in the run's own folder.

    Torch's lock is a plain file. Other processes wait while the file exists: after a killed build, forever. A build
    keeps the file open from its creation, and closes it a moment before it removes the file. Therefore this checks
    twice for an open file.
    """
    locks = _identities((run_dir / COMPILER_CACHES / _EXTENSIONS).glob("**/lock"))
    for _ in range(2):
        if not locks:
            return
        held = _open_anywhere()
        locks = {path: seen for path, seen in _identities(locks).items() if seen == locks[path] and seen not in held}
    for path in locks:
        path.unlink(missing_ok=True)


def _identities(paths: Iterable[Path]) -> dict[Path, tuple[int, int]]:
    identities = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            identities[path] = status.st_dev, status.st_ino
    return identities


def _open_anywhere() -> set[tuple[int, int]]:
    """Return device and inode of every open file, of all processes that this one may inspect."""
    identities = set()
    for process in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            for entry in os.scandir(f"/proc/{process}/fd"):
                with contextlib.suppress(OSError):
                    status = entry.stat()
                    identities.add((status.st_dev, status.st_ino))
    return identities
