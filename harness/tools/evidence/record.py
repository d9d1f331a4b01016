"""The record of a run from the files of its run directory, as plain values; and whether junit.xml is its report."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from harness import __version__
from harness.backends.table import BACKENDS, backend_of
from harness.core.text import escape_invalid_xml, single_line
from harness.journal import environment, journal, reader
from harness.journal.events import Event, RunStarted, Waiver
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


def optional_text(value: object) -> str | None:
    """Return the value if it is a text, without characters that cannot be written; otherwise None."""
    return escape_invalid_xml(value) if isinstance(value, str) else None


def _json(data: bytes) -> object:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


#: The beginning of every report of the harness. Another beginning could hide a document type with entities in another
#: encoding.
_FIRST_BYTES = b"<?xml version='1.0' encoding='utf-8'?>\n"
_MOST_DIFFERENCES = 10
#: The bytes by which a report of another version may be larger, beyond twice the size.
_MORE = 1 << 20
_RESULTS = ("failure", "error", "skipped")
Name = tuple[str, str]


def junit_problems(record: EvidenceRecord) -> Iterator[str]:
    """Yield each difference between the report and the journal."""
    if record.junit is None:
        if record.ledger.end is not None:
            yield "junit.xml is missing: write it with harness report"
        return
    data = record.junit
    if not data.lower().startswith(_FIRST_BYTES) or b"<!DOCTYPE" in data or b"\0" in data:
        yield "junit.xml does not begin like a report of the harness, or declares a document type"
        return
    whole = junit.serialise_junit(record.ledger, record.environment)[0]
    if data == whole:
        return
    if len(data) > 2 * len(whole) + _MORE:  # not parsed: an element takes far more memory than its few bytes
        yield f"junit.xml has {len(data)} bytes, and the report of the journal has {len(whole)}"
        return
    try:
        actual = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        yield f"junit.xml is not XML: {error}"
        return
    expected = ElementTree.fromstring(whole)
    lines = [*_cases(actual, expected), *_totals(actual, expected)]
    yield from lines[:_MOST_DIFFERENCES]
    if len(lines) > _MOST_DIFFERENCES:
        yield f"junit.xml differs from the journal in {len(lines) - _MOST_DIFFERENCES} more cases and totals"
    # Another version of the harness may word a report differently.
    if lines or environment.mapping(record.environment.get("versions")).get("harness") != __version__:
        return
    # XML libraries differ in the way that they write the same document.
    forms = [ElementTree.canonicalize(text.decode("utf-8"), with_comments=True) for text in (data, whole)]
    if forms[0] != forms[1]:
        yield f"junit.xml has other texts than the journal: {_first_difference(actual, expected)}"


def _cases(actual: Element, expected: Element) -> Iterator[str]:
    have, want = _outcomes(actual), _outcomes(expected)
    for name in dict.fromkeys((*want, *have)):
        case = "::".join(name)
        if name not in have:
            yield f"junit.xml lacks the case {case}, which the journal has"
        elif name not in want:
            yield f"junit.xml has the case {case}, which the journal lacks"
        elif have[name] != want[name]:
            yield f"junit.xml says that {case} is {', '.join(have[name])}; by the journal it is {', '.join(want[name])}"


def _outcomes(document: Element) -> Mapping[Name, tuple[str, ...]]:
    """Return the verdicts on each case; a duplicate case has two."""
    outcomes: dict[Name, tuple[str, ...]] = {}
    for case in document.iter("testcase"):
        name = case.get("classname", ""), case.get("name", "")
        results = [child.get("type", child.tag) for child in case if child.tag in _RESULTS]
        flaky = any(child.tag.startswith("flaky") for child in case)
        outcomes[name] = outcomes.get(name, ()) + (tuple(results) or (("flaky",) if flaky else ("passed",)))
    return outcomes


def _totals(actual: Element, expected: Element) -> Iterator[str]:
    names = ("tests", "failures", "errors", "skipped")
    suites = [("", actual, expected)]
    want = {_suite(suite): suite for suite in expected.iter("testsuite")}
    suites += [
        (f" of suite {e.get('name')}", e, want[_suite(e)]) for e in actual.iter("testsuite") if _suite(e) in want
    ]
    for where, have, should in suites:
        for name in names:
            if have.get(name) != should.get(name):
                yield f"junit.xml says {name}={have.get(name)}{where}; by the journal it is {should.get(name)}"


def _suite(element: Element) -> tuple[str | None, ...]:
    return element.get("name"), element.get("id"), element.get("hostname")


def _first_difference(actual: Element, expected: Element) -> str:
    for have, want in zip(actual.iter(), expected.iter(), strict=False):
        for part, actual_text, expected_text in (
            ("element", have.tag, want.tag),
            ("attributes", str(have.attrib), str(want.attrib)),
            ("text", have.text or "", want.text or ""),
        ):
            if actual_text != expected_text:
                shown = f"{single_line(actual_text, 120)!r}, expected {single_line(expected_text, 120)!r}"
                return f"the {part} of {want.tag!r} is {shown}"
    return "its bytes are not those that the harness writes"
