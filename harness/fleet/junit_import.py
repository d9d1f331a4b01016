"""Makes a run directory of the JUnit files of another tool, so that reports and comparisons show its results.

The journal states that the results were imported, and from which files. The harness ran nothing, so there is no
isolation, no seed and no command that reproduces a case.

A file may be hostile. A document type is refused before the document is parsed, so that no entity is ever declared or
expanded. One case is in memory at a time, and its elements and attributes are bounded, since each takes far more memory
than its few bytes.
"""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

import msgspec
from junitparser import Attr, Error, Failure, Properties, Skipped, SystemErr, SystemOut, xunit2

from harness.core.atomic import open_atomically
from harness.core.caseid import digest_of_ids
from harness.core.errors import HarnessError, convert_to_write_error
from harness.core.file_kind import FileKind
from harness.core.outcome import EXIT_RED, Outcome, run_exit_status
from harness.core.secrets import mask_command
from harness.core.text import escape_invalid_xml, format_count, list_first, single_line, truncate_middle
from harness.journal import environment, events, journal
from harness.journal.events import Finding
from harness.journal.identity import make_run_id
from harness.journal.journal import encode_line

#: The most nested elements. JUnit needs about six; suites may contain suites.
MOST_DEPTH = 100
#: The most elements within one case: properties, outputs and earlier attempts.
MOST_ELEMENTS = 10_000
#: The most bytes of one tag with its attributes. A parser keeps a tag in memory until it is complete.
MOST_TAG = 1 << 20
#: The most characters that are kept of each text of a case, and of a name.
MOST_TEXT = 256 << 10
MOST_NAME = 2_000
#: The longest time of a case, in seconds, that the journal can hold.
MOST_TIME = 1e9
_CHUNK = 64 << 10
_ROOTS = ("testsuites", "testsuite")
_EXPECTED = "expected a JUnit file, with <testcase> elements in <testsuites> or <testsuite>"
#: The attribute ``status`` (gtest, ctest) counts if a case has no element for its result. Other words are errors.
_STATUSES = {
    **dict.fromkeys(("", "run", "ok", "pass", "passed", "success", "successful", "completed"), Outcome.PASSED),
    "disabled": Outcome.SKIPPED,
    "notrun": Outcome.SKIPPED,
    "skipped": Outcome.SKIPPED,
    "fail": Outcome.FAILED,
    "failed": Outcome.FAILED,
}
#: ctest writes <skipped> with status="notrun" also for a test that it could not start, for example if its executable is
#: missing. Only with these messages did the test skip itself.
_CTEST_SKIP = ("SKIP_RETURN_CODE", "SKIP_REGULAR_EXPRESSION")
#: The elements of results, the most severe one first.
_RESULTS = ((Error, Outcome.ERROR), (Failure, Outcome.FAILED), (Skipped, Outcome.SKIPPED))
_IN_MEMORY = 8 << 20
_MOST_LABEL = 200


class JUnitError(HarnessError):
    """A file cannot be imported."""


KIND = FileKind("JUnit file", "give the JUnit XML of a tool", JUnitError, 1 << 30)


@dataclass(frozen=True, slots=True)
class JUnitCase:
    """A case as in its file. `group`: the class, or without one the suite; may be empty. Texts are cleaned."""

    group: str
    name: str
    outcome: Outcome
    seconds: float
    message: str = ""
    detail: str = ""
    stdout: str = ""
    stderr: str = ""
    notes: tuple[str, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()


class _TestCase(xunit2.TestCase):  # type: ignore[misc]
    status = Attr()


class JUnitFile:
    """A JUnit file. Read `cases` to the end; the other attributes are known after that.

    `began`: the earliest time of a suite, in seconds since 1970; None without any. `hosts`: the names of hosts, in
    order. `written`: when the file was last changed. `unattached`: the number of failures and errors that the file
    counts, or has outside its cases, but that no case has.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sha256 = ""
        self.began: float | None = None
        self.written = 0.0
        self.hosts: dict[str, None] = {}
        self.count = 0
        self._counted = [0, 0]
        self.outside = 0
        self._red = 0

    @property
    def unattached(self) -> int:
        return max(0, max(self._counted) - self._red, self.outside)

    def cases(self) -> Iterator[JUnitCase]:
        """Yield every case. Raises JUnitError with one sentence about the error that makes the file unusable."""
        parser = _Parser(self)
        digest, size = hashlib.sha256(), 0
        descriptor = KIND.open(self.path)
        with open(descriptor, "rb") as file:
            self.written = os.fstat(descriptor).st_mtime
            while True:
                with KIND.errors(self.path):
                    chunk = file.read(_CHUNK)
                digest.update(chunk)
                size += len(chunk)
                KIND.check_size(self.path, size)
                for element, suite in parser.parsed(chunk):
                    self.count += 1
                    yield self._case(element, suite)
                if not chunk:
                    break
        self.sha256 = digest.hexdigest()
        if not self.count:
            raise self.error("has no test case")

    def error(self, problem: str) -> JUnitError:
        return JUnitError(f"{escape_invalid_xml(repr(str(self.path)))} {escape_invalid_xml(problem)}: {_EXPECTED}")

    def add_suite(self, attributes: Mapping[str, str], depth: int) -> None:
        """Take what is known from the tag of a suite."""
        if hostname := attributes.get("hostname"):
            self.hosts[single_line(hostname, 200)] = None
        began = _moment(attributes.get("timestamp", ""))
        if began is not None:
            self.began = began if self.began is None else min(began, self.began)
        if depth <= 2:  # the root, and the suites in it
            self._counted[depth - 1] += sum(_number(attributes.get(name, "")) for name in ("failures", "errors"))

    def _case(self, element: Element, suite: str) -> JUnitCase:
        case = _TestCase.fromelem(element)
        name = _plain_name(case.name or "")
        if not name:
            raise self.error(f"has a test case without a name (number {self.count})")
        outcome, message, detail = self._result(case)
        return JUnitCase(
            group=_plain_name(case.classname or suite),
            name=name,
            outcome=outcome,
            seconds=self._seconds(case, name, element.get("time")),
            message=message,
            detail=detail,
            stdout=_text("\n".join(output.text or "" for output in case.iterchildren(SystemOut))),
            stderr=_text("\n".join(output.text or "" for output in case.iterchildren(SystemErr))),
            notes=tuple(
                f"earlier attempt: {single_line(attempt.message or attempt.text or attempt.type or 'failed')}"
                for attempt in case.interim_result
            ),
            properties=tuple(
                (single_line(entry.name or "", MOST_NAME), _text(entry.value)[:MOST_NAME])
                for properties in case.iterchildren(Properties)
                for entry in properties
            ),
        )

    def _result(self, case: Any) -> tuple[Outcome, str, str]:
        """Return the outcome, its message and its text."""
        status = (case.status or "").strip().lower()
        every = [(outcome, result) for kind, outcome in _RESULTS for result in case.iterchildren(kind)]
        self._red += sum(outcome.is_red for outcome, _ in every)
        for outcome, result in every:
            message = single_line(result.message or result.text or result.type or "")
            if outcome is Outcome.SKIPPED and status == "notrun" and not message.startswith(_CTEST_SKIP):
                outcome = Outcome.ERROR
            return outcome, message, "\n".join(_text(result.text) for _, result in every if result.text)
        outcome = _STATUSES.get(status, Outcome.ERROR)
        self._red += outcome.is_red
        return outcome, "" if outcome is Outcome.PASSED else f"status {single_line(status, 100)!r}", ""

    def _seconds(self, case: Any, name: str, written: str | None) -> float:
        try:
            seconds = float(case.time or 0.0)
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds <= MOST_TIME:
            problem = f"has time={single_line(written or '', 40)!r} in the test case {single_line(name, 100)!r}"
            raise JUnitError(f"{str(self.path)!r} {problem}: expected seconds from 0 to {MOST_TIME:.0f}")
        return seconds


class _Parser:
    """Parses a document in pieces. It refuses a document type, and builds the elements of one case at a time."""

    def __init__(self, file: JUnitFile) -> None:
        self._file = file
        self._suites: list[str] = []
        self._cases: list[tuple[Element, str]] = []
        self._builder: TreeBuilder | None = None  # of the case that has begun
        self._fed = self._depth = self._top = self._elements = 0
        self._parser = expat.ParserCreate(namespace_separator=" ")
        self._parser.StartDoctypeDeclHandler = self._doctype
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._data

    def parsed(self, data: bytes) -> Iterator[tuple[Element, str]]:
        """Yield the cases that end in the next piece, which is empty at the end, each with the name of its suite."""
        self._fed += len(data)
        try:
            self._parser.Parse(data, not data)
        except expat.ExpatError as error:
            raise self._file.error(f"is not complete, well-formed XML ({error})") from None
        except (ValueError, LookupError) as error:  # for an unsupported encoding
            raise self._file.error(f"cannot be decoded ({error})") from None
        if self._fed - self._parser.CurrentByteIndex > MOST_TAG:
            raise self._file.error(f"has a tag of more than {MOST_TAG} bytes")
        yield from self._cases
        self._cases.clear()

    def _doctype(self, *_: object) -> None:
        raise self._file.error("declares a document type (DOCTYPE), which could define entities")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth == 1 and tag not in _ROOTS:
            raise self._file.error(f"has the root element <{single_line(tag, 100)}>")
        if self._depth > MOST_DEPTH:
            raise self._file.error(f"has more than {MOST_DEPTH} elements within each other")
        if self._builder is None and tag == "testcase":
            self._builder, self._top, self._elements = TreeBuilder(), self._depth, 0
        if self._builder is not None:
            self._elements += 1
            if self._elements > MOST_ELEMENTS:
                raise self._file.error(f"has a test case of more than {MOST_ELEMENTS} elements")
            self._builder.start(tag, attributes)
        elif tag in _ROOTS:
            self._suites.append(attributes.get("name", ""))
            self._file.add_suite(attributes, len(self._suites))

    def _data(self, text: str) -> None:
        if self._builder is not None:
            self._builder.data(text)

    def _end(self, tag: str) -> None:
        if self._builder is not None:
            self._builder.end(tag)
            if self._depth == self._top:
                self._cases.append((self._builder.close(), self._suites[-1]))
                self._builder = None
        elif tag in _ROOTS:
            self._suites.pop()
        elif tag in ("failure", "error"):
            self._file.outside += 1
        self._depth -= 1


def _plain_name(name: str) -> str:
    """Return a name on one line. Of a very long name, return the beginning and a digest of the rest."""
    text = " ".join(escape_invalid_xml(name).split())
    if len(text) <= MOST_NAME:
        return text
    return f"{text[:MOST_NAME]}…{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _text(text: str | None) -> str:
    return escape_invalid_xml(truncate_middle(text or "", MOST_TEXT))


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _moment(text: str) -> float | None:
    """Return a time of a suite in seconds since 1970. Without an offset it is taken as UTC."""
    try:
        moment = datetime.fromisoformat(text)
        return max(0.0, (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        return None


# ---- the run directory ----


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
        self._files: list[events.ImportedFile] = []
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
        self._files.append(events.ImportedFile(path=path, sha256=file.sha256, cases=file.count))
        self._hosts |= file.hosts
        if file.unattached:
            failures = format_count(file.unattached, "failure")
            self.findings.append(f"{escape_invalid_xml(str(file.path))} counts {failures} that no case of it has")
        began = self._time_of(file)
        self._began = began if self._began is None else min(began, self._began)

    def _time_of(self, file: JUnitFile) -> float:
        """Return when the file's suites began; without a possible time in the file, when it was written."""
        if file.began is not None and file.began <= events.LATEST_BEGIN:
            return file.began
        return min(max(0.0, file.written), events.LATEST_BEGIN)

    def _finish(self, case: JUnitCase, t: float) -> events.Finish:
        return events.Finish(
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
        run = events.RunStarted(
            t=began,
            schema_version=events.SCHEMA,
            run_id=make_run_id(time.gmtime(began)),
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
        collected = events.Collected(t=began, worker="", count=len(ids), hash=digest_of_ids(ids), ids=ids)
        return encode_line(run) + encode_line(collected)

    @property
    def _imported(self) -> events.Imported:
        return events.Imported(tool=self._tool, files=tuple(self._files))

    def tail(self) -> bytes:
        """Return the lines after those of the cases."""
        end = (self._began or 0.0) + min(self._seconds, events.MOST_SECONDS)
        status = EXIT_RED if self.findings else run_exit_status(list(self.counts))
        found: list[events.Event] = [
            Finding(t=end, kind="imported_totals", message=message) for message in self.findings
        ]
        last = events.End(t=end, exit_status=status, duration=min(self._seconds, events.MOST_SECONDS))
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
