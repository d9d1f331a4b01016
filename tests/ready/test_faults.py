"""``harness ready`` on the simulated CUDA: each fault has its problem and next step, and without a fault none has."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from harness.ready.model import NodeReport, Problem, Verdict
from harness.sim.native.faults import fault_catalogue
from tests.ready.expected import EXPECTED
from tests.sim.simcuda.cuda_builds import needs_cuda_build

#: Faults that every run of the tests tries: one of each way to end.
_ALWAYS = frozenset(
    {"copy_corrupts_bytes", "launch_kills_process", "replay_stale", "peer_copy_unordered", "rank_hangs"}
)
#: More than the 95% that a check of a node must find.
_FOUND = 0.95


def run(*options: str, devices: int = 3) -> NodeReport:
    command = [sys.executable, "-m", "harness", "ready", "--device=simcuda", "--json", *options]
    environ = {**os.environ, "SIMCUDA_DEVICE_COUNT": str(devices)}
    done = subprocess.run(command, env=environ, capture_output=True, check=False)
    return msgspec.json.decode(done.stdout, type=NodeReport)


def of_tests(report: NodeReport) -> list[Problem]:
    """Return the problems of the simulated devices; the host that has them may have problems of its own."""
    uuids = {gpu.uuid for gpu in report.gpus}
    host = {"clock", "shared_memory", "open_files", "disk", "kernel_log", "processes", "stuck_process"}
    return [
        each for each in report.problems if each.gpu in uuids or each.check not in host if each.check != "processes"
    ]


_CASES = [pytest.param(fault, marks=[] if fault in _ALWAYS else [pytest.mark.nightly]) for fault in EXPECTED]


def test_each_fault_of_the_simulated_cuda_is_in_the_table() -> None:
    assert {*EXPECTED} == {*fault_catalogue("simcuda")}


def test_the_table_says_of_most_faults_that_they_are_found() -> None:
    assert sum(expected is not None for expected in EXPECTED.values()) >= _FOUND * len(EXPECTED)


@needs_cuda_build
@pytest.mark.acceptance
@pytest.mark.parametrize("fault", _CASES)
def test_a_fault_has_its_problem(fault: str) -> None:
    expected = EXPECTED[fault]
    problems = of_tests(run(f"--inject={fault}"))

    if expected is None:
        assert problems == []
    else:
        assert expected.fits(problems[0] if problems else None), problems[:2]


@needs_cuda_build
@pytest.mark.acceptance
@pytest.mark.parametrize("number", range(3))
def test_without_a_fault_all_tests_pass(number: int) -> None:
    report = run(f"--budget={60 + number}s", devices=4)

    assert of_tests(report) == []
    assert report.verdict in (Verdict.READY, Verdict.DEGRADED)
    checks = {check.name: check.state for check in report.checks}
    assert {checks[name] for name in ("context", "memory", "copies", "graphs", "pairs", "collectives")} == {"ok"}


@needs_cuda_build
@pytest.mark.acceptance
def test_a_small_budget_leaves_checks_out_and_says_so() -> None:
    report = run("--budget=14s", devices=2)

    left = [check for check in report.checks if check.state == "skipped" and "budget" in check.text]
    assert left
    assert {problem.kind for problem in of_tests(report)} <= {"cannot_run"}  # if a busy machine has reached none


@needs_cuda_build
@pytest.mark.acceptance
def test_a_fault_of_one_gpu_of_several_is_named() -> None:
    """Only the last of all ranks has the fault, and the report names its GPU."""
    problems = of_tests(run("--inject=large_buffer_corrupted"))

    assert [(each.check, each.gpu and each.gpu[-2:]) for each in problems] == [("collectives", "02")]
