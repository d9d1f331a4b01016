"""Reads the JUnit file of another tool, case by case, with junitparser. The file may be hostile.

A document type is refused before the document is parsed, so that no entity is ever declared or expanded. One case is in
memory at a time, and its elements and attributes are bounded, since each takes far more memory than its few bytes.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast
from xml.etree.ElementTree import Element, ParseError, XMLPullParser
from xml.parsers import expat

from junitparser import Attr, Error, Failure, Properties, Skipped, SystemErr, SystemOut, xunit2

from harness.core.errors import HarnessError
from harness.core.file_kind import FileKind
from harness.core.outcome import Outcome
from harness.core.text import escape_invalid_xml, single_line, truncate_middle

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
MOST_SECONDS = 1e9
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
        self._outside = 0
        self._red = 0

    @property
    def unattached(self) -> int:
        return max(0, max(self._counted) - self._red, self._outside)

    def cases(self) -> Iterator[JUnitCase]:
        """Yield every case. Raises JUnitError with one sentence about the error that makes the file unusable."""
        try:
            yield from self._cases()
        except (ParseError, expat.ExpatError) as error:
            raise self._error(f"is not complete, well-formed XML ({error})") from None
        if not self.count:
            raise self._error("has no test case")

    def _feed(self, parser: XMLPullParser[Any] | _Guard, chunk: bytes) -> None:
        try:
            parser.feed(chunk)
        except (ValueError, LookupError) as error:  # Python's parsers raise these for an unsupported encoding
            raise self._error(f"cannot be decoded ({error})") from None

    def _error(self, problem: str) -> JUnitError:
        return JUnitError(f"{escape_invalid_xml(repr(str(self.path)))} {escape_invalid_xml(problem)}: {_EXPECTED}")

    def _cases(self) -> Iterator[JUnitCase]:
        parser: XMLPullParser[Any] = XMLPullParser(("start", "end"))
        open_elements: list[Element] = []
        suites: list[Any] = []
        case: Element | None = None
        elements = 0
        for chunk in self._chunks():
            self._feed(parser, chunk)
            for kind, element in cast("Iterator[tuple[str, Element]]", parser.read_events()):
                if kind == "start":
                    open_elements.append(element)
                    if len(open_elements) > MOST_DEPTH:
                        raise self._error(f"has more than {MOST_DEPTH} elements within each other")
                    elements += 1
                    if case is not None and elements > MOST_ELEMENTS:
                        raise self._error(f"has a test case of more than {MOST_ELEMENTS} elements")
                    if case is None and element.tag == "testcase":
                        case, elements = element, 0
                    elif case is None and element.tag in _ROOTS:
                        suites.append(xunit2.TestSuite.fromelem(element))
                        self._add_suite(suites[-1], element, len(suites))
                    continue
                open_elements.pop()
                if element is case:
                    case = None
                    self.count += 1
                    yield self._case(element, suites[-1].name or "")
                elif case is None and element.tag in _ROOTS:
                    suites.pop()
                elif case is None and element.tag in ("failure", "error"):
                    self._outside += 1
                if case is None and open_elements:
                    # Without this, the elements of all cases would stay in memory.
                    open_elements[-1].remove(element)
        parser.close()

    def _chunks(self) -> Iterator[bytes]:
        """Yield the file in pieces, and update its hash. Each piece is checked before the caller parses it."""
        guard = _Guard()
        digest, size = hashlib.sha256(), 0
        descriptor = KIND.open(self.path)
        with open(descriptor, "rb") as file:
            self.written = os.fstat(descriptor).st_mtime
            while True:
                with KIND.errors(self.path):
                    chunk = file.read(_CHUNK)
                if not chunk:
                    break
                digest.update(chunk)
                size += len(chunk)
                KIND.check_size(self.path, size)
                self._feed(guard, chunk)
                if guard.has_doctype:
                    raise self._error("declares a document type (DOCTYPE), which could define entities")
                if guard.root is not None and guard.root not in _ROOTS:
                    raise self._error(f"has the root element <{single_line(guard.root, 100)}>")
                if guard.incomplete > MOST_TAG:
                    raise self._error(f"has a tag of more than {MOST_TAG} bytes")
                yield chunk
        self.sha256 = digest.hexdigest()

    def _add_suite(self, suite: Any, element: Element, depth: int) -> None:
        if suite.hostname:
            self.hosts[single_line(suite.hostname, 200)] = None
        began = _moment(suite.timestamp or "")
        if began is not None:
            self.began = began if self.began is None else min(began, self.began)
        if depth <= 2:  # the root, and the suites in it
            # Not by junitparser: for a missing number it would count the cases, none of which is read yet.
            self._counted[depth - 1] += sum(_number(element.get(name, "")) for name in ("failures", "errors"))

    def _case(self, element: Element, suite: str) -> JUnitCase:
        case = _TestCase.fromelem(element)
        name = _plain(case.name or "")
        if not name:
            raise self._error(f"has a test case without a name (number {self.count})")
        outcome, message, detail = self._result(case)
        return JUnitCase(
            group=_plain(case.classname or suite),
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
        if not 0 <= seconds <= MOST_SECONDS:
            problem = f"has time={single_line(written or '', 40)!r} in the test case {single_line(name, 100)!r}"
            raise JUnitError(f"{str(self.path)!r} {problem}: expected seconds from 0 to {MOST_SECONDS:.0f}")
        return seconds


class _Guard:
    """Looks at a document before it is parsed. Nothing of it is kept, and no entity is expanded."""

    def __init__(self) -> None:
        self.has_doctype = False
        self.root: str | None = None
        self._parser = expat.ParserCreate(namespace_separator=" ")
        self._parser.StartDoctypeDeclHandler = self._doctype
        self._parser.StartElementHandler = self._element
        self._fed = 0

    @property
    def incomplete(self) -> int:
        """The bytes of the tag, comment or other markup that has begun and not ended."""
        return self._fed - self._parser.CurrentByteIndex

    def feed(self, data: bytes) -> None:
        """Parse further, up to a document type. Raises ExpatError."""
        self._fed += len(data)
        try:
            self._parser.Parse(data)
        except _DoctypeError:
            return

    def _doctype(self, *_: object) -> None:
        self.has_doctype = True
        raise _DoctypeError

    def _element(self, name: str, _: object) -> None:
        self.root = name
        self._parser.StartElementHandler = None


class _DoctypeError(Exception):
    """Ends the parse at a document type."""


def _plain(name: str) -> str:
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
