"""Check that junit.xml is the report of a journal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from harness import __version__
from harness.core.text import single_line
from harness.reporting import junit
from harness.tools.evidence.record import EvidenceRecord, mapping_or_empty

#: The beginning of every report of the harness. Another beginning could hide a document type with entities in another
#: encoding.
_FIRST_BYTES = b"<?xml version='1.0' encoding='utf-8'?>\n"
_MOST = 10
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
    yield from lines[:_MOST]
    if len(lines) > _MOST:
        yield f"junit.xml differs from the journal in {len(lines) - _MOST} more cases and totals"
    # Another version of the harness may word a report differently.
    if lines or mapping_or_empty(record.environment.get("versions")).get("harness") != __version__:
        return
    # XML libraries differ in the way that they write the same document.
    if _canonical(data) != _canonical(whole):
        yield f"junit.xml has other texts than the journal: {_first_difference(actual, expected)}"


def _canonical(data: bytes) -> str:
    return ElementTree.canonicalize(data.decode("utf-8"), with_comments=True)


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
