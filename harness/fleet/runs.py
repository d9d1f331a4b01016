"""Finds the runs that a command line names: run directories, folders of them, evidence archives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.text import format_count
from harness.fleet.folders import NoRunError, find_runs
from harness.journal.journal import FILE_NAME


@dataclass(frozen=True, slots=True)
class FoundPaths:
    """Paths of runs, each once. `notes`: sentences about paths that were left out."""

    paths: tuple[Path, ...]
    notes: tuple[str, ...] = ()


def find(given: Sequence[Path]) -> FoundPaths:
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
    if len(parents) > 2 and parents[1].name == "nodes" and (parents[2] / FILE_NAME).exists():
        return parents[2]
    return None
