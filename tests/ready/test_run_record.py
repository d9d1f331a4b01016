"""The report as a run directory: what each check becomes, and what a history of two days says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from harness.core.outcome import Outcome
from harness.journal.ledger import Ledger
from harness.ready.model import CheckRun, GpuReport, NodeReport, Problem, Verdict
from harness.ready.run_record import REPORT, RecordError, write_run
from tests.ready.problems import make_problem

UUID = "GPU-aaaa"
ARGV = ("harness", "ready", "--passive")


def problem(kind: str, check: str, gpu: str | None = UUID) -> Problem:
    return make_problem(kind, check=check, wanted="none", found="some", gpu=gpu)


def report(*problems: Problem, **more: Any) -> NodeReport:
    checks = (
        CheckRun(name="driver", state="ok"),
        CheckRun(name="row_remapping", gpu=UUID, state="problem", seconds=0.5),
        CheckRun(name="fabric", gpu=UUID, state="skipped", text="this card has none"),
        CheckRun(name="temperature", gpu=UUID, state="unknown", text="no permission"),
    )
    fields: dict[str, Any] = {
        "host": "node7",
        "time": 1.8e9,
        "mode": "passive",
        "budget": 0.0,
        "seconds": 0.75,
        "verdict": Verdict.NOT_READY,
        "gpus": (GpuReport(uuid=UUID, index=3, name="H100", serial="16", verdict=Verdict.NOT_READY),),
        "problems": problems,
        "checks": checks,
        "stack": {"driver": "570.86.15", "torch": "2.13.0"},
    }
    return NodeReport(**{**fields, **more})


def test_each_check_is_a_case(tmp_path: Path) -> None:
    made = report(
        problem("rows_failed", "row_remapping"), problem("unreadable", "temperature"), problem("disk_low", "disk", None)
    )
    write_run(made, tmp_path / "run", ARGV)
    ledger = Ledger.of(tmp_path / "run")
    assert {verdict.case: verdict.outcome for verdict in ledger.verdicts} == {
        "ready/node::driver": Outcome.PASSED,
        "ready/gpu 3::row_remapping": Outcome.FAILED,
        "ready/gpu 3::fabric": Outcome.SKIPPED,
        "ready/gpu 3::temperature": Outcome.ERROR,
        "ready/node::disk": Outcome.FAILED,
    }
    assert msgspec.json.decode((tmp_path / "run" / REPORT).read_bytes(), type=NodeReport) == made
    facts = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert (facts["driver"], facts["versions"]["torch"]) == ("570.86.15", "2.13.0")


def test_a_folder_with_a_run_is_refused(tmp_path: Path) -> None:
    write_run(report(), tmp_path, ARGV)
    with pytest.raises(RecordError, match="already contains a run"):
        write_run(report(), tmp_path, ARGV)


@pytest.mark.acceptance
def test_a_history_says_since_when_and_on_which_driver(tmp_path: Path) -> None:
    """A day with driver 570, and two with driver 580, on which a row remapping has failed."""
    sound = tuple(CheckRun(name=name, gpu=UUID, state="ok") for name in ("row_remapping", "temperature"))
    bad = problem("rows_failed", "row_remapping")
    write_run(report(checks=sound, verdict=Verdict.READY), tmp_path / "runs" / "1", ARGV)
    for day in (1, 2):
        stack = {"driver": "580.10", "torch": "2.13.0"}
        write_run(report(bad, time=1.8e9 + day * 86400, stack=stack), tmp_path / "runs" / f"{day + 1}", ARGV)

    def history(*words: str) -> str:
        command = [sys.executable, "-m", "harness", "history", *words, "--db", str(tmp_path / "history.duckdb")]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert "3 added" in history("add", str(tmp_path / "runs"))
    case = history("report", "--case", "ready/gpu 3::row_remapping")
    assert "bad in 2 of 3 runs" in case
    assert "driver was '570.86.15' and is '580.10'" in case
    assert "failed on GPU-aaaa" in case
    assert "next: open a ticket with the vendor" in case
