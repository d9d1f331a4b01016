"""Kernels of Triton on simulated devices: in the order of their stream, in graphs, and in compiled code."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from harness.devices import software
from harness.sim.simcuda import autoload, build
from tests.cli.commands import harness
from tests.sim.simcuda import checks
from tests.sim.simcuda.cuda_builds import needs_cuda_build
from tests.sim.simcuda.fake_runtime import run_python

pytestmark = pytest.mark.acceptance

_CHECKS = Path(__file__).with_name("triton_checks.py")
_ROOT = Path(__file__).parents[3]

needs_triton = pytest.mark.skipif(software.triton_version().value is None, reason="Triton is not installed")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the result of each check: "ok", or a traceback."""
    own = build.simcuda_environment(build.build_simcuda(), os.environ)
    own["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("inductor"))
    own["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    own["PYTHONPATH"] = str(_ROOT)
    return checks.outcomes(_CHECKS, own, timeout=900)


@needs_cuda_build
@needs_triton
@pytest.mark.parametrize("name", checks.names(_CHECKS))
def test_kernels_of_triton(name: str, outcomes: dict[str, str]) -> None:
    assert outcomes[name] == "ok", outcomes[name]


@needs_cuda_build
@needs_triton
def test_a_program_may_end_while_kernels_are_queued(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\nfrom tests.sim.simcuda import triton_kernels as kernels\n"
        "x = torch.zeros(4096, device='cuda')\n"
        "for _ in range(50):\n    kernels.add[(16,)](x, x, x, 4096, BLOCK=256)\n"
        "print('end', flush=True)\n",
        encoding="utf-8",
    )
    done = harness("sim", "run", "--", "env", f"PYTHONPATH={_ROOT}", sys.executable, str(program), cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr


@needs_triton
def test_triton_is_as_it_was_in_a_process_without_simulated_devices() -> None:
    script = (
        "import torch, triton, sys\n"
        "print(triton.JITFunction.__call__.__module__, any('triton_kernels' in name for name in sys.modules))"
    )
    done = run_python(script, {autoload.VARIABLE: ""})
    assert done.stdout.split() == ["triton.runtime.jit", "False"], done.stderr
