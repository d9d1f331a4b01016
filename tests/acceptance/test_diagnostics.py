"""Runs with --collect-on-failure on a machine with fake GPUs and fake driver programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.acceptance.gpu_machine import Machine, finishes

_CASES = """
@on_gpu
@pytest.mark.parametrize("how", ["crashed", "failed", "passed"])
def test_it(how, device):
    if how == "crashed":
        crash()
    assert how == "passed"

def test_without_a_gpu():
    assert False
"""
_SMI = """#!/bin/sh
echo "Driver Version : 570.10"
"""


@pytest.fixture
def programs(machine: Machine, tmp_path: Path) -> str:
    """Return a PATH with a fake nvidia-smi first."""
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(_SMI)
    (folder / "nvidia-smi").chmod(0o700)
    machine.suite(_CASES)
    return f"{folder}:{os.environ['PATH']}"


def test_red_cases_have_diagnostics(machine: Machine, programs: str) -> None:
    result = machine.run("-n0", "--isolation=case", "--collect-on-failure=nvidia-smi,core", PATH=programs)
    for name, count in (("test_it[crashed]", 1), ("test_it[failed]", 1), ("test_it[passed]", 0)):
        (line,) = finishes(result, name)
        notes = [note for note in line.get("notes", []) if note.startswith("diagnostics are in ")]
        assert len(notes) == count, line
        for note in notes:
            folder, _, files = note.removeprefix("diagnostics are in ").partition(": ")
            assert files == "nvidia-smi.txt"
            path = Path(folder) / files
            assert path.read_text() == "Driver Version : 570.10\n"
            assert path.is_relative_to(result.run_dir / "files" / line["executor"])
            assert note in result.terminal
            assert f"temporary files are kept in {result.run_dir / 'files' / line['executor']}" in line["notes"]
    (run,) = [line for line in result.lines if line["event"] == "run"]
    assert run["settings"]["collect_on_failure"] == "nvidia-smi, core"
    (crashed,) = finishes(result, "test_it[crashed]")
    assert [note for note in crashed["notes"] if "core file" in note], crashed
    page = (result.run_dir / "report.html").read_text()
    assert "diagnostics are in " in page


@pytest.mark.nightly
def test_without_the_option_nothing_is_collected(machine: Machine, programs: str) -> None:
    result = machine.run("-n0", PATH=programs)
    assert not [line for line in result.lines if "diagnostics" in str(line.get("notes"))]
    assert not list(result.run_dir.rglob("diagnostics"))


@pytest.mark.nightly
def test_a_profile_may_ask_for_it_and_an_option_says_no(machine: Machine, programs: str) -> None:
    machine.project.write("configs/profiles/mine.yaml", "description: With diagnostics.\ncollect_on_failure: auto\n")
    result = machine.run("-n0", "--profile=mine", PATH=programs)
    assert len(list(result.run_dir.rglob("nvidia-smi.txt"))) >= 2
    result = machine.run("-n0", "--profile=mine", "--collect-on-failure=off", PATH=programs)
    assert not list(result.run_dir.rglob("nvidia-smi.txt"))


def test_an_unknown_item_is_refused(machine: Machine) -> None:
    machine.suite(_CASES)
    result = machine.project.run("-n0", "--collect-on-failure=dmesg", env=machine.environ)
    assert result.status == 4
    assert (
        "--collect-on-failure='dmesg': expected off, auto, all, or some of nvidia-smi, kernel-log, allocator, core, "
        "bug-report, separated by commas"
    ) in result.terminal
