"""Write junit.xml from the results of a run with junitparser, one element at a time, in constant memory."""

from __future__ import annotations

import json
import os
import tempfile
from array import array
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, BinaryIO

from junitparser import xunit2

from harness.backends.table import labels
from harness.core.atomic import open_atomically
from harness.core.errors import convert_to_write_error
from harness.core.outcome import EXIT_INTERRUPTED, EXIT_NOTHING_RAN, EXIT_OK, Outcome
from harness.core.text import escape_invalid_xml, format_bytes, format_count, truncate_middle
from harness.journal import environment
from harness.journal.environment import EnvironmentFileError, Place, Places
from harness.journal.events import RunStarted
from harness.journal.ledger import Results, Summary
from harness.journal.stored_run import StoredRun
from harness.reporting.junit_case import (
    LIMITS,
    MOST_TEXT,
    CaseWriter,
    Names,
    finding_case,
    named,
    run_case,
    tag_of,
    xml,
)

FILE_NAME = "junit.xml"
MOST_BYTES = 29_000_000  # GitLab accepts files below 30 MB (docs.gitlab.com/ci/testing/unit_test_reports)
_HEAD = b"<?xml version='1.0' encoding='utf-8'?>\n"
_IN_MEMORY = 8 << 20


@dataclass(frozen=True, slots=True)
class JunitReport:
    """A written report: its path, its size in bytes, and the maximum characters of each captured text."""

    path: Path
    size: int
    text_limit: int

    @property
    def text(self) -> str:
        """One line: the written file and its limits."""
        cut = f"{format_bytes(self.size)}, long texts cut to {format_count(self.text_limit, 'character')}"
        large = ": too large for GitLab, which takes 30 MB; run shards" if self.size > MOST_BYTES else ""
        return f"wrote {self.path} ({cut}){large}"


def write_junit(
    run_dir: Path, results: Results | None = None, *, flavour: str = "", out: Path | None = None
) -> JunitReport:
    """Write ``run_dir/junit.xml``, or `out`, from the results of the run, or from its journal. Replace an old file.

    `flavour`: a name; by default the run's flavour. Raise JournalError if there is no readable journal of a run,
    WriteError if the file cannot be written.
    """
    path = run_dir / FILE_NAME if out is None else out
    with _document(run_dir, results, flavour) as document:
        with open_atomically(path) as file:
            document.write(file)
        return JunitReport(path, document.size, document.text_limit)


def stream_junit(file: BinaryIO, run_dir: Path, *, flavour: str = "") -> None:
    """Write the report into an open file, from the journal. See `write_junit`."""
    with _document(run_dir, None, flavour) as document:
        document.write(file)


@contextmanager
def _document(run_dir: Path, results: Results | None, flavour: str) -> Iterator[JunitDocument]:
    with ExitStack() as stack:
        if results is None:
            results = stack.enter_context(StoredRun.of(run_dir))
        try:
            facts = environment.read_environment(run_dir)
        except EnvironmentFileError:
            facts = None
        yield stack.enter_context(JunitDocument(results, facts, flavour=flavour))


def serialise_junit(
    results: Results, facts: Mapping[str, Any] | None = None, *, flavour: str = "", most_bytes: int = MOST_BYTES
) -> tuple[bytes, int]:
    """Return the report as bytes, and the limit on single texts that it needed, in characters. See `JunitDocument`.

    `facts`: the facts of environment.json.
    """
    with JunitDocument(results, facts, flavour=flavour, most_bytes=most_bytes) as document:
        return b"".join(document.chunks()), document.text_limit


@dataclass(slots=True)
class _Suite:
    """The cases of one place: totals, and their ranges in the temporary file.

    `waiting`: cases that are not yet in the file.
    """

    tests: int = 0
    failures: int = 0
    errors: int = 0
    skipped: int = 0
    seconds: float = 0.0
    parts: array[int] = field(default_factory=lambda: array("q"))
    waiting: list[bytes] = field(default_factory=list)

    def add(self, tag: str, seconds: float) -> None:
        self.tests += 1
        self.failures += tag == "failure"
        self.errors += tag == "error"
        self.skipped += tag == "skipped"
        self.seconds += seconds


class JunitDocument:
    """A JUnit report of at most `most_bytes`: one suite per host, device and suite of cases. A context manager.

    Totals equal the verdicts and findings: each finding is a case with an error. Every text is cleaned, so that any XML
    parser can read the document. Captured texts are cut until the document fits. Names and messages are never cut: if
    they alone exceed `most_bytes`, the document is larger, and its captured texts are cut until all of them together
    have at most `most_bytes`.

    `facts`: the facts of environment.json. `flavour`: a name; by default the run's flavour. `text_limit`: maximum
    characters of each captured text.
    """

    def __init__(
        self,
        results: Results,
        facts: Mapping[str, Any] | None = None,
        *,
        flavour: str = "",
        most_bytes: int = MOST_BYTES,
    ) -> None:
        self._results = results
        setting = results.runs[-1].settings.get("junit_flavour") if results.runs else None
        self._flavour = named(flavour or setting)
        self._names = Names(results.ids, whole=self._flavour.whole_ids)
        self._places = Places(results.runs, results.shards, facts)
        # Cases are written before their totals are known, although the totals come first in the document.
        self._file: IO[bytes] | None = None
        self._suites: dict[Place, _Suite] = {}
        self._heads: list[tuple[bytes, Place | None]] = []
        self.text_limit = MOST_TEXT
        self.size = 0
        try:
            self._fit(most_bytes)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> JunitDocument:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the temporary file."""
        if self._file is not None:
            self._file.close()

    def _fit(self, most: int) -> None:
        costs = [0] * len(LIMITS)
        self._render(costs)
        if self.size <= most:
            return
        fixed = self.size - costs[0]
        budget = most - fixed if fixed < most else most
        fitting = next((limit for limit, cost in zip(LIMITS, costs, strict=True) if cost <= budget), 0)
        while fitting < self.text_limit:
            self.text_limit = fitting
            self._render(None)
            if self.size > most > fixed:
                fitting //= 2

    def _render(self, costs: list[int] | None) -> None:
        """Write all cases, then the surrounding elements."""
        self._suites = {}
        if self._file is not None:
            self._file.seek(0)
            self._file.truncate()
        fail_on_flaky = bool(self._results.runs) and self._results.runs[-1].fail_on_flaky
        imported = any(run.imported is not None for run in self._results.runs)
        writer = CaseWriter(self._flavour, self._names, self.text_limit, costs, imported)
        size = waiting = 0
        for verdict, levels in self._results.cases():
            tag = tag_of(verdict.outcome, self._flavour, fail_on_flaky=fail_on_flaky)
            # Four decimals: below 0.0001 Python writes an exponent, which some readers reject.
            seconds = round(verdict.duration, 4)
            data = writer.case(verdict, levels, tag, seconds)
            place = self._places.of(verdict)
            suite = self._suites.get(place)
            if suite is None:
                suite = self._suites[place] = _Suite()
            suite.add(tag, seconds)
            suite.waiting.append(data)
            size += len(data)
            waiting += len(data)
            if waiting >= _IN_MEMORY:
                self._put_aside()
                waiting = 0
        self._heads = list(self._frame(self._results.summary))
        self.size = size + sum(len(head) for head, _ in self._heads)

    def _put_aside(self) -> None:
        """Move the waiting cases to the temporary file, grouped by suite."""
        with convert_to_write_error("a temporary file; free space in the folder for temporary files (TMPDIR)"):
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
            end = self._file.seek(0, os.SEEK_END)
            for suite in self._suites.values():
                begin = end
                end += self._file.write(b"".join(suite.waiting))
                suite.waiting.clear()
                suite.parts.extend((begin, end))

    def _frame(self, summary: Summary) -> Iterator[tuple[bytes, Place | None]]:
        """Return all bytes of the document except the cases. The cases of a place come after its bytes."""
        own = [finding_case(finding, at) for at, finding in enumerate(summary.findings, start=1)]
        red = sum(totals.failures + totals.errors for totals in self._suites.values())
        if not own and not red and (text := why_red(summary)):
            own.append(run_case(text))
        findings = _Suite()
        for _ in own:
            findings.add("error", 0.0)
        every = [*self._suites.values(), findings]
        root = xunit2.JUnitXml("conformance")
        root.tests = sum(totals.tests for totals in every)
        root.failures = sum(totals.failures for totals in every)
        root.errors = sum(totals.errors for totals in every)
        root.time = round(sum(totals.seconds for totals in every), 3)
        begin, end = _halves(root, xunit2.TestSuite())
        yield _HEAD + begin, None
        apart = len({(place.host, place.devices) for place in self._suites if place.devices}) > 1
        number = 0
        for number, (place, suite) in enumerate(sorted(self._suites.items(), key=lambda entry: entry[0]), start=1):
            where = ", ".join(filter(None, [place.host, " ".join(place.devices) or "no device"]))
            name = f"{place.suite} ({where})" if apart else place.suite
            facts = self._places.facts(place)
            suite_begin, suite_end = self._around(name, number - 1, suite, summary, facts, place.host)
            yield suite_begin, place
            yield suite_end, None
        if own:
            run = self._results.runs[-1] if self._results.runs else None
            suite_begin, suite_end = self._around(
                "harness", number, findings, summary, {}, "" if run is None else run.host
            )
            yield suite_begin + b"".join(own) + suite_end, None
        yield end, None

    def _around(
        self, name: str, number: int, suite: _Suite, summary: Summary, facts: Mapping[str, str], host: str
    ) -> tuple[bytes, bytes]:
        """Return the bytes before and after the cases of a suite."""
        run = summary.run
        element = xunit2.TestSuite(escape_invalid_xml(name))
        element.id = str(number)  # Jenkins merges suites with equal name and time unless their ids differ
        element.tests = suite.tests
        element.failures = suite.failures
        element.errors = suite.errors
        element.skipped = suite.skipped
        element.time = round(suite.seconds, 3)
        if run is not None:
            element.hostname = escape_invalid_xml(host or run.host)
            element.timestamp = datetime.fromtimestamp(run.t, UTC).isoformat(timespec="seconds")
            for key, value in {**_run_facts(run, summary), **facts}.items():
                if value:
                    element.add_property(key, escape_invalid_xml(truncate_middle(value, 4096)))
        for key, value in summary.properties:
            element.add_property(escape_invalid_xml(key), escape_invalid_xml(truncate_middle(value, 4096)))
        return _halves(element, xunit2.TestCase())

    def chunks(self) -> Iterator[bytes]:
        """Yield the document in pieces. Raise WriteError if the temporary file cannot be read."""
        for head, place in self._heads:
            yield head
            if place is None:
                continue
            suite = self._suites[place]
            with convert_to_write_error("a temporary file; free space in the folder for temporary files (TMPDIR)"):
                for begin, end in zip(suite.parts[::2], suite.parts[1::2], strict=True):
                    assert self._file is not None
                    self._file.seek(begin)
                    yield self._file.read(end - begin)
            yield b"".join(suite.waiting)

    def write(self, file: BinaryIO) -> None:
        """Write the document to `file`."""
        for chunk in self.chunks():
            file.write(chunk)


def why_red(summary: Summary) -> str:
    """Return why a run is red, for a report in which no case and no finding is; empty for a green run.

    Readers judge a run by its cases, so without this text they would take an interrupted run for a green one.
    """
    status = summary.run_exit_status()
    if number := summary.counts.get(Outcome.NOT_RUN):
        total = format_count(sum(summary.counts.values()), "case")
        return f"{number} of {total} did not run before the run ended"
    if summary.end is None:
        return "the run was cut off: its journal has no end"
    if status == EXIT_NOTHING_RAN:
        return "" if summary.run is not None and summary.run.shard else "no case ran"  # a shard may be empty
    ended = "was interrupted" if status == EXIT_INTERRUPTED else f"ended with exit status {status}"
    return "" if status == EXIT_OK else f"the run {ended}"


def _run_facts(run: RunStarted, summary: Summary) -> dict[str, str]:
    return {
        "run_id": run.run_id,
        "command": json.dumps(run.argv),
        "seed": str(run.seed),
        "isolation": run.isolation,
        "ran": "" if run.imported is None else run.imported.text,
        "devices": " ".join(run.devices),
        "device": labels(run.devices),
        "inject": str(run.settings.get("inject") or ""),
        "under": str(run.settings.get("under") or ""),
        "rootdir": run.rootdir,
        "fail_on_flaky": json.dumps(run.fail_on_flaky),
        "shard": run.shard,
        "resumed_by_force": "; ".join(summary.forced),
        "profile": run.profile,
        "hardware": run.hardware,
        "must_pass": "; ".join(result.text for result in summary.lists),
        "journal": "; ".join(summary.read_problems.remarks),
    }


def _halves(parent: Any, child: Any) -> tuple[bytes, bytes]:
    """Return the XML of `parent` before and after the place of its children. `child`: an empty one of their kind."""
    parent.append(child)
    begin, end = xml(parent).split(xml(child))
    return begin + b"\n", end + b"\n"
