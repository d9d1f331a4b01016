"""JUnit files of other tools: the outcome of each case, and the message for each refused file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core.outcome import Outcome
from harness.fleet import junit_import as junit_reading
from harness.fleet.junit_import import (
    MOST_DEPTH,
    MOST_ELEMENTS,
    MOST_NAME,
    MOST_TAG,
    MOST_TEXT,
    JUnitCase,
    JUnitError,
    JUnitFile,
)

F, E, P, S = Outcome.FAILED, Outcome.ERROR, Outcome.PASSED, Outcome.SKIPPED


def junit(path: Path, cases: str, *, root: str = "", suite: str = "") -> JUnitFile:
    path.write_text(
        f'<testsuites {root}><testsuite name="s" {suite}>{cases}</testsuite></testsuites>', encoding="utf-8"
    )
    return JUnitFile(path)


def only(tmp_path: Path, case: str) -> JUnitCase:
    (found,) = junit(tmp_path / "x.xml", case).cases()
    return found


CASES = {
    "gtest, passed": ('<testcase name="A" classname="T" status="run" result="completed" time="0.5"/>', P, ""),
    "gtest, disabled": ('<testcase name="A" classname="T" status="notrun" result="suppressed"/>', S, "status 'notrun'"),
    "gtest, skipped": ('<testcase name="A" status="run"><skipped message="no GPU"/></testcase>', S, "no GPU"),
    "gtest, two failures": (
        '<testcase name="A" status="run"><failure message="one"/><failure message="two"/></testcase>', F, "one",
    ),
    "ctest, failed": ('<testcase name="A" status="fail"><failure message=""/></testcase>', F, ""),
    "ctest, failed without an element": ('<testcase name="A" status="fail"/>', F, "status 'fail'"),
    "ctest, skipped": ('<testcase name="A" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>', S,
        "SKIP_RETURN_CODE=77"),
    "ctest, could not start": (
        '<testcase name="A" status="notrun"><skipped message="Unable to find executable"/></testcase>', E,
        "Unable to find executable",
    ),
    "ctest, disabled": ('<testcase name="A" status="disabled"/>', S, "status 'disabled'"),
    "an unknown status": ('<testcase name="A" status="blocked"/>', E, "status 'blocked'"),
    "pytest, error and failure": ('<testcase name="A"><failure message="f"/><error message="e"/></testcase>', E, "e"),
    "only a text": ('<testcase name="A"><failure>\n\n  first\nsecond</failure></testcase>', F, "first"),
    "only a type": ('<testcase name="A"><error type="ValueError"/></testcase>', E, "ValueError"),
    "surefire, flaky": (
        '<testcase name="A"><flakyFailure message="once"><stackTrace/></flakyFailure></testcase>', P, "",
    ),
    "a failure only within an earlier attempt": (
        '<testcase name="A"><rerunFailure message="x"><failure/></rerunFailure></testcase>', P, "",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("case", "outcome", "message"), CASES.values(), ids=CASES)
def test_the_outcome_of_a_case(case: str, outcome: Outcome, message: str, tmp_path: Path) -> None:
    found = only(tmp_path, case)
    assert (found.name, found.outcome, found.message) == ("A", outcome, message)


def test_what_is_kept_of_a_case(tmp_path: Path) -> None:
    found = only(
        tmp_path,
        '<testcase name=" a&#10; b " classname="n.C" time="1,234.5">'
        "<properties><property name='k' value='v'/></properties><failure message='m'>trace</failure>"
        "<flakyFailure message='once'><system-out>hidden</system-out></flakyFailure>"
        "<system-out>o1</system-out><system-out>o2</system-out><system-err>e\u0085</system-err></testcase>",
    )
    assert found == JUnitCase(
        group="n.C",
        name="a b",
        outcome=F,
        seconds=1234.5,
        message="m",
        detail="trace",
        stdout="o1\no2",
        stderr="e\u0085",
        notes=("earlier attempt: once",),
        properties=(("k", "v"),),
    )


def test_a_case_without_a_class_belongs_to_its_suite(tmp_path: Path) -> None:
    assert only(tmp_path, '<testcase name="a"/>').group == "s"


def test_long_texts_and_names_are_cut_and_names_stay_apart(tmp_path: Path) -> None:
    long = "n" * MOST_NAME
    cases = (
        f'<testcase name="{long}x"><system-out>{"o" * 2 * MOST_TEXT}</system-out></testcase><testcase name="{long}y"/>'
    )
    first, second = junit(tmp_path / "x.xml", cases).cases()
    assert len(first.name) == len(second.name) < MOST_NAME + 20
    assert first.name != second.name
    assert len(first.stdout) < MOST_TEXT + 100


def test_the_facts_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "x.xml"
    path.write_bytes(
        b'<testsuites><testsuite timestamp="2026-01-02T00:00:00Z" hostname="b"><testsuite hostname="a" '
        b'timestamp="2026-01-01T02:00:00+02:00"><testcase name="x"/></testsuite></testsuite>'
        b'<testsuite timestamp="yesterday" hostname="b"/></testsuites>'
    )
    file = JUnitFile(path)
    assert [case.name for case in file.cases()] == ["x"]
    assert (file.began, list(file.hosts), file.count) == (1767225600.0, ["b", "a"], 1)
    assert file.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert file.written == path.stat().st_mtime


@pytest.mark.parametrize(
    ("root", "suite", "cases", "number"),
    [
        ("", "", '<testcase name="a"/>', 0),
        ('failures="1"', 'failures="1"', '<testcase name="a"><failure/></testcase>', 0),
        ('failures="1" errors="1"', "", '<testcase name="a"><failure/><error/></testcase>', 0),
        ('failures="1"', "", '<testcase name="a"><failure/><failure/></testcase>', 0),
        ('failures="2"', "", '<testcase name="a"><failure/></testcase>', 1),
        ("", 'errors="1"', '<testcase name="a"/>', 1),
        ("", "", '<testcase name="a"/><error message="the suite broke"/>', 1),
        ('failures="many"', 'errors="-1"', '<testcase name="a"/>', 0),
    ],
)
def test_failures_that_no_case_has(root: str, suite: str, cases: str, number: int, tmp_path: Path) -> None:
    file = junit(tmp_path / "x.xml", cases, root=root, suite=suite)
    assert len(list(file.cases())) == 1
    assert file.unattached == number


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "iso-8859-1"])
def test_encodings(encoding: str, tmp_path: Path) -> None:
    name = encoding.removesuffix("-sig")
    text = f'<?xml version="1.0" encoding="{name}"?><testsuite><testcase name="é"/></testsuite>'
    (tmp_path / "x.xml").write_bytes(text.encode(encoding))
    assert [case.name for case in JUnitFile(tmp_path / "x.xml").cases()] == ["é"]


BOMB = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><testsuite><testcase name="&b;"/></testsuite>'
EXTERNAL = '<!DOCTYPE x SYSTEM "file:///etc/passwd"><testsuite><testcase name="a"/></testsuite>'
_CASE = '<testsuite><testcase name="a" {}/></testsuite>'
REFUSED: dict[str, tuple[str | bytes, str]] = {
    "entities": (BOMB, "declares a document type (DOCTYPE), which could define entities: expected a JUnit file"),
    "an external document type": (EXTERNAL, "declares a document type (DOCTYPE)"),
    "a document type in UTF-16": (BOMB.encode("utf-16"), "declares a document type (DOCTYPE)"),
    "a document type far behind": (f"<!--{'x' * 200_000}-->{BOMB}", "declares a document type (DOCTYPE)"),
    "a document type after the root": (f"<testsuite/>{BOMB}", "is not complete, well-formed XML ("),
    "an unknown entity": ('<testsuite><testcase name="&b;"/></testsuite>', "is not complete, well-formed XML (unde"),
    "no XML": ("1..2\nok 1 - a\n", "is not complete, well-formed XML (syntax error: line 1, column 0): expected"),
    "JSON": ("{}", "is not complete, well-formed XML"),
    "nothing": ("", "is not complete, well-formed XML (no element found"),
    "another root": ("<html><testcase name='a'/></html>", "has the root element <html>: expected a JUnit file, with"),
    "another name space": ("<testsuite xmlns='urn:x'><testcase name='a'/></testsuite>", "has the root element <urn:x"),
    "a cut file": ("<testsuite><testcase name='a'/><testcase na", "is not complete, well-formed XML (unclosed token"),
    "a file without its last line": ("<testsuite><testcase name='a'/>", "is not complete, well-formed XML (no element"),
    "no cases": ("<testsuites><testsuite tests='1'/></testsuites>", "has no test case: expected"),
    "a nameless case": ("<testsuite><testcase/></testsuite>", "has a test case without a name (number 1)"),
    "a blank name": ("<testsuite><testcase name=' &#9;'/></testsuite>", "has a test case without a name (number 1)"),
    "time NaN": (_CASE.format("time='NaN'"), "has time='NaN' in the test case 'a': expected seconds from 0 to 1000000"),
    "time negative": (_CASE.format("time='-0.1'"), "has time='-0.1' in"),
    "time infinite": (_CASE.format("time='inf'"), "has time='inf' in"),
    "time huge": (_CASE.format("time='1e10'"), "has time='1e10' in"),
    "time in words": (_CASE.format("time='2 s'"), "has time='2 s' in"),
    "a control character": ("<testsuite><testcase name='a\x01'/></testsuite>", "is not complete, well-formed XML (not"),
    "a reference to one": ("<testsuite><testcase name='&#1;'/></testsuite>", "is not complete, well-formed XML (ref"),
    "a surrogate": ("<testsuite><testcase name='&#xD800;'/></testsuite>", "is not complete, well-formed XML (ref"),
    "bytes that are not UTF-8": (b"<testsuite><testcase name='\xff'/></testsuite>", "is not complete, well-formed XML"),
    "an unknown encoding": (b"<?xml version='1.0' encoding='no'?><testsuite/>", "cannot be decoded (unknown"),
    "a wide encoding": ("<?xml version='1.0' encoding='gb2312'?><testsuite/>", "cannot be decoded (multi-byte"),
    "deep nesting": ("<testsuite>" * 100_000, f"has more than {MOST_DEPTH} elements within each other"),
    "deep nesting in a case": (
        "<testsuite><testcase name='a'>" + "<b>" * 100_000, f"has more than {MOST_DEPTH} elements within each other",
    ),
    "many elements in a case": (
        "<testsuite><testcase name='a'>" + "<b/>" * 100_000, f"has a test case of more than {MOST_ELEMENTS} elements",
    ),
    "many attributes": (
        "<testsuite><testcase " + " ".join(f"a{number}='x'" for number in range(200_000)) + "/></testsuite>",
        f"has a tag of more than {MOST_TAG} bytes",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("data", "text"), REFUSED.values(), ids=REFUSED)
def test_a_file_that_is_refused_in_one_sentence(data: str | bytes, text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.xml"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(JUnitError) as caught:
        list(JUnitFile(path).cases())
    assert str(caught.value).startswith(f"{str(path)!r} {text}")
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 500


def test_a_long_text_and_many_small_cases_are_no_tag(tmp_path: Path) -> None:
    text = "x" * (MOST_TAG + 1)
    cases = "<testcase name='b'/>" * (MOST_ELEMENTS + 1)
    path = tmp_path / "x.xml"
    path.write_text(f"<testsuite><testcase name='a'><failure>{text}</failure></testcase>{cases}</testsuite>")
    assert len(list(JUnitFile(path).cases())) == MOST_ELEMENTS + 2


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate((1 << 30) + 1)


PLACES: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (str, "there is no JUnit file at"),
    "a folder": (lambda path: path.mkdir(), "is not a regular file"),
    "a named pipe": (os.mkfifo, "is not a regular file"),
    "more than 1 GiB": (_sparse, "has 1073741825 bytes, and the limit is 1073741824: give the JUnit XML of a tool"),
}


@pytest.mark.parametrize(("make", "text"), PLACES.values(), ids=PLACES)
def test_what_is_no_readable_file(make: Callable[[Path], object], text: str, tmp_path: Path) -> None:
    make(tmp_path / "x.xml")
    with pytest.raises(JUnitError) as caught:
        list(JUnitFile(tmp_path / "x.xml").cases())
    assert text in str(caught.value)


def test_a_file_that_grows_beyond_the_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = junit_reading.KIND
    monkeypatch.setattr(junit_reading, "KIND", type(kind)(kind.noun, kind.advice, kind.error, 200_000))
    path = tmp_path / "x.xml"
    path.write_text("<testsuite>" + '<testcase name="a"/>' * 5_000)
    found = JUnitFile(path).cases()
    next(found)
    with path.open("a") as file:
        file.write('<testcase name="a"/>' * 10_000)
    with pytest.raises(JUnitError, match="and the limit is 200000"):
        list(found)
