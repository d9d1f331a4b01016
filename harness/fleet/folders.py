"""Find the runs that a command line names: run directories, folders of them, evidence archives."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import HarnessError
from harness.core.text import escape_invalid_xml, format_count, list_first
from harness.journal import journal

#: Levels of subfolders that are searched for run directories: from a checkout, ``matrix-results/NIGHT/RUN/PART`` of
#: `ci/slurm/nightly.sbatch`.
LEVELS = 4


class NoRunError(HarnessError):
    """A given path is neither a run directory nor a folder of run directories."""


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """Run directories without duplicates, in the order of their paths.

    A matrix must not depend on the order of arguments. `notes`: sentences about folders that were left out.
    """

    runs: tuple[Path, ...]
    notes: tuple[str, ...] = ()


def find_runs(given: Sequence[Path]) -> FoundRuns:
    """Return the run directories among `given`, and those in folders up to `LEVELS` levels below.

    Symbolic links below the given folders are not followed: they may lead anywhere. Raise NoRunError.
    """
    runs: dict[str, Path] = {}
    links: list[str] = []
    twice = 0
    for folder in given:
        below = [folder] if _has_journal(folder) else list(_below(folder, LEVELS, links))
        if not below:
            raise NoRunError(_reason(folder))
        for path in below:
            real = os.path.realpath(path)
            twice += real in runs
            runs.setdefault(real, path)
    return FoundRuns(tuple(path for _, path in sorted(runs.items())), tuple(_notes(links, twice)))


def _has_journal(folder: Path) -> bool:
    return os.path.lexists(folder / journal.FILE_NAME)


def _reason(folder: Path) -> str:
    if not folder.exists():
        return f"there is no folder {str(folder)!r}: give run directories, or folders of run directories"
    if not folder.is_dir():
        return f"{str(folder)!r} is not a folder: give run directories, or folders of run directories"
    where = f"in it, or in folders up to {LEVELS} levels below"
    return f"there is no run in {str(folder)!r}: expected {journal.FILE_NAME} {where}; give another folder"


def _below(folder: Path, levels: int, links: list[str]) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: entry.name)
    except (NotADirectoryError, FileNotFoundError):
        return
    except OSError as error:
        raise NoRunError(f"cannot list the folder {str(folder)!r}: {error.strerror}; make it readable") from None
    for entry in listed:
        path = folder / entry.name
        if entry.is_symlink():
            links.append(entry.name)
        elif entry.is_dir():
            if _has_journal(path):
                yield path
            elif levels > 1:
                yield from _below(path, levels - 1, links)


def _notes(links: Sequence[str], twice: int) -> Iterable[str]:
    if links:
        names = list_first([escape_invalid_xml(name) for name in sorted(links)])
        yield f"{format_count(len(links), 'symbolic link was', 'symbolic links were')} not followed: {names}"
    if twice:
        yield f"run directories that were given twice and count once: {twice}"


def is_plain(path: Path) -> bool:
    """Return whether the path is a regular file and not a symbolic link."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


@dataclass(frozen=True, slots=True)
class FoundPaths:
    """Paths of runs, each once. `notes`: sentences about paths that were left out."""

    paths: tuple[Path, ...]
    notes: tuple[str, ...] = ()


def find_runs_and_archives(given: Sequence[Path]) -> FoundPaths:
    """Return the runs. A regular file is an evidence archive. Raise NoRunError for a folder without a run.

    The sessions of the nodes of a cluster run are left out, since each has only a part of the results, and the run has
    all.
    """
    archives = [path for path in given if path.is_file()]
    folders = [path for path in given if path not in archives]
    listing = find_runs(folders)
    whole = {path: _cluster_run(path) for path in listing.runs}
    runs = [path for path, run in whole.items() if run is None]
    notes = list(listing.notes)
    for run in dict.fromkeys(filter(None, whole.values())):
        sessions = format_count(sum(cluster == run for cluster in whole.values()), "session")
        notes.append(f"left out {sessions} of nodes of {str(run)!r}, which has their results")
    if not runs and not archives and notes:
        raise NoRunError(f"{notes[-1]}: give that folder")
    return FoundPaths((*runs, *dict.fromkeys(archives)), tuple(notes))


def _cluster_run(path: Path) -> Path | None:
    """Return the cluster run to which a node's session belongs. The session is in ``nodes/NODE/N`` of that run."""
    parents = path.resolve().parents
    if len(parents) > 2 and parents[1].name == "nodes" and (parents[2] / journal.FILE_NAME).exists():
        return parents[2]
    return None
