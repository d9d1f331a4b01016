"""Find the runs in what a command line names: run directories, folders of them, evidence archives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.tools.matrix.folders import find_runs


@dataclass(frozen=True, slots=True)
class FoundPaths:
    """Paths of runs, each once. `notes`: sentences about what was left out."""

    paths: tuple[Path, ...]
    notes: tuple[str, ...] = ()


def find(given: Sequence[Path]) -> FoundPaths:
    """Return the runs. A regular file is an evidence archive. Raise NoRunError for a folder without a run."""
    archives = [path for path in given if path.is_file()]
    folders = [path for path in given if path not in archives]
    found = find_runs(folders)
    return FoundPaths((*found.runs, *dict.fromkeys(archives)), found.notes)
