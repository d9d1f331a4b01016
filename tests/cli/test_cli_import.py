"""``harness import`` as users run it, and its run directory beside others."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from harness.cli.main import app
from harness.core.errors import HarnessError
from harness.core.outcome import EXIT_OK, EXIT_RED, Outcome
from tests.cli.test_cli_diff import run_dir

CTEST = (
    '<testsuite name="Linux-c++" tests="3" failures="{0}" disabled="0" skipped="0" hostname="node7" time="1" '
    'timestamp="2026-01-02T03:04:05"><testcase name="copy" classname="copy" time="0.5" status="run"/>'
    '<testcase name="kernel" classname="kernel" time="0.25" status="{1}">{2}<system-out>out</system-out></testcase>'
    '<testcase name="p2p" classname="p2p" time="0" status="notrun">'
    '<skipped message="SKIP_RETURN_CODE=77"/></testcase></testsuite>'
)
PASSED = CTEST.format(0, "run", "")
FAILED = CTEST.format(1, "fail", '<failure message="illegal &lt;address&gt;"/>')


def harness(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "400"})


def imported(folder: Path, text: str, *more: object) -> Path:
    folder.mkdir()
    (folder / "ctest.xml").write_text(text)
    done = harness("import", folder / "ctest.xml", "--name", "ctest", "-o", folder / "run", *more)
    assert done.exit_code == EXIT_OK, (done.output, done.exception)
    return folder / "run"


@pytest.fixture
def good(tmp_path: Path) -> Path:
    return imported(tmp_path / "good", PASSED, "--device", "NVIDIA H100")


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    return imported(tmp_path / "bad", FAILED, "--device", "NVIDIA H100")


def test_the_command_says_what_it_wrote(tmp_path: Path) -> None:
    (tmp_path / "x.xml").write_text(FAILED)
    done = harness("import", tmp_path / "x.xml", tmp_path / "x.xml", "--name", "ctest", "-o", tmp_path / "run")
    assert done.exit_code == EXIT_OK
    assert done.output.splitlines() == [
        "imported 6 cases: 2 skipped, 2 passed, 2 failed; 3 cases had the id of another and got a number",
        f"results: {tmp_path / 'run'}",
    ]
    names = {"journal.ndjson", "environment.json", "junit.xml", "report.html"}
    assert {path.name for path in (tmp_path / "run").iterdir()} == names


def test_a_report_shows_the_results_and_where_they_come_from(bad: Path) -> None:
    done = harness("report", bad)
    assert done.exit_code == EXIT_RED
    assert f"run by ctest, imported from {bad.parent / 'ctest.xml'} (sha256:" in done.output
    assert "FAILED ctest/kernel::kernel - illegal <address>\n" in done.output
    assert "reproduce" not in done.output
    root = ElementTree.parse(bad / "junit.xml").getroot()
    ran = {each.attrib["value"] for each in root.iter("property") if each.attrib["name"] == "ran"}
    assert len(ran) == 1
    assert ran.pop().startswith("by ctest, imported from ")
    assert "worker none" not in (bad / "junit.xml").read_text()
    assert "by ctest, imported from" in (bad / "report.html").read_text()
    assert "by ctest" in harness("report", "markdown", bad).output
    run = json.loads(harness("report", "json", bad).output)["run"]
    assert (run["imported"]["tool"], run["isolation"]) == ("ctest", "none")


def test_a_comparison_finds_what_is_worse(good: Path, bad: Path) -> None:
    done = harness("diff", good, bad)
    assert done.exit_code == EXIT_RED
    assert "REGRESSION ctest/kernel::kernel - was passed, now failed: illegal <address>" in done.output
    assert f"NOTE {good}: its cases were run by ctest, imported from" in done.output
    assert harness("diff", bad, good).exit_code == EXIT_OK


def test_a_matrix_has_imported_runs_beside_others(good: Path, bad: Path, tmp_path: Path) -> None:
    own = run_dir(tmp_path / "own", Outcome.PASSED)
    done = harness("matrix", own, good, bad, "-o", tmp_path / "m.html", "--json", tmp_path / "m.json")
    assert done.exit_code == EXIT_RED
    values = json.loads((tmp_path / "m.json").read_text())
    assert "NVIDIA H100" in json.dumps(values["machines"])
    assert "ctest/kernel::kernel" in json.dumps(values)
    assert "its cases were run by ctest, imported from" in done.output


def test_it_is_no_evidence(good: Path, tmp_path: Path) -> None:
    done = harness("package", good, "-o", tmp_path / "x.zip")
    assert isinstance(done.exception, HarnessError)  # the command prints it as one line, with exit status 4
    assert "only a run of the harness is evidence" in str(done.exception)
    assert not (tmp_path / "x.zip").exists()


def test_a_refused_file_is_one_sentence_and_writes_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.xml").write_text("<!DOCTYPE a><testsuite/>")
    done = harness("import", tmp_path / "x.xml", "--name", "ctest", "-o", tmp_path / "run")
    assert isinstance(done.exception, HarnessError)
    assert "declares a document type (DOCTYPE)" in str(done.exception)
    assert not (tmp_path / "run").exists()


def test_totals_that_no_case_has_are_said(tmp_path: Path) -> None:
    (tmp_path / "x.xml").write_text(FAILED.replace('failures="1"', 'failures="3"'))
    done = harness("import", tmp_path / "x.xml", "--name", "ctest", "-o", tmp_path / "run")
    assert f"FINDING imported_totals: {tmp_path / 'x.xml'} counts 2 failures that no case of it has\n" in done.output
    assert "; 1 finding\n" in done.output
