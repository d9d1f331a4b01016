"""`harness report junit|json|markdown|prometheus` as users run it."""

from __future__ import annotations

import html
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from prometheus_client.parser import text_string_to_metric_families

from harness.core.text import format_bytes
from harness.journal import environment
from tests.cli.commands import harness, refused
from tests.journal import journals
from tests.journal.journals import CRASHED, ENVIRONMENT, FAILED

pytestmark = pytest.mark.acceptance

FORMATS = ("junit", "json", "markdown", "prometheus")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    found = journals.write_bytes(tmp_path / "run", b"".join(journals.odd()))
    environment.write_environment(found, ENVIRONMENT)
    return found


def test_junit(run_dir: Path) -> None:
    report = run_dir / "junit.xml"
    done = harness("report", "junit", str(run_dir))
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        done.stdout == f"wrote {report} ({format_bytes(report.stat().st_size)}, long texts cut to 32768 characters)\n"
    )
    # Six cases and three findings.
    assert ElementTree.parse(report).getroot().attrib["tests"] == "9"
    assert harness("report", "junit", str(run_dir), "-o", "-").stdout == report.read_text()


def test_junit_in_a_flavour(run_dir: Path) -> None:
    other = run_dir.parent / "other.xml"
    done = harness("report", "junit", str(run_dir), "--junit-flavour", "gitlab", "-o", str(other))
    assert (done.returncode, done.stderr) == (0, "")
    names = {case.attrib["name"] for case in ElementTree.parse(other).iter("testcase")}
    assert {FAILED, CRASHED, "finding 1: device_lost"} <= names
    assert not (run_dir / "junit.xml").exists()
    line = refused(harness("report", "junit", str(run_dir), "--junit-flavour", "azure"))
    assert line == "harness: --junit-flavour='azure': expected one of default, jenkins, gitlab"


def test_json(run_dir: Path) -> None:
    report = run_dir.parent / "report.json"
    done = harness("report", "json", str(run_dir))
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["journal"]["damaged"] == 3
    assert harness("report", "json", str(run_dir), "-o", str(report)).stdout == ""
    assert report.read_text() == done.stdout


def test_markdown_is_appended_and_annotations_are_printed(run_dir: Path) -> None:
    page = run_dir.parent / "summary.md"
    page.write_text("what was there")
    done = harness("report", "markdown", str(run_dir))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("\n## Red: 3 of 6 cases red")
    printed = harness("report", "markdown", str(run_dir), "--annotations", "-o", str(page))
    assert page.read_text() == f"what was there{done.stdout}"
    assert printed.stdout.splitlines()[1].startswith(
        "::error file=suites/streams/test_a.py,line=7,title=FAILED suites/"
    )
    line = refused(harness("report", "markdown", str(run_dir), "--annotations"))
    assert line.startswith("harness: --annotations prints to standard output: add -o FILE")


def test_prometheus(run_dir: Path) -> None:
    metrics = run_dir.parent / "run.prom"
    done = harness("report", "prometheus", str(run_dir), "-o", str(metrics))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "harness_run_info" in {family.name for family in text_string_to_metric_families(metrics.read_text())}
    assert metrics.read_text() == harness("report", "prometheus", str(run_dir)).stdout
    assert sorted(path.name for path in run_dir.parent.iterdir()) == ["run", "run.prom"]
    line = refused(harness("report", "prometheus", str(run_dir), "-o", "metrics.txt"))
    assert line == "harness: -o 'metrics.txt': the textfile collector reads only files whose name ends with .prom"


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_no_run_is_refused(name: str, tmp_path: Path) -> None:
    assert "there is no journal at" in refused(harness("report", name, str(tmp_path)))
    journals.write_bytes(tmp_path, b"<xml/>")
    assert "is not a journal" in refused(harness("report", name, str(tmp_path)))


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_that_cannot_be_written(name: str, run_dir: Path) -> None:
    where = run_dir / "no" / "file.prom"
    line = refused(harness("report", name, str(run_dir), "-o", str(where)))
    assert line.startswith(f"harness: cannot write '{where}'; make the folder writable and free space there")


@pytest.mark.parametrize("name", FORMATS)
def test_a_broken_environment_is_done_without(name: str, run_dir: Path) -> None:
    (run_dir / environment.FILE_NAME).write_text("{")
    done = harness("report", name, str(run_dir), "-o", "-")
    assert done.returncode == 0
    assert "580.1" in html.unescape(done.stdout), "the run line has the driver too"
    assert ("is not the environment file of a run" in done.stderr) is (name != "junit")
