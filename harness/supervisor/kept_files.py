"""Moves the temporary files of red cases into the run directory, for the analysis of the failure."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harness.devices.capabilities import size

#: The folder in the run directory.
FOLDER = "files"
#: Bytes kept of one executor's files, and of those of all executors of one worker.
MOST_OF_EXECUTOR = 100 << 20
MOST_OF_WORKER = 1 << 30
_LISTED = 1000


def list_of_left_out(target: Path) -> Path:
    """Returns the path of the list of files that were not kept in `target`."""
    return target.with_name(f"{target.name}.left-out.txt")


def note(target: Path) -> str:
    """Returns one line with the place of the kept files."""
    more = list_of_left_out(target)
    return f"temporary files are kept in {target}" + (f", except for those named in {more}" if more.exists() else "")


def has_any(source: Path, left_out: Callable[[Path], bool]) -> bool:
    """Whether `keep` would move anything now: empty folders, and what is `left_out`, are not kept."""
    for folder, folders, files in os.walk(source):
        here = Path(folder)
        links = (name for name in folders if (here / name).is_symlink())
        if any(not left_out(here / name) for name in (*files, *links)):
            return True
    return False


def keep(source: Path, target: Path, most: int) -> int:
    """Move the files in `source` to `target`, up to `most` bytes; returns the bytes moved.

    Links are moved as links. Anything too large, unreadable or not a regular file is left out, and named in a list
    beside `target`. Raises OSError if that list cannot be written.
    """
    move = _Move(source, target, most)
    move.run()
    if move.left_out:
        target.parent.mkdir(parents=True, exist_ok=True)
        more = len(move.left_out) - _LISTED
        lines = [*move.left_out[:_LISTED], *([f"and {more} more"] if more > 0 else [])]
        list_of_left_out(target).write_text("\n".join([*lines, ""]), encoding="utf-8", errors="backslashreplace")
    return most - move.room


@dataclass
class _Move:
    source: Path
    target: Path
    room: int
    left_out: list[str] = field(default_factory=list)

    def run(self) -> None:
        for folder, folders, files in os.walk(self.source, onerror=self._leave_out_unreadable):
            here = Path(folder)
            links = [name for name in folders if (here / name).is_symlink()]
            folders[:] = sorted({*folders} - {*links})
            for name in sorted([*files, *links]):
                self._take(here / name)

    def _take(self, path: Path) -> None:
        try:
            status = path.lstat()
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
                self._leave_out(path, "not a regular file")
            elif status.st_size > self.room:
                self._leave_out(path, f"{size(status.st_size)}, more than may be kept")
            else:
                where = self.target / path.relative_to(self.source)
                where.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(path, where)
                self.room -= status.st_size
        except OSError as error:
            self._leave_out(path, error.strerror or str(error))

    def _leave_out(self, path: Path, why: str) -> None:
        self.left_out.append(f"{path.relative_to(self.source)}: {why}")

    def _leave_out_unreadable(self, error: OSError) -> None:
        self._leave_out(Path(error.filename), error.strerror or str(error))
