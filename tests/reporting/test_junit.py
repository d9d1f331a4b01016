"""junit.xml: one element per outcome, correct totals, and a file that every reader accepts, whatever cases print."""

from __future__ import annotations

import re
import tempfile
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
import xmlschema
from hypothesis import example, given
from junitparser import xunit2

from harness.core.atomic import WriteError
from harness.core.outcome import Outcome
from harness.core.text import escape_invalid_xml
from harness.journal import journal, reader
from harness.journal.ledger import Ledger
from harness.reporting import junit
from harness.reporting.junit_case import FLAVOURS, MOST_TEXT, Names
from tests.journal import journals
from tests.reporting import build
from tests.reporting.build import ledger

CASE = "suites/streams/test_events.py::TestX::test_y[cpu-3]"


@cache
def strict_schema() -> Any:
    return xmlschema.XMLSchema(Path(__file__).with_name("strict_junit.xsd"))


def checked(data: bytes) -> Element:
    """Return the root of a report after checking that it is strictly valid, that junitparser agrees, and its totals."""
    root = ElementTree.fromstring(data)
    strict_schema().validate(root)
    cases = root.findall("testsuite/testcase")
    read = xunit2.JUnitXml.fromstring(data)
    assert sum(1 for suite in read for _ in suite) == len(cases) == int(root.attrib["tests"])
    for tag, total in (("failure", "failures"), ("error", "errors")):
        assert len(root.findall(f"testsuite/testcase/{tag}")) == int(root.attrib[total])
    for suite in root:
        assert len(suite.findall("testcase")) == int(suite.attrib["tests"])
        assert len(suite.findall("testcase/skipped")) == int(suite.attrib["skipped"])
    pairs = [(case.attrib["classname"], case.attrib["name"]) for case in cases]
    assert len(set(pairs)) == len(pairs)
    return root


def report(*lines: build.Line, flavour: str = "") -> Element:
    """Return the root of the report of a run that has finished."""
    data, _ = junit.serialise_junit(ledger(*build.finished(*lines)), flavour=flavour)
    return checked(data)


def only_case(*lines: build.Line, **facts: Any) -> Element:
    (case,) = report(build.run(**facts), build.collected(CASE), *lines).findall("testsuite/testcase")
    return case


ELEMENTS = {
    Outcome.NOT_RUN: "error",
    Outcome.GATED: "skipped",
    Outcome.SKIPPED: "skipped",
    Outcome.WAIVED: "skipped",
    Outcome.PASSED: None,
    Outcome.UNEXPECTED_PASS: "failure",
    Outcome.LOST: "error",
    Outcome.CONTAMINATED: "failure",
    Outcome.RACED: "failure",
    Outcome.LEAKED: "failure",
    Outcome.FAILED: "failure",
    Outcome.ERROR: "error",
    Outcome.POISONED: "error",
    Outcome.TIMEOUT: "error",
    Outcome.CRASHED: "error",
}


def test_the_table_has_every_outcome() -> None:
    assert set(Outcome) - set(ELEMENTS) == {Outcome.FLAKY}


@pytest.mark.parametrize("outcome", ELEMENTS)
def test_each_outcome_has_its_element(outcome: Outcome) -> None:
    case = only_case(
        build.start(CASE), build.finish(CASE, outcome, message="what happened", detail="trace", stdout="out")
    )
    expected = [ELEMENTS[outcome], "system-out"] if ELEMENTS[outcome] else ["system-out"]
    assert [child.tag for child in case] == expected
    if outcome is not Outcome.PASSED:
        result = case[0]
        assert result.attrib == {"type": outcome.value, "message": "what happened"}
        assert result.text is not None
        assert result.text.startswith("what happened\n")
        assert result.text.endswith("\n\ntrace")


def test_a_case_that_never_started_is_an_error_as_not_run() -> None:
    case = only_case()
    assert [child.tag for child in case] == ["error"]
    assert case[0].attrib == {"type": "not_run", "message": "the run ended, and the journal has no start of this case"}


#: Runs without a red case and without a finding that are not green, and what the report has.
UNFINISHED = {
    "cut off": ([build.collected(CASE), *build.passed(CASE)], "the run was cut off: its journal has no end"),
    "nothing ran": ([build.collected(), build.end(exit_status=5)], "no case ran"),
    "an internal error": ([build.collected(CASE), *build.passed(CASE), build.end(exit_status=3)], "exit status 3"),
}


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("name", UNFINISHED)
def test_a_run_that_is_not_green_has_an_error_in_each_flavour(name: str, flavour: str) -> None:
    lines, words = UNFINISHED[name]
    root = ElementTree.fromstring(junit.serialise_junit(ledger(build.run(), *lines), flavour=flavour)[0])
    (error,) = root.findall("testsuite/testcase/error")
    assert words in error.attrib["message"]
    assert root.attrib["errors"] == "1"


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_an_interrupted_run_is_red_for_each_reader(flavour: str) -> None:
    other = f"{CASE}-other"
    lines = [build.collected(CASE, other), *build.passed(CASE), build.stopped(), build.end(exit_status=2)]
    root = ElementTree.fromstring(junit.serialise_junit(ledger(build.run(), *lines), flavour=flavour)[0])
    (error,) = root.findall("testsuite/testcase/error")
    expected = "1 of 2 cases did not run before the run ended" if flavour == "gitlab" else "stopped by SIGTERM"
    assert expected in error.attrib["message"]
    assert len(root.findall("testsuite/testcase/skipped")) == (flavour == "gitlab")


def test_an_empty_shard_has_no_error() -> None:
    assert report(build.run(shard="2/3"), build.collected(), build.end(exit_status=5)).attrib["errors"] == "0"


def test_a_case_that_never_finished_is_an_error_of_the_harness() -> None:
    case = only_case(build.start(CASE, seed=5, devices=["GPU-1"]))
    assert [child.tag for child in case] == ["error"]
    assert case[0].attrib["type"] == "lost"
    assert "devices GPU-1, seed 5" in case[0].attrib["message"]


def test_a_flaky_case_is_green_and_shows_what_broke() -> None:
    case = only_case(*build.broke_and(CASE, Outcome.CRASHED, Outcome.PASSED, stdout="o", stderr="e", detail="stack"))
    assert [child.tag for child in case] == ["flakyFailure"]
    assert case[0].attrib == {"type": "crashed", "message": "broke here"}
    assert [child.tag for child in case[0]] == ["stackTrace", "system-out", "system-err"]
    trace, out, err = (child.text for child in case[0])
    assert trace is not None
    assert trace.startswith(
        "broke here\nattempt 1 (after other cases) on worker gw0, executor gw0-1, devices cpu, seed 11\n"
    )
    assert trace.endswith("\n\nstack")
    assert (out, err) == ("o", "e")


def test_a_flaky_case_is_a_failure_too_where_the_run_says_so() -> None:
    lines = build.broke_and(CASE, Outcome.CRASHED, Outcome.PASSED, reproduce="pytest it")
    case = only_case(*lines, fail_on_flaky=True)
    assert [child.tag for child in case] == ["failure", "flakyFailure"]
    assert case[0].attrib == {"type": "flaky", "message": "crashed after other cases, passed alone: broke here"}
    assert "\nreproduce: pytest it\n" in (case[0].text or "")


@pytest.mark.parametrize(
    ("first", "second", "tags"),
    [
        (Outcome.CRASHED, Outcome.TIMEOUT, ["error", "rerunError"]),
        (Outcome.LEAKED, Outcome.LEAKED, ["failure", "rerunFailure"]),
        (Outcome.LEAKED, Outcome.CRASHED, ["error", "rerunFailure"]),
        (Outcome.CRASHED, None, ["error", "rerunError"]),
    ],
)
def test_earlier_attempts_of_a_red_case_are_shown(first: Outcome, second: Outcome | None, tags: list[str]) -> None:
    case = only_case(*build.broke_and(CASE, first, second))
    assert [child.tag for child in case] == tags
    assert case[-1].attrib == {"type": first.value, "message": "broke here"}


@pytest.mark.parametrize("second", [Outcome.SKIPPED, Outcome.GATED, Outcome.WAIVED])
def test_a_first_attempt_that_broke_is_never_erased(second: Outcome) -> None:
    case = only_case(*build.broke_and(CASE, Outcome.CRASHED, second))
    assert case[-1].tag == "flakyFailure"
    assert case[-1].attrib["type"] == "crashed"


def test_the_text_identifies_the_failure() -> None:
    case = only_case(
        build.start(CASE),
        build.finish(
            CASE,
            Outcome.CRASHED,
            message="SIGSEGV during call",
            exit_status=-11,
            devices=["GPU-1", "GPU-2"],
            notes=["free memory 3 MiB"],
            reproduce="pytest 'x[1]' --seed 7",
            alone=True,
            attempt=2,
            detail="the stack",
        ),
    )
    assert case[0].text == (
        "SIGSEGV during call\n"
        "reproduce: pytest 'x[1]' --seed 7\n"
        "attempt 2 (alone) on worker gw0, executor gw0-1, devices GPU-1 GPU-2, seed 11\n"
        "the executor ended with SIGSEGV\n"
        "free memory 3 MiB\n"
        "\n"
        "the stack"
    )


def test_suites_properties_and_totals() -> None:
    a, b, c = "suites/streams/test_a.py::a", "suites/amp/test_b.py::b", "suites/streams/test_a.py::T::c"
    root = report(
        build.run(), build.collected(a, b, c), build.finish(a), build.finish(b, Outcome.FAILED, duration=0.25)
    )
    names = {
        suite.attrib["name"]: [
            (c.attrib["classname"], c.attrib["name"], c.attrib["time"]) for c in suite.iter("testcase")
        ]
        for suite in root
    }
    assert names == {
        "amp": [("suites.amp.test_b", "b", "0.25")],
        "streams": [("suites.streams.test_a", "a", "0.5"), ("suites.streams.test_a.T", "c", "0.0")],
    }
    assert root.attrib == {"name": "conformance", "tests": "3", "failures": "1", "errors": "1", "time": "0.75"}
    for suite in root:
        assert suite.attrib["hostname"] == "node1"
        assert suite.attrib["timestamp"] == "2025-10-09T08:53:20+00:00"
        properties = {p.attrib["name"]: p.attrib["value"] for p in suite.iter("property")}
        assert properties == {
            "run_id": "r1",
            "command": '["pytest", "suites/"]',
            "seed": "7",
            "isolation": "batch",
            "devices": "cpu",
            "device": "cpu",
            "rootdir": "/here",
            "fail_on_flaky": "false",
        }
    assert not root.findall(".//testcase/properties")


def test_findings_stand_in_a_suite_of_their_own() -> None:
    root = report(
        build.run(), build.collected(CASE), build.finish(CASE), build.finding("the GPU fell off", cases=["a", "b"])
    )
    assert (root.attrib["tests"], root.attrib["errors"]) == ("2", "1")
    suite = root.find("testsuite[@name='harness']")
    assert suite is not None
    assert suite.findtext("testcase/error") == "device_lost: the GPU fell off [a, b]"


def test_cases_that_were_not_collected_are_reported_as_well() -> None:
    root = report(build.run(), build.finish(CASE, Outcome.FAILED))
    assert (root.attrib["tests"], root.attrib["failures"], root.attrib["errors"]) == ("2", "1", "1")
    assert "not_collected" in (root.findtext("testsuite[@name='harness']/testcase/error") or "")


def test_an_empty_run_gives_an_empty_report() -> None:
    assert report().attrib["tests"] == "0"


@pytest.mark.parametrize(
    ("case", "pair"),
    [
        ("suites/a/test_b.py::C::D::test_e[x::y/z.py-1]", ("suites.a.test_b.C.D", "test_e[x::y/z.py-1]")),
        ("test_b.py::test_e", ("test_b", "test_e")),
        ("suites/a/cases.yaml::first", ("suites.a.cases.yaml", "first")),
        ("/abs/test_b.py::t", ("abs.test_b", "t")),
        ("suites/a/README.md", ("suites.a.README.md", "suites/a/README.md")),
        ("test_b.py::", ("test_b", "test_b.py::")),
        ("::", ("", "::")),
        ("a.py::t[\x00]", ("a", "t[\\x00]")),
    ],
)
def test_names(case: str, pair: tuple[str, str]) -> None:
    assert Names(lambda: [case]).of(case) == pair


def test_names_that_would_be_alike_are_distinguished_whatever_else_runs() -> None:
    alike = ["a/b.py::t", "a.b.py::t", "x.py::t[\x00]", "x.py::t[\\x00]"]
    every = Names(lambda: [*alike, "other.py::t"])
    names = {case: every.of(case) for case in [*alike, "other.py::t"]}
    assert len(set(names.values())) == 5
    assert names["other.py::t"] == ("other", "t")
    fewer = Names(lambda: alike[::-1])
    assert {case: fewer.of(case) for case in alike} == {case: names[case] for case in alike}
    assert re.fullmatch(r"t #[0-9a-f]{12}", names["a/b.py::t"][1])


@given(journals.hostile())
@example([build.run(), build.collected("\udc80\ud83d\x00::[", "a\nb::\t\r")])
@example(
    [build.collected("a"), build.finish("a", Outcome.FAILED, message="\n", detail="]]><![CDATA[<&>", stdout="\x1b\r")]
)
def test_no_text_makes_an_unreadable_report(lines: list[build.Line]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder)
        journals.write(run_dir, [build.run(), *lines])
        contents = reader.read_journal(run_dir / journal.FILE_NAME)
        assert not contents.damaged
        account = Ledger.from_journal(contents)
        written = junit.write_junit(run_dir)
        root = checked(written.path.read_bytes())
        assert len(root.findall("testsuite/testcase")) == len(account.verdicts) + len(account.findings)
        for case in root.iter("testcase"):
            for text in (case.findtext("system-out"), *case.attrib.values()):
                assert text is None or escape_invalid_xml(text) == text
        # A pure function of the journal.
        assert junit.write_junit(run_dir).path.read_bytes() == junit.serialise_junit(account)[0]


def test_long_texts_keep_head_and_tail() -> None:
    long = "HEAD" + "x" * 200_000 + "TAIL"
    case = only_case(build.finish(CASE, Outcome.FAILED, message="no", detail=long, stdout=long, stderr=long, log=long))
    for text in (case[0].text, case.findtext("system-out"), case.findtext("system-err")):
        assert text is not None
        assert len(text) < MOST_TEXT + 1000
        assert "HEAD" in text
        assert text.endswith("TAIL")
        assert re.search(r"\[\.\.\. \d+ of \d+ characters cut \.\.\.\]", text)


@pytest.mark.nightly
def test_noisy_cases_stay_within_what_readers_take() -> None:
    # Their texts are several times as large as readers accept. More would only take longer. Control characters and
    # markup grow when written, so the size of the file counts.
    noise = "<&>" * 2_000 + "\x00é" * 1_000 + "the last words"
    ids = [f"suites/s{n % 10}/test_noise.py::test_{n}" for n in range(1_000)]
    lines: list[build.Line] = [build.run(), build.collected(*ids)]
    for n, case in enumerate(ids):
        outcome = Outcome.FAILED if n % 2 else Outcome.PASSED
        lines.append(
            build.finish(case, outcome, message=f"broke {n}", detail=noise, stdout=noise, reproduce="pytest x")
        )
    data, limit = junit.serialise_junit(ledger(*lines))
    assert len(data) <= junit.MOST_BYTES < 30_000_000
    assert 0 < limit < MOST_TEXT
    assert len(data) > junit.MOST_BYTES / 8, "not cut more than needed"
    root = ElementTree.fromstring(data)
    assert root.attrib["tests"] == "1000"
    failures = root.findall("testsuite/testcase/failure")
    assert len(failures) == 500
    assert all("reproduce: pytest x" in (failure.text or "") for failure in failures)
    assert all((failure.text or "").endswith("the last words") for failure in failures)


def test_names_are_never_cut_and_texts_have_their_share_all_the_same() -> None:
    account = ledger(build.collected(CASE), build.finish(CASE, Outcome.FAILED, stdout="x" * 100))
    data, limit = junit.serialise_junit(account, most_bytes=10)
    assert limit == 8
    assert checked(data).attrib["failures"] == "1"
    assert b"xxxx\n[... 92 of 100 characters cut ...]\nxxxx" in data


def test_the_old_report_is_replaced_at_once_and_nothing_else_is_left(tmp_path: Path) -> None:
    with journal.Journal(tmp_path / journal.FILE_NAME) as writer:
        writer.append(build.event(build.run()))
    (tmp_path / junit.FILE_NAME).write_text("old")
    written = junit.write_junit(tmp_path)
    assert written.path == tmp_path / "junit.xml"
    assert written.size == written.path.stat().st_size
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal.ndjson", "junit.xml"]


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / junit.FILE_NAME / "in the way").mkdir(parents=True)
    with pytest.raises(WriteError, match=r"cannot write '.*junit\.xml'; make the folder writable"):
        junit.write_junit(tmp_path, ledger(build.run()))
    assert [path.name for path in tmp_path.iterdir()] == ["junit.xml"]


def strict(body: str = "", *, suite: str = "", case: str = 'time="0.1"') -> bool:
    """Return whether the schema accepts a report of one case with this content and these attributes."""
    return bool(
        strict_schema().is_valid(
            '<testsuites name="n" tests="1" failures="0" errors="0" time="0">'
            f'<testsuite name="s" tests="1" failures="0" errors="0" skipped="0" time="0.5" {suite}>'
            f'<testcase classname="c" name="n" {case}>{body}</testcase></testsuite></testsuites>'
        )
    )


def test_the_schema_takes_a_plain_report() -> None:
    assert strict("<system-out>x</system-out>", suite='hostname="h"')


@pytest.mark.parametrize(
    "body",
    [
        "<properties><property name='a' value='b'/></properties>",
        "<rerunFailure message='m'><stackTrace/></rerunFailure>",
        "<flakyFailure type='t' message='m'><system-out/><stackTrace/></flakyFailure>",
        "<failure type='t' message='m'><b/></failure>",
        "<output/>",
    ],
)
def test_the_schema_refuses_what_jenkins_refuses(body: str) -> None:
    assert not strict(body)
    assert not strict(case='time="0.1" file="f"')
    assert not strict(suite='colour="red"')


@pytest.mark.parametrize(
    "body",
    [
        "<flakyFailure type='t' message='m'>text outside the stack trace<stackTrace/></flakyFailure>",
        "<failure type='t' message='m'/><error type='t' message='m'/>",
        "<system-out/><system-out/>",
        "<system-out/><failure type='t' message='m'/>",
    ],
)
def test_the_schema_refuses_what_the_harness_never_writes(body: str) -> None:
    assert not strict(body)
    assert not strict(case='time="1e-05"')
