"""junit.xml per reader (default, Jenkins, GitLab), with a suite per host, device and folder of cases."""

from __future__ import annotations

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

from harness.configuration import values
from harness.core.caseid import Shard
from harness.core.outcome import Outcome
from harness.core.text import escape_invalid_xml
from harness.journal import environment, journal, reader
from harness.journal.ledger import Ledger
from harness.reporting import junit
from harness.reporting.junit_case import FLAVOURS, named
from tests.journal import journals
from tests.journal.journals import CRASHED, ENVIRONMENT, FAILED, FLAKY, GATED, PASSED
from tests.reporting import build

SCHEMAS = {"default": "strict_junit.xsd", "jenkins": "strict_junit.xsd", "gitlab": "gitlab_junit.xsd"}


@cache
def schema(name: str) -> Any:
    return xmlschema.XMLSchema(Path(__file__).with_name(SCHEMAS[name]))


def checked(data: bytes, flavour: str) -> Element:
    """Return the root of a report after validating it with its schema and junitparser, and checking its totals."""
    root = ElementTree.fromstring(data)
    schema(flavour).validate(root)
    assert sum(1 for suite in xunit2.JUnitXml.fromstring(data) for _ in suite) == int(root.attrib["tests"])
    for name, tag in (("tests", "."), ("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        found = {suite.attrib["id"]: len(suite.findall(f"testcase/{tag}")) for suite in root}
        if tag == ".":
            found = {suite.attrib["id"]: len(suite.findall("testcase")) for suite in root}
        assert {suite.attrib["id"]: int(suite.attrib[name]) for suite in root} == found
        if name != "skipped":
            assert int(root.attrib[name]) == sum(found.values())
    return root


def report(lines: list[build.Line], flavour: str, known: dict[str, Any] | None = None) -> Element:
    return checked(junit.serialise_junit(build.ledger(*build.finished(*lines)), known, flavour=flavour)[0], flavour)


def case(root: Element, ending: str) -> Element:
    (found,) = (each for each in root.iter("testcase") if each.attrib["name"].endswith(ending))
    return found


def properties(suite: Element) -> dict[str, str]:
    return {each.attrib["name"]: each.attrib["value"] for each in suite.iter("property")}


def test_options_and_reports_know_the_same_flavours() -> None:
    assert tuple(FLAVOURS) == values.JUNIT_FLAVOURS == (*SCHEMAS,)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_suite_for_each_host_device_and_folder(flavour: str) -> None:
    root = report(journals.lines(), flavour, ENVIRONMENT)
    cases = {
        suite.attrib["name"]: [each.attrib["name"].rpartition("::")[2] for each in suite.iter("testcase")]
        for suite in root
        if suite.attrib["name"] != "harness"
    }
    assert cases == {
        "amp (node1, no device)": ["test_gated", "test_not_run"],
        "amp (node1, GPU-1)": ["test_flaky"],
        "amp (node1, GPU-2)": ["test_passed"],
        "streams (node1, GPU-1)": ["test_failed[x|y]"],
        "streams (node1, GPU-2)": ["test_crashed"],
    }
    facts = {suite.attrib["name"]: properties(suite) for suite in root}
    assert (
        facts["streams (node1, GPU-2)"].items()
        >= {
            "device": "NVIDIA GPU-2",
            "uuid": "GPU-2",
            "driver": "580.1",
            "cuda": "12.8",
            "cuda_driver": "13.0",
            "torch": "2.13.0",
            "seed": "7",
            "isolation": "batch",
        }.items()
    )
    assert "uuid" not in facts["amp (node1, no device)"]


def test_without_an_environment_the_run_line_says_what_it_knows() -> None:
    (suite, *_) = report(journals.lines(), "default")
    facts = properties(suite)
    assert (facts["driver"], facts["torch"]) == ("580.1", "2.13.0")
    assert "cuda" not in facts


def test_the_environment_of_another_host_is_not_taken_for_this_one() -> None:
    (suite, *_) = report(journals.lines(), "default", {**ENVIRONMENT, "host": "node9", "driver": "1"})
    assert properties(suite)["driver"] == "580.1"


def test_one_device_needs_no_names_in_suites() -> None:
    lines = [build.run(devices=["GPU-1"]), build.collected(PASSED, GATED), build.finish(PASSED, devices=["GPU-1"])]
    lines.append(build.finish(GATED, Outcome.GATED, devices=[]))
    assert [suite.attrib["name"] for suite in report(lines, "default")] == ["amp"]


def test_a_case_on_several_devices_has_all_of_them() -> None:
    devices = ["GPU-1", "GPU-2"]
    lines = [build.run(devices=devices), build.collected(PASSED), build.finish(PASSED, devices=devices)]
    (suite,) = report(lines, "default", ENVIRONMENT)
    facts = properties(suite)
    assert (facts["device"], facts["uuid"]) == ("NVIDIA GPU-1, NVIDIA GPU-2", "GPU-1 GPU-2")


def test_devices_that_are_no_gpus_say_so() -> None:
    lines = [build.run(devices=["SOFT-0"]), build.collected(PASSED), build.finish(PASSED, devices=["SOFT-0"])]
    known = {**ENVIRONMENT, "devices": [{"uuid": "SOFT-0", "name": "a name"}]}
    (suite,) = report(lines, "default", known)
    facts = properties(suite)
    assert (facts["device"], facts["uuid"]) == ("soft (software device)", "SOFT-0")


def test_a_merged_run_has_suites_of_all_hosts() -> None:
    ids = [f"suites/amp/test_a.py::test_{number}" for number in range(20)]
    shards = [
        build.shard(shard="1/2", host="node1", devices=["GPU-1"]),
        build.shard(shard="2/2", host="node2", devices=["GPU-2"]),
    ]
    known = {
        "shards": {
            "1/2": {**ENVIRONMENT, "driver": "1.1"},
            "2/2": {**ENVIRONMENT, "host": "node2", "driver": "2.2"},
        }
    }
    lines = [build.run(devices=["GPU-1", "GPU-2"], host="merger"), *shards, build.collected(*ids)]
    lines += [
        build.finish(each, devices=["GPU-1"] if Shard(1, 2).has(each) else ["GPU-2"], worker="shard1-gw0")
        for each in ids[:15]
    ]
    root = report(lines, "default", known)
    found = {
        (suite.attrib["hostname"], properties(suite)["uuid"], properties(suite)["driver"]): {
            each.attrib["name"] for each in suite.iter("testcase")
        }
        for suite in root
    }
    expected = {name.rpartition("::")[2] for name in ids if Shard(1, 2).has(name)}
    assert found[("node1", "GPU-1", "1.1")] == expected
    assert found[("node2", "GPU-2", "2.2")] == {name.rpartition("::")[2] for name in ids} - expected
    assert len({suite.attrib["id"] for suite in root}) == len(root) == 2


def test_a_run_that_was_resumed_elsewhere_has_both_hosts() -> None:
    lines = [
        build.run(),
        build.collected(PASSED, GATED),
        build.finish(PASSED),
        build.run(t=1_760_000_010.0, host="node2", part=2),
        build.finish(GATED, t=1_760_000_011.0),
    ]
    hosts = {suite.attrib["hostname"]: suite.attrib["tests"] for suite in report(lines, "default")}
    assert hosts == {"node1": "1", "node2": "1"}


@pytest.mark.parametrize("flavour", ["default", "jenkins"])
def test_each_finding_is_a_case_with_an_error(flavour: str) -> None:
    root = report(journals.lines(), flavour)
    (suite,) = root.findall("testsuite[@name='harness']")
    assert (root.attrib["tests"], root.attrib["errors"]) == ("8", "4")
    assert (suite.attrib["tests"], suite.attrib["errors"]) == ("2", "2")
    first, second = suite.iter("testcase")
    assert first.attrib == {"name": "finding 1: device_lost", "classname": "harness.findings", "time": "0.0"}
    assert first[0].attrib == {"type": "finding", "message": "GPU-2 fell off"}
    assert first[0].text == f"device_lost: GPU-2 fell off [{CRASHED}]"
    assert second.attrib["name"] == "finding 2: must_pass"
    assert [child.tag for child in case(root, "test_flaky")] == ["flakyFailure"]
    assert not [suite for suite in root if not suite.findall("testcase")]


def test_gitlab_shows_whole_ids_files_and_earlier_attempts_as_text() -> None:
    root = report(journals.lines(fail_on_flaky=True), "gitlab")
    failed = case(root, FAILED)
    assert failed.attrib["name"] == FAILED
    assert failed.attrib["file"] == "suites/streams/test_a.py"
    assert (failed.findtext("failure") or "").startswith("assert 1 == 2\nreproduce: pytest 'x'\n")
    flaky = case(root, FLAKY)
    assert "\n\nbroke here\nattempt 1 (after other cases)" in (flaky.findtext("failure") or "")
    assert root.find(".//flakyFailure") is None
    assert case(root, "finding 1: device_lost").find("error") is not None


def test_gitlab_has_attempts_of_a_green_case_in_its_output() -> None:
    flaky = case(report(journals.lines(), "gitlab"), FLAKY)
    assert [child.tag for child in flaky] == ["system-out"]
    assert "broke here\nattempt 1 (after other cases)" in (flaky.findtext("system-out") or "")


def test_gitlab_gets_a_document_below_its_limit() -> None:
    ids = [f"suites/a/test_a.py::test_{number}" for number in range(300)]
    lines = [build.run(), build.collected(*ids)]
    lines += [build.finish(each, Outcome.FAILED, detail="<&>" * 5_000, stdout="\x00" * 9_000) for each in ids]
    ledger = build.ledger(*lines)
    data, limit = junit.serialise_junit(ledger, flavour="gitlab", most_bytes=1_000_000)
    assert len(data) <= 1_000_000
    assert 0 < limit < 9_000
    checked(data, "gitlab")


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_names_that_clean_to_the_same_stay_apart(flavour: str) -> None:
    ids = ["x.py::t[\x00]", "x.py::t[\\x00]", "a/b.py::t", "a.b.py::t"]
    root = report([build.run(), build.collected(*ids), *map(build.finish, ids)], flavour)
    assert len({(each.attrib["classname"], each.attrib["name"]) for each in root.iter("testcase")}) == 4


def test_the_run_decides_unless_somebody_asks(tmp_path: Path) -> None:
    journals.write(tmp_path, journals.lines(settings={"junit_flavour": "gitlab"}))
    environment.write_environment(tmp_path, ENVIRONMENT)
    written = junit.write_junit(tmp_path)
    assert written.path == tmp_path / "junit.xml"
    checked(written.path.read_bytes(), "gitlab")
    elsewhere = junit.write_junit(tmp_path, flavour="jenkins", out=tmp_path / "other.xml").path
    assert case(checked(elsewhere.read_bytes(), "jenkins"), "finding 1: device_lost") is not None
    assert named("of another version") is named(None) is FLAVOURS["default"]


def test_oddities_of_the_journal_are_a_property_and_a_finding(tmp_path: Path) -> None:
    journals.write_bytes(tmp_path, b"".join(journals.odd()))
    root = checked(junit.write_junit(tmp_path).path.read_bytes(), "default")
    assert properties(root[0])["journal"] == (
        "the journal has 1 line of an unknown kind, which a newer harness may read: line 19 'party'; "
        "the journal has 1 duplicate line, counted once"
    )
    assert "the journal has 3 unreadable lines" in "".join(root.itertext())


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_same_bytes_from_disk_and_from_memory(flavour: str, tmp_path: Path) -> None:
    journals.write_bytes(tmp_path, b"".join(journals.odd()))
    environment.write_environment(tmp_path, ENVIRONMENT)
    ledger = Ledger.from_journal(reader.read_journal(tmp_path / journal.FILE_NAME))
    data = junit.write_junit(tmp_path, flavour=flavour).path.read_bytes()
    assert data == junit.write_junit(tmp_path, ledger, flavour=flavour).path.read_bytes()
    assert data == junit.serialise_junit(ledger, ENVIRONMENT, flavour=flavour)[0]


@given(journals.hostile())
@example([build.run(), build.collected("\udc80\ud83d\x00::[", "a\nb::\t\r"), build.finding("", kind="\r")])
@example(
    [build.collected("a"), build.finish("a", Outcome.FAILED, message="\n", detail="]]><![CDATA[<&>", stdout="\x1b\r")]
)
def test_no_text_makes_an_unreadable_report(lines: list[build.Line]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run_dir = journals.write(Path(folder), [build.run(), *lines])
        ledger = Ledger.from_journal(reader.read_journal(run_dir / journal.FILE_NAME))
        for flavour in FLAVOURS:
            root = checked(junit.write_junit(run_dir, flavour=flavour).path.read_bytes(), flavour)
            assert junit.serialise_junit(ledger, flavour=flavour)[0] == (run_dir / junit.FILE_NAME).read_bytes()
            for element in root.iter():
                for text in (element.text, *element.attrib.values()):
                    assert text is None or escape_invalid_xml(text) == text


def test_a_carriage_return_is_read_back() -> None:
    lines = [build.run(), build.collected(PASSED), build.finish(PASSED, stdout="a\r\nb\rc")]
    assert report(lines, "default").findtext(".//system-out") == "a\r\nb\rc"
