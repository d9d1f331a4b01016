"""NVIDIA's ``dcgmi diag``: its output judged, and a fake program in its place. The real one was never run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.core.disposable import DisposableRun
from harness.ready import dcgm
from harness.ready.node import Request
from tests.ready.test_judge import judged


def output(*results: dict[str, Any]) -> bytes:
    tests = [{"name": "PCIe", "results": [{"gpu_id": "0", "status": "Pass"}]}, {"name": "Memory", "results": results}]
    return json.dumps({"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": tests}]}}).encode()


PASS, SKIP = {"gpu_id": "1", "status": "Pass"}, {"gpu_id": "1", "status": "Skip"}
FAIL, FAIL4 = {"gpu_id": "1", "status": "Fail", "warnings": "DBE"}, {"entity_id": 1, "status": "Fail"}


@pytest.mark.parametrize(
    ("end", "state", "kinds", "text"),
    [
        (DisposableRun(0, True, 9.0, output(PASS, SKIP)), "ok", [], ""),
        (DisposableRun(226, True, 9.0, output(PASS, FAIL)), "problem", ["dcgm"], "Memory (GPU 1)"),
        (DisposableRun(0, True, 9.0, output(FAIL4)), "problem", ["dcgm"], "Memory (GPU 1)"),
        (DisposableRun(226, True, 9.0, output(PASS)), "unknown", ["cannot_run"], "exit status 226, and no test failed"),
        (DisposableRun(1, True, 1.0, b"", b"no host engine\n"), "unknown", ["cannot_run"], "no JSON: no host engine"),
        (DisposableRun(0, True, 1.0, b"[" * 100000), "unknown", ["cannot_run"], "no JSON"),
        (DisposableRun(-9, False, 60.0), "unknown", ["cannot_run"], "did not end within 60 s"),
        (DisposableRun(None, False, 60.0), "problem", ["unkillable"], "dcgmi diag"),
    ],
)
def test_what_dcgm_says(end: DisposableRun, state: str, kinds: list[str], text: str) -> None:
    (run,), problems = judged(dcgm.judge_dcgm, end)
    assert (run.state, [problem.kind for problem in problems]) == (state, kinds)
    assert text in run.text


@pytest.mark.parametrize(("budget", "level"), [(300.0, 1), (600.0, 2)])
def test_a_fake_dcgmi_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: float, level: int) -> None:
    program = tmp_path / "dcgmi"
    program.write_text(f'#!/bin/sh\necho "$@" >"{tmp_path}/asked"\necho \'{output(FAIL).decode()}\'\nexit 226\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (run,), (problem,) = judged(dcgm.run_dcgm, Request(budget=budget), 100.0)
    assert (run.state, problem.kind, problem.found) == ("problem", "dcgm", "Memory (GPU 1)")
    assert (tmp_path / "asked").read_text() == f"diag -r {level} -j\n"


def test_without_the_program_the_check_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (run,), problems = judged(dcgm.run_dcgm, Request(), 100.0)
    assert (run.state, run.text, problems) == ("skipped", "dcgmi is not installed", [])
