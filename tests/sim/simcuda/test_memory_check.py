"""``--check memory``: programs that use memory wrongly are reported, and others are not."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from tests.cli.commands import harness
from tests.sim.simcuda.cuda_builds import needs_cuda_build

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[3]
#: By name: the kind of the finding, and the error of CUDA with which the program ends.
WRONG = {
    "empty": ("read before it was written", ""),
    "part_of_a_tensor": ("read before it was written", ""),
    "memory_of_an_earlier_tensor": ("read before it was written", ""),
    "compiled": ("read before it was written", ""),
    "copy_to_the_host": ("read before it was written", ""),
    "output_of_a_graph_before_its_first_replay": ("read before it was written", ""),
    "ordinary_memory_of_the_host": ("illegal access", "illegal memory access"),
    "freed_memory": ("illegal access", "illegal memory access"),
    "freed_memory_of_a_pool": ("illegal access", "illegal memory access"),
    "end_of_an_allocation": ("illegal access", "illegal memory access"),
    "misaligned": ("illegal access", "misaligned address"),
    "freed_memory_in_a_graph": ("illegal access", "illegal memory access"),
    "misaligned_in_a_graph": ("illegal access", "misaligned address"),
}
#: The process ends, as with CUDA. The text of the finding says where.
BY_THE_HOST = {
    "read_by_the_host": "the host reads 1 byte of device memory",
    "written_by_the_host": "the host writes 1 byte of device memory",
    "read_by_a_thread_of_the_host": "the host reads 1 byte of device memory",
}
RIGHT = (
    "memory_of_the_host_beside_it",
    "pinned_memory",
    "filled",
    "product_that_ignores_its_first_argument",
    "many_gaps",
    "training",
    "two_devices",
    "graph",
    "graph_with_its_own_memory",
)


@needs_cuda_build
@pytest.mark.parametrize("name", WRONG)
def test_wrong_use_of_memory_is_reported(name: str, tmp_path: Path) -> None:
    kind, error = WRONG[name]
    report = tmp_path / "report.json"
    command = ("--check", "memory", "--report", str(report), "--", sys.executable, "-m", _PROGRAMS, name)
    done = harness("sim", "run", *command, cwd=ROOT)
    assert done.returncode == 1, done.stderr
    findings = json.loads(report.read_text())["findings"]
    assert {finding["kind"] for finding in findings} == {kind}
    assert f" in {name}\n" in findings[0]["text"]
    assert error in done.stderr


@needs_cuda_build
@pytest.mark.skipif(
    "ospke" not in Path("/proc/cpuinfo").read_text(encoding="utf-8").split(),
    reason="this machine has no protection keys",
)
@pytest.mark.parametrize("name", BY_THE_HOST)
def test_an_access_of_the_host_to_device_memory_ends_the_process(name: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = ("--check", "memory", "--report", str(report), "--", sys.executable, "-m", _PROGRAMS, name)
    done = harness("sim", "run", *command, cwd=ROOT)
    assert done.returncode == 128 + signal.SIGSEGV, done.stderr
    (finding,) = json.loads(report.read_text())["findings"]
    assert finding["kind"] == "illegal access"
    assert finding["text"].startswith(BY_THE_HOST[name])
    # A thread begins with a function of the program, here a lambda.
    assert f" in {'<lambda>' if 'thread' in name else name}\n" in finding["text"]


@needs_cuda_build
@pytest.mark.parametrize("name", RIGHT)
def test_right_use_of_memory_is_not_reported(name: str) -> None:
    done = harness("sim", "run", "--check", "memory", "--", sys.executable, "-m", _PROGRAMS, name, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1].endswith("; no wrong use of memory")


_PROGRAMS = "tests.sim.simcuda.memory_programs"
