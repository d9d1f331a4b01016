"""Inductor on simulated devices: its code is correct, asynchronous and capturable. Other devices are unaffected."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.sim.simcuda import autoload, build
from tests.sim.simcuda import checks
from tests.sim.simcuda.cuda_builds import needs_cuda_build
from tests.sim.simcuda.fake_runtime import fake_runtime, run_python

pytestmark = pytest.mark.acceptance


_CHECKS = Path(__file__).with_name("compiled_checks.py")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the result of each check: "ok", or a traceback. One process runs all, since Inductor starts slowly."""
    own = build.simcuda_environment(build.build_simcuda(), os.environ)
    own["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("inductor"))
    return checks.outcomes(_CHECKS, own, timeout=900)


@needs_cuda_build
@pytest.mark.parametrize("name", checks.names(_CHECKS))
def test_compiled_code(name: str, outcomes: dict[str, str]) -> None:
    assert outcomes[name] == "ok", outcomes[name]


def test_inductor_is_not_imported_before_a_process_imports_it(tmp_path: Path) -> None:
    runtime = str(fake_runtime(tmp_path))
    script = (
        "import sys; from harness.sim.simcuda import autoload; before = len(sys.meta_path); autoload.load(); "
        "print(len(sys.meta_path) - before, *(name for name in sys.modules if name.startswith('torch')))"
    )
    done = run_python(script, {"LD_PRELOAD": runtime, autoload.VARIABLE: runtime})
    assert done.stdout.split() == ["1"], done.stderr


def test_inductor_is_as_it_was_in_a_process_without_simulated_devices() -> None:
    script = (
        "import torch, torch._inductor.config as config, sys\n"
        "print(config.cuda_backend, any(name.startswith('harness.sim.simcuda.compiler') for name in sys.modules))"
    )
    done = run_python(script, {autoload.VARIABLE: ""})
    assert done.stdout.split() == ["triton", "False"], done.stderr
