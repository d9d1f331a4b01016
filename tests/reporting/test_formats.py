"""Reports in formats of this package and of others: found by name, written by a run, and wrong ones are refused."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import WriteError
from harness.core.outcome import Outcome
from harness.journal import journal
from harness.journal.ledger import Ledger, Results
from harness.journal.reader import read_run_journal
from harness.reporting import formats
from harness.reporting.formats import ReportFormatError, WantedReport
from tests.journal import journals
from tests.reporting import build

A, B = "suites/a/test_a.py::test_a", "suites/a/test_a.py::test_b"


def red_ids(results: Results, _facts: Mapping[str, Any] | None) -> Iterable[bytes]:
    """A format of a company: the ids of the red cases."""
    for verdict, _ in results.cases():
        if verdict.outcome.is_red:
            yield f"{verdict.case}\n".encode()


def broken(_results: Results, _facts: Mapping[str, Any] | None) -> Iterable[bytes]:
    yield b"half"
    raise RuntimeError("no database")


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        importlib.metadata.EntryPoint(name, f"{__name__}:{value}", formats.GROUP)
        for name, value in [
            ("red-ids", "red_ids"),
            ("broken", "broken"),
            ("gone", "nothing"),
            ("text", "A"),
            ("twice", "red_ids"),
            ("twice", "broken"),
            ("json", "red_ids"),
        ]
    ]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [p for p in points if p.group == group])


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    lines = [build.run(), build.collected(A, B), build.start(A), build.finish(A), build.start(B)]
    return journals.write(tmp_path / "run", [*lines, build.finish(B, Outcome.FAILED), build.end(exit_status=1)])


def write(wanted: list[str], run_dir: Path) -> list[str]:
    notes: list[str] = []
    ledger = Ledger.from_journal(read_run_journal(run_dir / journal.FILE_NAME))
    formats.write_reports(wanted, ledger, run_dir=run_dir, base=run_dir.parent, note=notes.append)
    return notes


@pytest.mark.usefixtures("registered")
def test_a_run_writes_own_formats_and_those_of_packages(run_dir: Path) -> None:
    assert write(["json", "prometheus", "markdown:summary.md", "red-ids:red.txt"], run_dir) == []
    assert json.loads((run_dir / "report.json").read_text())["run"]["seed"] == 7
    assert "harness" in (run_dir / "report.prom").read_text()
    assert "1 of 2 cases red" in (run_dir.parent / "summary.md").read_text()
    assert (run_dir.parent / "red.txt").read_text() == f"{B}\n"


@pytest.mark.usefixtures("registered")
def test_an_error_of_a_format_is_a_remark_and_leaves_no_file(run_dir: Path) -> None:
    (note,) = write(["broken:b.txt"], run_dir)
    assert "b.txt was not written, an error of the format 'broken': RuntimeError('no database') in " in note
    assert not (run_dir.parent / "b.txt").exists()


def test_a_file_that_cannot_be_written_is_an_error(run_dir: Path) -> None:
    with pytest.raises(WriteError, match=r"cannot write '.*/nowhere/x\.json'"):
        write(["json:nowhere/x.json"], run_dir)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("yaml", "there is no report format 'yaml': expected json, markdown, prometheus, broken, gone, red-ids, text"),
        ("", "there is no report format ''"),
        ("gone", "the report format 'gone' cannot be loaded from"),
        ("text", r"the report format 'text' \(.*\) is 'suites/.*', expected a function of results and facts"),
        ("twice:f", "the report format 'twice' is registered 2 times"),
        ("prometheus:f.txt", r"'f.txt': the textfile collector reads only files whose name ends with \.prom"),
    ],
)
def test_what_is_no_format_is_refused(text: str, problem: str) -> None:
    with pytest.raises(ReportFormatError, match=problem):
        WantedReport.parse(text)


@pytest.mark.usefixtures("registered")
def test_a_package_cannot_replace_an_own_format() -> None:
    assert formats.report_format("json") is not red_ids
