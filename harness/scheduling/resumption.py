"""The state of a resumed run before its interruption. The controller writes it to a file, and each worker reads it.

Workers import this module, so it imports nothing heavy.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.core.errors import HarnessError, convert_to_write_error
from harness.core.outcome import Outcome
from harness.core.text import format_count, list_first

#: The file in the run's temporary folder.
FILE = "resumption.json"
_CHANGE = "list-of-cases-changed"


class ResumeError(HarnessError):
    """A run cannot be resumed."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The verdict of a case, as it is replayed. `phases`: seconds by name. `detail`: traceback or stacks."""

    outcome: Outcome
    message: str = ""
    detail: str = ""
    duration: float = 0.0
    phases: Mapping[str, float] = field(default_factory=dict)
    reproduce: str = ""


@dataclass(frozen=True, slots=True)
class Resumption:
    """The state of an interrupted run.

    - `finished`: the verdicts, by case. `attempts`: the number of earlier attempts at each other case.
    - `executors`: the highest executor number of each worker, so that names stay unique.
    - `ids`: all cases of the run. `findings`: kind and text of each finding, so that none is recorded twice.
    - `part`: the number of the part of the run that begins now, 2 for the first resumption.
    - `forced`: the run may continue with another list of cases.
    """

    finished: Mapping[str, Finished] = field(default_factory=dict)
    attempts: Mapping[str, int] = field(default_factory=dict)
    executors: Mapping[str, int] = field(default_factory=dict)
    ids: tuple[str, ...] = ()
    findings: frozenset[tuple[str, str]] = frozenset()
    part: int = 1
    forced: bool = False

    def difference(self, ids: Sequence[str]) -> str:
        """Return how the collected cases differ from those of the run; empty if they do not."""
        now, before = {*ids}, {*self.ids}
        new = [case for case in ids if case not in before]
        gone = [case for case in self.ids if case not in now]
        differences = [_changed(new, "new")] * bool(new) + [_changed(gone, "gone")] * bool(gone)
        return "; ".join(differences)

    def write(self, folder: Path) -> Path:
        """Write the file. Raise WriteError."""
        path = folder / FILE
        value = {**asdict(self), "findings": sorted(self.findings)}
        with convert_to_write_error(repr(str(path))):
            path.write_text(json.dumps(value), encoding="ascii")
        return path

    @classmethod
    def read(cls, path: Path) -> Resumption:
        value: dict[str, Any] = json.loads(path.read_text(encoding="ascii"))
        finished = {
            case: Finished(**{**entry, "outcome": Outcome(entry["outcome"])})
            for case, entry in value["finished"].items()
        }
        findings = frozenset((kind, text) for kind, text in value["findings"])
        return cls(**{**value, "finished": finished, "ids": tuple(value["ids"]), "findings": findings})


def _changed(ids: Sequence[str], how: str) -> str:
    return f"{format_count(len(ids), 'case is', 'cases are')} {how} ({list_first(ids)})"


def note_change(folder: Path, text: str) -> None:
    """Report a change of the list of cases to the controller. Raise WriteError."""
    path = folder / _CHANGE
    with convert_to_write_error(repr(str(path))):
        path.write_text(text, encoding="utf-8", errors="backslashreplace")


def noted_change(folder: Path) -> str:
    """Return how the list of cases has changed, as a worker reported it; empty if it has not."""
    try:
        return (folder / _CHANGE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
