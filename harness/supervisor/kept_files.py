"""Moves the temporary files of red cases into the run directory, for the analysis of the failure."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from harness.core.text import format_bytes

#: The folder in the run directory.
FOLDER = "files"
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


def note(target: Path) -> str:
    """Return one line with the place of the kept files."""
    more = list_of_left_out(target)
    return f"temporary files are kept in {target}" + (f", except for those named in {more}" if more.exists() else "")


def has_any(source: Path, left_out: Callable[[Path], bool]) -> bool:
    """Return whether `keep` would move anything now. Empty folders and files that are `left_out` are not moved."""
    return any(not left_out(path) for path in _files(source, lambda *_: None))


def keep(source: Path, target: Path, most: int) -> int:
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
