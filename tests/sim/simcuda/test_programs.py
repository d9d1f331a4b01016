"""Real programs, run by `harness sim run` as a user does. Each compares what it computes, and prints "done"."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.devices import software
from tests.cli.commands import harness
from tests.sim.simcuda.cuda_builds import needs_cuda_build

pytestmark = [pytest.mark.acceptance, pytest.mark.nightly]

_FOLDER = Path(__file__).parents[1] / "programs"
_RANKS = 2
#: Programs of several ranks, which torchrun starts.
_DISTRIBUTED = ("ddp", "fsdp")
_NAMES = sorted(path.stem for path in _FOLDER.glob("*.py") if path.stem != "__init__")


@needs_cuda_build
@pytest.mark.parametrize("name", _NAMES)
def test_a_program_runs_without_a_gpu(name: str, tmp_path: Path) -> None:
    if name == "triton_kernel" and software.triton_version().value is None:
        pytest.skip("Triton is not installed")
    ranks = _RANKS if name in _DISTRIBUTED else 1
    start = [sys.executable, str(_FOLDER / f"{name}.py")]
    if name in _DISTRIBUTED:
        start[1:1] = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    done = harness("sim", "run", "--memory", "1GiB", "--", *start, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("done") == ranks
    assert [line for line in done.stderr.splitlines() if "is refused" in line] == []
    assert done.stderr.splitlines()[-1].startswith("simulated CUDA (no GPU): ")


def test_there_are_programs() -> None:
    assert {*_DISTRIBUTED, "triton_kernel"} <= {*_NAMES}
    assert len(_NAMES) >= 10
