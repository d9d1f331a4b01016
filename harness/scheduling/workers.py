"""The workers of xdist: their number with ``-n auto``, and the files by which they and the controller share facts.

Workers import this module, so it imports nothing heavy.
"""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import msgspec

from harness.core.atomic import write_atomically
from harness.core.errors import HarnessError
from harness.core.outcome import Outcome
from harness.core.text import format_count, list_first

#: Estimated memory of a CPU worker, in bytes: torch, the collected cases, and the allocations of a case.
WORKER_MEMORY = 1 << 30


def worker_count(gpus: int, cores: int, memory: int, *, software: int = 0, slots: int = 1) -> int:
    """Return one worker per slot of a GPU; more than one per GPU only if `memory` (bytes) allows 1 GiB each.

    Without a GPU, return one per core, limited by `memory` in the same way; at least one. On software devices, return
    one per device, but at most one per core, because they compute on the cores.
    """
    if gpus:
        return max(gpus, min(gpus * slots, memory // WORKER_MEMORY))
    if software:
        return max(1, min(software, cores))
    return max(1, min(cores, memory // WORKER_MEMORY))


def usable_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0))


def available_memory() -> int:
    """Return the bytes that this process may still use: the machine's free memory, or less under a cgroup limit."""
    import psutil

    available = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):
        return available
    return available if limit == "max" else min(available, max(0, int(limit) - used))


# The cases handed out to each xdist worker, in order, as positions in the list of the run.
#
# xdist tells a worker only its next case. Cases begin early, so a worker must know more of them.

_FOLDER = "handed-out"
#: The entry after the last case.
_END = -1


class HandedOut:
    """The writing end, in the controller. It writes before xdist notifies the worker."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / _FOLDER
        self._broken: set[str] = set()

    def add(self, worker: str, positions: Sequence[int]) -> None:
        """Add the next cases of a worker."""
        self._append(worker, positions)

    def end(self, worker: str) -> None:
        """Mark that a worker gets no more cases."""
        self._append(worker, [_END])

    def _append(self, worker: str, positions: Sequence[int]) -> None:
        if worker in self._broken:
            return
        try:
            self._folder.mkdir(exist_ok=True)
            with (self._folder / worker).open("ab") as file:
                file.write(array("q", positions).tobytes())
        except OSError:
            # From here on, its cases do not begin early. A file with a gap would have another order than the worker's.
            self._broken.add(worker)


class HandedOutList:
    """The reading end, in a worker."""

    def __init__(self, folder: Path, worker: str) -> None:
        self._path = folder / _FOLDER / worker
        self._descriptor = -1
        self._rest = b""
        #: Whether the worker gets no further cases.
        self.ended = False
        self.positions: list[int] = []

    def refresh(self) -> None:
        """Read new entries. The list stays empty if another scheduler hands out cases."""
        try:
            if self._descriptor < 0:
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            data = self._rest + os.read(self._descriptor, 1 << 20)
        except OSError:
            return
        entries = array("q")
        whole = len(data) - len(data) % entries.itemsize
        entries.frombytes(data[:whole])
        self._rest = data[whole:]
        self.ended = self.ended or _END in entries
        self.positions += [position for position in entries if position != _END]

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


_FACTS = "case-facts.json"


@dataclass(frozen=True, slots=True)
class CaseFacts:
    """Facts about cases, by id, for the controller, which has no items. The first worker that collects writes them.

    - `limits`: seconds, for each case with its own time limit.
    - `devices`: the number of devices, for each case that takes several, or that takes one alone although several cases
      may share it.
    - `apart`: the cases that run in their own process.
    - `gated`: why a case cannot run on this node, for a session of a cluster run.
    """

    limits: Mapping[str, float] = field(default_factory=dict)
    devices: Mapping[str, int] = field(default_factory=dict)
    apart: Sequence[str] = ()
    gated: Mapping[str, str] = field(default_factory=dict)

    @staticmethod
    def are_written(folder: Path) -> bool:
        """Return whether a worker has written the facts."""
        return (folder / _FACTS).exists()

    @classmethod
    def read(cls, folder: Path) -> CaseFacts:
        """Return the facts that a worker has written; empty facts if none has."""
        try:
            fields = json.loads((folder / _FACTS).read_text(encoding="ascii"))
        except FileNotFoundError:
            return cls()
        return cls(**fields)

    def write(self, folder: Path) -> None:
        """Write the facts. Raise WriteError."""
        write_atomically(folder / _FACTS, json.dumps(asdict(self)).encode("ascii"))


#: The file in the run's temporary folder.
RESUMPTION_FILE = "resumption.json"
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
        return write_atomically(folder / RESUMPTION_FILE, json.dumps(asdict(self), default=sorted).encode("ascii"))

    @classmethod
    def read(cls, path: Path) -> Resumption:
        return msgspec.convert(json.loads(path.read_text(encoding="ascii")), cls)


def _changed(ids: Sequence[str], how: str) -> str:
    return f"{format_count(len(ids), 'case is', 'cases are')} {how} ({list_first(ids)})"


def note_change(folder: Path, text: str) -> None:
    """Report a change of the list of cases to the controller. Raise WriteError."""
    write_atomically(folder / _CHANGE, text.encode(errors="backslashreplace"))


def noted_change(folder: Path) -> str:
    """Return how the list of cases has changed, as a worker reported it; empty if it has not."""
    try:
        return (folder / _CHANGE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
