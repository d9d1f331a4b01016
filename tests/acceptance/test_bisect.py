"""`harness bisect`: a case that fails only after others, and the search for these others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.journal import reader
from harness.journal.events import Bisected
from harness.journal.ledger import Ledger
from tests.acceptance.project import Project, Result
from tests.warm import client

pytestmark = pytest.mark.long

_CASES = """
import os
import pytest

LEFT = []

@pytest.mark.parametrize("n", range(4))
def test_leaves(n):
    if n in (1, 3):
        LEFT.append(n)

def test_fails_after_two():
    assert len(LEFT) < 2

def test_crashes_after_one():
    if 3 in LEFT:
        os.abort()

def test_passes():
    pass
"""
FILE = "suites/order/test_order.py"


def _run(folder: Path) -> tuple[Project, Result]:
    project = Project(folder / "project")
    project.write(FILE, _CASES)
    return project, project.run("-n0")


def _bisect(project: Project, run: Result, case: str) -> tuple[int, str]:
    """Return the exit status and the output."""
    output = project.folder / "bisect.out"
    command = ["-m", "harness", "bisect", str(run.run_dir), f"{FILE}::{case}"]
    with output.open("wb") as file:
        status = client.start(command, project.folder, dict(os.environ), file).wait(300)
    return status, output.read_text(encoding="utf-8")


@pytest.mark.nightly  # the next test finds a case that it needs
def test_the_fewest_cases_that_it_takes_are_found_and_recorded(tmp_path: Path) -> None:
    project, run = _run(tmp_path)
    status, printed = _bisect(project, run, "test_fails_after_two")
    assert status == 0, printed
    (found,) = [
        event for event in reader.read_journal(run.run_dir / "journal.ndjson").events if isinstance(event, Bisected)
    ]
    assert found.culprits == (f"{FILE}::test_leaves[1]", f"{FILE}::test_leaves[3]")
    assert f"goes wrong:     {found.reproduce}" in printed
    assert Ledger.from_journal(run.contents).bisected == (found,)
    again = project.run(f"{FILE}::test_leaves[1]", f"{FILE}::test_leaves[3]", suites=f"{FILE}::test_fails_after_two")
    assert again.verdicts[f"{FILE}::test_fails_after_two"] == "passed"  # `again` runs it before them, not after


def test_a_crash_in_company_is_explained_too(tmp_path: Path) -> None:
    project, run = _run(tmp_path)
    assert run.verdicts[f"{FILE}::test_crashes_after_one"] == "flaky"
    status, printed = _bisect(project, run, "test_crashes_after_one")
    assert status == 0, printed
    assert f"it needs {FILE}::test_leaves[3]\n" in printed
    assert printed.count("it needs") == 1
    (found,) = Ledger.from_journal(run.contents).bisected
    assert found.culprits == (f"{FILE}::test_leaves[3]",)
    assert "test_leaves[3]" in found.reproduce


def test_there_is_nothing_to_find_out_about_a_case_that_passed(tmp_path: Path) -> None:
    project, run = _run(tmp_path)
    status, printed = _bisect(project, run, "test_passes")
    assert status == 4
    assert printed.startswith(f"harness: '{FILE}::test_passes' did not go wrong in ")
