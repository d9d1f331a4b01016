"""The hash of the files from which a run's cases are made. Equal hashes show that two runs had the same suites."""

from __future__ import annotations

import fnmatch
import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

_PYTHON = ".py"
#: Files that mark a folder as a virtual environment or a run directory, whose files belong to no suite.
_FOREIGN = ("pyvenv.cfg", "journal.ndjson")


def roots(arguments: Iterable[Path], suites: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the folders of suites that a run with these arguments reaches, and the arguments that are in none of them.

    `arguments` and `suites` are existing or missing files and folders. The second list may have folders, too.
    """
    wanted = [Path(os.path.realpath(path)) for path in arguments]
    folders = [Path(os.path.realpath(path)) for path in suites]
    reached = [folder for folder in folders if any(_touch(path, folder) for path in wanted)]
    return reached, [path for path in wanted if not any(_touch(path, folder) for folder in folders)]


def _touch(path: Path, folder: Path) -> bool:
    return path.is_relative_to(folder) or folder.is_relative_to(path)


def digest(base: Path, suites: Iterable[Path], others: Iterable[Path], skipped: Sequence[str] = ()) -> str:
    """Return ``sha256:`` and the hex digest of the names and contents of files.

    The files are all files below `suites`, and Python files of `others`. For a single file in `others`, the Python
    files beside it count as well, since they are its conftest and its helpers. Names are relative to `base`. Hidden
    files, caches, virtual environments, run directories, and folders whose name matches one of the patterns `skipped`
    do not count.
    """
    paths = {path for folder in suites for path in _below(folder, skipped)}
    for path in others:
        files = _below(path, skipped) if path.is_dir() else path.parent.glob(f"*{_PYTHON}")
        paths |= {file for file in files if file.suffix == _PYTHON}
    names = sorted((os.path.relpath(path, os.path.realpath(base)).replace(os.sep, "/"), path) for path in paths)
    whole = hashlib.sha256()
    for name, path in names:
        content = _content(path)
        if content is not None:
            whole.update(os.fsencode(name) + b"\0" + hashlib.sha256(content).digest())
    return f"sha256:{whole.hexdigest()}"


def _below(folder: Path, skipped: Sequence[str]) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        if parent != str(folder) and any(name in files for name in _FOREIGN):
            folders.clear()
            continue
        folders[:] = [name for name in folders if not _is_skipped(name, skipped)]
        yield from (Path(parent, name) for name in files if not name.startswith("."))


def _is_skipped(name: str, patterns: Sequence[str]) -> bool:
    return name == "__pycache__" or name.startswith(".") or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _content(path: Path) -> bytes | None:
    """Return the content of a regular file; None for everything else, and for unreadable files."""
    try:
        return path.read_bytes() if path.is_file() else None
    except OSError:
        return None
