"""Makes a run directory of the JUnit files of another tool, so that reports and comparisons show its results.

The journal states that the results were imported, and from which files. The harness ran nothing, so there is no
isolation, no seed and no command that reproduces a case.
"""

from __future__ import annotations

import secrets
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgspec

from harness.core.atomic import open_atomically
from harness.core.caseid import digest_of_ids
from harness.core.errors import HarnessError, convert_to_write_error
from harness.core.outcome import EXIT_RED, Outcome, run_exit_status
from harness.core.secrets import mask_command
from harness.core.text import escape_invalid_xml, format_count, list_first, single_line
from harness.fleet.junit_reading import JUnitCase, JUnitFile
from harness.journal import environment, journal
from harness.journal.events import (
    LATEST_BEGIN,
    MOST_SECONDS,
    SCHEMA,
    Collected,
    End,
    Event,
    Finding,
    Finish,
    Imported,
    ImportedFile,
    RunStarted,
)
from harness.journal.journal import encode_line

_IN_MEMORY = 8 << 20
_MOST_LABEL = 200


class ImportingError(HarnessError):
    """Results cannot be imported as requested."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The request for an import. `tool`: the name of the tool or suite. `device`: the name of its device, or empty.

    `argv`: the command line, program first.
    """

    files: Sequence[Path]
    tool: str
    device: str
    argv: Sequence[str]


@dataclass(frozen=True, slots=True)
class ImportedResult:
    """The result of an import. `numbered`: how many cases had the id of an earlier case and got a number."""

    counts: Mapping[Outcome, int]
    numbered: int
    findings: tuple[str, ...]

    @property
    def text(self) -> str:
        """The result as one line for people."""
        counts = ", ".join(f"{number} {outcome}" for outcome, number in self.counts.items())
        numbered = (
            f"; {format_count(self.numbered, 'case')} had the id of another and got a number" if self.numbered else ""
        )
        findings = f"; {format_count(len(self.findings), 'finding')}" if self.findings else ""
        return f"{format_count(sum(self.counts.values()), 'case')}: {counts}{numbered}{findings}"


class Ids:
    """Gives each case an id: ``TOOL/GROUP::NAME``. A second case of the same name gets `` #2``, and so on."""

    def __init__(self, tool: str) -> None:
        self._tool = tool
        self._given: dict[str, int] = {}
        self.numbered = 0

    @property
    def all(self) -> list[str]:
        """Every id, in order."""
        return list(self._given)

    def of(self, case: JUnitCase) -> str:
        """Return the id of the next case."""
        name = f"{self._tool}/{case.group}::{case.name}" if case.group else f"{self._tool}::{case.name}"
        unique = name
        if name in self._given:
            self.numbered += 1
        while unique in self._given:
            self._given[name] += 1
            unique = f"{name} #{self._given[name]}"
        self._given[unique] = 1
        return unique


def write(wanted: Wanted, out: Path) -> ImportedResult:
    """Write the journal and environment.json of a new run directory. Write nothing if a file cannot be imported.

    Raises JUnitError, ImportingError, WriteError.
    """
    tool = _checked(wanted.tool, "--name")
    if "/" in tool or "::" in tool:
        raise ImportingError(f"--name={tool!r} cannot begin the ids of cases: expected a name without '/' and '::'")
    label = _checked(wanted.device, "--device") if wanted.device else ""
    path = out / journal.FILE_NAME
    if path.exists():
        raise ImportingError(f"{str(out)!r} already contains a run: name another folder")
    with tempfile.SpooledTemporaryFile(_IN_MEMORY) as spool:
        reading = _Found(tool, label, spool)
        for file in wanted.files:
            reading.add(JUnitFile(file))
        with convert_to_write_error(f"the folder {str(out)!r}"):
            out.mkdir(parents=True, exist_ok=True)
        environment.write_environment(out, reading.environment(wanted.argv))
        with open_atomically(path) as written:
            written.write(reading.head(wanted.argv))
            spool.seek(0)
            while block := spool.read(1 << 20):
                written.write(block)
            written.write(reading.tail())
    counts = {outcome: reading.counts[outcome] for outcome in Outcome if reading.counts[outcome]}
    return ImportedResult(counts, reading.ids.numbered, tuple(reading.findings))


class _Found:
    """The cases of all files. Their lines go to `spool`, since the lines before them are only known at the end."""

    def __init__(self, tool: str, label: str, spool: IO[bytes]) -> None:
        self.ids = Ids(tool)
        self.counts: Counter[Outcome] = Counter()
        self.findings: list[str] = []
        self._tool = tool
        self._spool = spool
        # Another tool has no UUID, so the name of the device replaces it.
        self._devices = [f"{label} ({tool})"] if label else []
        self._label = label
        self._files: list[ImportedFile] = []
        self._hosts: dict[str, None] = {}
        self._began: float | None = None
        self._seconds = 0.0

    def add(self, file: JUnitFile) -> None:
        """Read a file."""
        with convert_to_write_error("a temporary file; free space in the folder for temporary files (TMPDIR)"):
            for case in file.cases():
                self.counts[case.outcome] += 1
                self._seconds += case.seconds
                self._spool.write(encode_line(self._finish(case, self._time_of(file))))
        path = escape_invalid_xml(str(file.path))
        self._files.append(ImportedFile(path=path, sha256=file.sha256, cases=file.count))
        self._hosts |= file.hosts
        if file.unattached:
            failures = format_count(file.unattached, "failure")
            self.findings.append(f"{escape_invalid_xml(str(file.path))} counts {failures} that no case of it has")
        began = self._time_of(file)
        self._began = began if self._began is None else min(began, self._began)

    def _time_of(self, file: JUnitFile) -> float:
        """Return when the file's suites began; without a possible time in the file, when it was written."""
        if file.began is not None and file.began <= LATEST_BEGIN:
            return file.began
        return min(max(0.0, file.written), LATEST_BEGIN)

    def _finish(self, case: JUnitCase, t: float) -> Finish:
        return Finish(
            t=t,
            case=self.ids.of(case),
            attempt=1,
            devices=tuple(self._devices),
            seed=0,
            outcome=case.outcome,
            final=True,
            duration=round(case.seconds, 6),
            message=case.message,
            detail=case.detail,
            stdout=case.stdout,
            stderr=case.stderr,
            notes=tuple(case.notes),
            properties=tuple(case.properties),
        )

    @property
    def _host(self) -> str:
        return ", ".join(self._hosts) or "unknown host"

    def head(self, argv: Sequence[str]) -> bytes:
        """Return the lines before those of the cases."""
        began = self._began or 0.0
        run = RunStarted(
            t=began,
            schema_version=SCHEMA,
            run_id=f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(began))}-{secrets.token_hex(3)}",
            argv=tuple(escape_invalid_xml(word) for word in mask_command(argv)),
            seed=0,
            isolation="none",
            host=self._host,
            pid=0,
            devices=tuple(self._devices),
            fail_on_flaky=False,
            rootdir="",
            imported=self._imported,
        )
        ids = tuple(self.ids.all)
        collected = Collected(t=began, worker="", count=len(ids), hash=digest_of_ids(ids), ids=ids)
        return encode_line(run) + encode_line(collected)

    @property
    def _imported(self) -> Imported:
        return Imported(tool=self._tool, files=tuple(self._files))

    def tail(self) -> bytes:
        """Return the lines after those of the cases."""
        end = (self._began or 0.0) + min(self._seconds, MOST_SECONDS)
        status = EXIT_RED if self.findings else run_exit_status(list(self.counts))
        found: list[Event] = [Finding(t=end, kind="imported_totals", message=message) for message in self.findings]
        last = End(t=end, exit_status=status, duration=min(self._seconds, MOST_SECONDS))
        return b"".join(encode_line(event) for event in (*found, last))

    def environment(self, argv: Sequence[str]) -> dict[str, Any]:
        """Return the facts for environment.json. Only facts from the files are known about the machine."""
        return {
            "schema": environment.SCHEMA,
            "host": self._host,
            "devices": [{"uuid": uuid, "name": self._label} for uuid in self._devices],
            "versions": {},
            "command": [escape_invalid_xml(word) for word in mask_command(argv)],
            "imported": msgspec.to_builtins(self._imported),
        }


def _checked(value: str, option: str) -> str:
    text = single_line(value, _MOST_LABEL)
    if text != value.strip() or not text:
        raise ImportingError(f"{option}={list_first([value])!r}: expected a name on one line")
    return text
