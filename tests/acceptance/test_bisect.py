"""`harness bisect`: a case that goes wrong only after others, and which others these are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from harness.reporting import journal
from harness.reporting.events import Bisected
from harness.reporting.ledger import Ledger
from tests.acceptance.project import Project, Result

_CASES = """
import os
import pytest

LEFT = []

@pytest.mark.parametrize("n", range(6))
def test_leaves(n):
    if n in (1, 4):
        LEFT.append(n)

def test_fails_after_two():
    assert len(LEFT) < 2

def test_crashes_after_one():
    if 4 in LEFT:
        os.abort()

def test_passes():
    pass
"""
FILE = "suites/order/test_order.py"


def _run(folder: Path) -> tuple[Project, Result]:
    project = Project(folder / "project")
    project.write(FILE, _CASES)
    return project, project.run("-n0")


def _bisect(project: Project, run: Result, case: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "harness.cli", "bisect", str(run.run_dir), f"{FILE}::{case}"]
    return subprocess.run(command, cwd=project.folder, capture_output=True, text=True, check=False, timeout=300)


def test_the_fewest_cases_that_it_takes_are_found_and_recorded(tmp_path: Path) -> None:
    project, run = _run(tmp_path)
    done = _bisect(project, run, "test_fails_after_two")
    assert done.returncode == 0, done.stdout + done.stderr
    (found,) = [event for event in journal.read(run.run_dir / "journal.ndjson").events if isinstance(event, Bisected)]
    assert found.culprits == (f"{FILE}::test_leaves[1]", f"{FILE}::test_leaves[4]")
    assert f"goes wrong:     {found.reproduce}" in done.stdout
    assert Ledger.from_journal(run.contents).bisected == (found,)
    again = project.run(f"{FILE}::test_leaves[1]", f"{FILE}::test_leaves[4]", suites=f"{FILE}::test_fails_after_two")
    assert again.verdicts[f"{FILE}::test_fails_after_two"] == "passed"  # before them, and not after


def test_a_crash_in_company_is_explained_too(tmp_path: Path) -> None:
    project, run = _run(tmp_path)
    assert run.verdicts[f"{FILE}::test_crashes_after_one"] == "flaky"
    done = _bisect(project, run, "test_crashes_after_one")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"it needs {FILE}::test_leaves[4]\n" in done.stdout
    assert done.stdout.count("it needs") == 1


def test_there_is_nothing_to_find_out_about_a_case_that_passed(tmp_path: Path) -> None:
    project, run = _run(tmp_path)
    done = _bisect(project, run, "test_passes")
    assert done.returncode == 4
    assert done.stderr.startswith(f"harness: '{FILE}::test_passes' did not go wrong in ")
