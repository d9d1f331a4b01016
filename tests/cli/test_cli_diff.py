"""``harness diff`` as users run it: in its own process."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from harness.core.outcome import EXIT_OK, EXIT_RED, EXIT_USAGE, Outcome
from tests.journal import journals
from tests.reporting import build
from tests.warm import client

A = "suites/a/test_a.py::a"


def run_dir(folder: Path, outcome: Outcome) -> Path:
    end = build.end(exit_status=int(outcome.is_red))
    return journals.write(folder, [build.run(), build.collected(A), build.start(A), build.finish(A, outcome), end])


def diff(*arguments: object) -> subprocess.CompletedProcess[str]:
    return client.run(["-m", "harness", "diff", *arguments])


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path, Path]:
    """Return a run that passed, one that failed, and a flaky one."""
    outcomes = {"good": Outcome.PASSED, "bad": Outcome.FAILED, "flaky": Outcome.FLAKY}
    good, bad, flaky = (run_dir(tmp_path / name, outcome) for name, outcome in outcomes.items())
    return good, bad, flaky


def test_a_regression_has_exit_status_1(runs: tuple[Path, Path, Path]) -> None:
    good, bad, _ = runs
    done = diff(good, bad)
    assert f"REGRESSION {A} - was passed, now failed" in done.stdout
    assert (done.returncode, done.stderr) == (EXIT_RED, "")
    assert diff(bad, good).returncode == diff(bad, good, "--strict").returncode == EXIT_OK


def test_strict_counts_new_flakes(runs: tuple[Path, Path, Path]) -> None:
    good, _, flaky = runs
    assert (diff(good, flaky).returncode, diff(good, flaky, "--strict").returncode) == (EXIT_OK, EXIT_RED)


def test_a_run_that_is_red_by_a_finding_is_a_regression(runs: tuple[Path, Path, Path], tmp_path: Path) -> None:
    good, _, _ = runs
    leak = build.finding("gw0-1 leaks 512 bytes", kind="batch_leak", cases=[A], reproduce="pytest x")
    lines = [build.run(), build.collected(A), build.start(A), build.finish(A), leak, build.end(exit_status=1)]
    red = journals.write(tmp_path / "finding", lines)
    again = journals.write(
        tmp_path / "again", [{**line, "run_id": "r2"} if line["event"] == "run" else line for line in lines]
    )
    for more in ((), ("--strict",)):
        done = diff(good, red, *more)
        assert f"NEW FINDING batch_leak: gw0-1 leaks 512 bytes [1 case: {A}] - not in the baseline" in done.stdout
        assert done.returncode == EXIT_RED
        assert (diff(red, good, *more).returncode, diff(red, again, *more).returncode) == (EXIT_OK, EXIT_OK)


def test_formats(runs: tuple[Path, Path, Path]) -> None:
    good, bad, flaky = runs
    found = json.loads(diff(good, flaky, bad, "--format=json").stdout)
    assert [each["case"] for each in found["regressions"]] == [A]
    assert diff(good, bad, "--format=markdown").stdout.startswith("## 1 regression\n")


def test_mistakes_are_named(runs: tuple[Path, Path, Path], tmp_path: Path) -> None:
    good, _, _ = runs
    for arguments, said in (
        ([], "Missing argument 'BASELINE... NEW'"),
        ([good, good, "--stric"], "No such option: --stric"),
        ([good], "alone cannot be compared: give a baseline and a new run, or more runs"),
        ([good, good], "a run cannot be compared with itself"),
        ([good, good.parent / "." / "good"], "a run cannot be compared with itself"),
    ):
        done = diff(*arguments)
        assert done.returncode == EXIT_USAGE
        assert said in " ".join(done.stderr.replace("│", " ").split())
    done = diff(good, tmp_path / "nothing")
    assert done.returncode == EXIT_USAGE
    assert done.stderr.startswith("harness: there is no journal at")
    assert done.stderr.count("\n") == 1
