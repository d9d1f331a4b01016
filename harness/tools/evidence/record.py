"""The record of a run from the files of its run directory: read from bytes, as plain values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.backends.table import BACKENDS, backend_of
from harness.core.text import escape_invalid_xml
from harness.journal import environment, journal, reader
from harness.journal.events import Event, MergedShard, RunStarted, Waiver
from harness.journal.ledger import Ledger
from harness.journal.reader import JournalContents
from harness.reporting import junit
from harness.tools import conformance

#: One odd line makes the run no evidence, and more are only named. Each remark takes a hundred times its bytes if it is
#: a finding, since the reports that are checked show it.
_MOST = reader.Most(odd=1_000, remarks=10_000)
#: The most bytes of an environment file. That of a cluster run of 128 nodes has less than one MiB.
_MOST_ENVIRONMENT = 4 << 20
_ENVIRONMENT = re.compile(r"environment(-[1-9][0-9]*)?\.json")


@dataclass(frozen=True, slots=True)
class EvidenceRecord:
    """A run, from the bytes of its files.

    `environments`: the facts in each environment file, by file name. `unreadable`: environment files that hold none.
    `junit`: the bytes of the report; None if there is none. `conformance`: the bytes of a kept statement.
    """

    data: bytes
    contents: JournalContents
    ledger: Ledger
    environments: Mapping[str, Mapping[str, Any]]
    unreadable: tuple[str, ...]
    junit: bytes | None
    conformance: bytes | None = None

    @property
    def run(self) -> RunStarted:
        """The latest ``run`` line."""
        assert self.ledger.run is not None
        return self.ledger.run

    @property
    def runs(self) -> tuple[RunStarted, ...]:
        """The ``run`` lines: one for each part of the run."""
        return tuple(event for event in self.contents.events if isinstance(event, RunStarted))

    @property
    def shards(self) -> tuple[MergedShard, ...]:
        """The shards of a merged run."""
        return tuple(event for event in self.contents.events if isinstance(event, MergedShard))

    @property
    def waivers(self) -> tuple[Waiver, ...]:
        return tuple(event for event in self.contents.events if isinstance(event, Waiver))

    @property
    def environment(self) -> Mapping[str, Any]:
        """The facts of the last part; empty if its file is missing."""
        return self.environments.get(environment.FILE_NAME, {})

    @property
    def kind(self) -> str:
        """The kind of the run's devices; ``mixed`` for several kinds, ``unknown`` for an unknown kind."""
        kinds = {backend.kind if (backend := backend_of(uuid)) else "unknown" for uuid in self.run.devices}
        return kinds.pop() if len(kinds) == 1 else "mixed" if kinds else "unknown"

    def numbered(self) -> list[tuple[int, Event]]:
        """Return the events with their line numbers, from 1."""
        skipped = {line.number for line in self.contents.damaged} | {line.number for line in self.contents.unknown}
        numbers = [number for number, _ in reader.numbered_lines(self.data) if number not in skipped]
        return list(zip(numbers, self.contents.events, strict=True))


def is_read(name: str) -> bool:
    """Return whether `read_evidence_record` needs the file with this path in the run directory."""
    return (
        name in (journal.FILE_NAME, junit.FILE_NAME, conformance.FILE_NAME) or _ENVIRONMENT.fullmatch(name) is not None
    )


def read_evidence_record(files: Mapping[str, bytes], where: Path) -> EvidenceRecord:
    """Return the run in these files, by path in the run directory. `where` is only for error messages.

    Raise JournalError if the journal is not the journal of a run.
    """
    data = files[journal.FILE_NAME]
    contents = reader.parse_run_journal(where, data, _MOST)
    environments: dict[str, Mapping[str, Any]] = {}
    unreadable = []
    for name in sorted(filter(_ENVIRONMENT.fullmatch, files)):
        facts = _json(files[name]) if len(files[name]) <= _MOST_ENVIRONMENT else None
        if isinstance(facts, dict):
            environments[name] = facts
        else:
            unreadable.append(name)
    return EvidenceRecord(
        data,
        contents,
        Ledger.from_journal(contents),
        environments,
        tuple(unreadable),
        files.get(junit.FILE_NAME),
        files.get(conformance.FILE_NAME),
    )


def device_rows(facts: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Return the devices in the facts of an environment file by UUID, with kind and model as texts.

    The file may hold anything. The model is the name and, if known, the compute capability.
    """
    rows = {}
    for row in environment.devices_of(facts):
        name, capability = str(row.get("name")), row.get("compute_capability")
        model = f"{name} {capability}" if capability else name
        rows[str(row.get("uuid"))] = {"kind": str(row.get("kind")), "name": name, "model": model}
    return rows


def is_software(kind: str) -> bool:
    """Return whether devices of this kind are simulated or software devices."""
    return kind in BACKENDS and BACKENDS[kind].software


def is_gpu(kind: str) -> bool:
    return kind in BACKENDS and BACKENDS[kind].nvml


def mapping_or_empty(value: object) -> Mapping[str, Any]:
    """Return the value if it is a JSON object, otherwise an empty one."""
    return value if isinstance(value, dict) else {}


def optional_text(value: object) -> str | None:
    """Return the value if it is a text, without characters that cannot be written; otherwise None."""
    return escape_invalid_xml(value) if isinstance(value, str) else None


def _json(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
