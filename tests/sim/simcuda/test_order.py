"""The orders in which the simulated CUDA may begin work (`harness sim run --order`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from harness.core.outcome import EXIT_USAGE
from tests.cli.commands import harness
from tests.sim.simcuda.cuda_builds import needs_cuda_build

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[3]
#: What each program of `order_programs` gives by order, where a wait is missing. The first is what the host expects.
FORGOTTEN = {
    "a_side_stream_writes": {"earliest": 2.0, "latest": 0.0, "reversed": 0.0},
    "the_host_changes_a_pinned_source": {"earliest": 1.0, "latest": 5.0, "reversed": 5.0},
    "two_streams_change_a_tensor": {"earliest": 10.0, "latest": 10.0, "reversed": 1.0},
    "two_branches_of_a_graph": {"earliest": 10.0, "latest": 10.0, "reversed": 1.0},
    "threads_of_a_block_share_memory": {"earliest": 0.0, "latest": 0.0, "reversed": 1.0},
    "blocks_of_a_kernel_share_memory": {"earliest": 0.0, "latest": 0.0, "reversed": 1.0},
    "a_parent_of_two_branches_of_a_graph": {"earliest": 21.0, "latest": 21.0, "reversed": 3.0},
}


@needs_cuda_build
@pytest.mark.parametrize("order", ["earliest", "latest", "reversed"])
def test_an_order_shows_what_a_missing_wait_does(order: str) -> None:
    program = (sys.executable, "-m", "tests.sim.simcuda.order_programs")
    done = harness("sim", "run", "--order", order, "--", *program, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    got = json.loads(done.stdout)
    assert {name: got["forgotten"][name] for name in FORGOTTEN} == {n: row[order] for n, row in FORGOTTEN.items()}
    assert set(got["forgotten"]) == set(FORGOTTEN)
    assert got["ordered"] == dict.fromkeys(got["ordered"], 1.0)
    assert got["ordered"]


def test_an_unknown_order() -> None:
    done = harness("sim", "run", "--order", "random", "--", "true")
    assert done.returncode == EXIT_USAGE
    assert "'random' is not one of 'earliest', 'latest', 'reversed'" in done.stderr


@needs_cuda_build
def test_an_unknown_order_in_the_environment_is_ignored_with_a_line() -> None:
    script = "import torch; print(torch.ones(2, device='cuda').sum().item())"
    done = harness("sim", "run", "--", sys.executable, "-c", script, environ={"SIMCUDA_ORDER": "random"})
    assert (done.returncode, done.stdout) == (0, "2.0\n")
    assert "SIMCUDA_ORDER=random: expected earliest, latest or reversed; it is ignored" in done.stderr
