"""``harness matrix`` as users run it: in its own process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.outcome import EXIT_NOTHING_RAN, EXIT_OK, EXIT_RED, EXIT_USAGE, Outcome
from tests.fleet.matrix import runs
from tests.fleet.matrix.runs import CASES, Machine
from tests.warm import client

pytestmark = pytest.mark.acceptance

ONE, TWO, _ = CASES


def matrix(folder: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return client.run(["-m", "harness", "matrix", *arguments], folder)


def test_the_summary_has_classes_holes_and_notes(tmp_path: Path) -> None:
    runs.fleet(tmp_path / "runs", 6, n4=ONE, n5=ONE, n6=ONE, n2=TWO)
    runs.run(tmp_path / "runs" / "n7", Machine("n7"), {ONE: Outcome.GATED}, identity={"suite files": "sha256:00"})
    done = matrix(tmp_path, "runs", "-o", "page.html", "--json", "values.json")
    assert done.stdout.splitlines() == [
        "7 runs on 7 machines: 2 of 3 cases are red or flaky somewhere (1 one driver, 1 one device)",
        "ONE DRIVER (weak): driver 580.1 - Red in all 3 runs with driver 580.1, and in none of the 3 other runs.",
        f"  {ONE}",
        "  next: Run it on more machines: there are too few results to rule out chance.",
        "ONE DEVICE (one observation): device GPU-n2 - Red in the only run with device GPU-n2, and in none of the "
        "6 other runs.",
        f"  {TWO}",
        "  cannot be distinguished from: host n2; a flake",
        "  next: Run it again on device GPU-n2: it was bad only once.",
        "holes: 1 of 21 cells has no result",
        "  gated, memory: wanted >=40GiB (found 24.0GiB): 1 cell, 1 case on 1 machine",
        "differs: suite files: sha256:555555555555 in 6 runs, sha256:00 in 1 run",
        "wrote page.html and values.json",
    ]
    assert (done.returncode, done.stderr) == (EXIT_RED, "")
    assert (tmp_path / "page.html").read_bytes().startswith(b"<!doctype html>")
    assert json.loads((tmp_path / "values.json").read_text())["schema"] == 1


def test_the_exit_status(tmp_path: Path) -> None:
    runs.run(tmp_path / "good", Machine())
    runs.run(tmp_path / "bad", Machine("n2"), {ONE: Outcome.FAILED})
    runs.run(tmp_path / "none", Machine("n3"), dict.fromkeys(CASES, Outcome.GATED))
    assert matrix(tmp_path, "good").stdout.startswith("1 run on 1 machine: none of 3 cases is red\n")
    found = [
        matrix(tmp_path, *given).returncode for given in (["good"], ["good", "bad"], ["bad", "--exit-zero"], ["none"])
    ]
    assert found == [EXIT_OK, EXIT_RED, EXIT_OK, EXIT_NOTHING_RAN]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nothing"], "harness: there is no folder 'nothing': give run directories, or folders of run directories\n"),
        (
            ["empty"],
            "harness: there is no run in 'empty': expected journal.ndjson in it, or in folders up to 4 levels ",
        ),
        (["good", "-o", "nowhere/page.html"], "harness: cannot write 'nowhere/page.html'"),
        (["broken"], "harness: no run can be read: broken was left out"),
    ],
)
def test_mistakes_are_one_line_and_exit_status_4(tmp_path: Path, arguments: list[str], said: str) -> None:
    (tmp_path / "empty").mkdir()
    runs.run(tmp_path / "good", Machine())
    runs.write(tmp_path / "broken", [])
    done = matrix(tmp_path, *arguments)
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1


def test_hostile_texts_do_not_reach_the_terminal(tmp_path: Path) -> None:
    evil = "suites/a/test_a.py::\x1b]0;title\x07\x1b[31mred"
    runs.write(tmp_path / "r", runs.lines(Machine("\x1b[2J"), {evil: Outcome.FAILED}), Machine("\x1b[2J"))
    done = matrix(tmp_path, "r")
    assert "\x1b" not in done.stdout
    assert "suites/a/test_a.py::" in done.stdout


@pytest.mark.parametrize("most", [500, 2_000])
def test_a_full_folder_for_temporary_files_is_one_sentence(tmp_path: Path, most: int) -> None:
    runs.run(tmp_path / "r", Machine())
    command = ["prlimit", f"--fsize={most}", "--", sys.executable, "-m", "harness", "matrix", "r"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert (done.returncode, done.stdout) == (EXIT_USAGE, "")
    assert done.stderr.startswith("harness: cannot write a temporary file")
    assert "free space" in done.stderr
    assert done.stderr.count("\n") == 1
