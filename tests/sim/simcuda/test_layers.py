"""Layers on simulated devices, and operators on lists of tensors.

The layers are convolutions, pooling, embeddings, and sums of their sparse gradients.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.sim.simcuda import build
from tests.sim.simcuda import checks
from tests.sim.simcuda.cuda_builds import needs_cuda_build

_CHECKS = Path(__file__).with_name("layer_checks.py")


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """Return the result of each check: "ok", or a traceback.

    One process runs all of them, so after a device-side assertion the following ones fail as well.
    """
    return checks.outcomes(_CHECKS, build.simcuda_environment(build.build_simcuda(), os.environ))


@needs_cuda_build
@pytest.mark.parametrize("name", checks.names(_CHECKS))
def test_layer(name: str, outcomes: dict[str, str]) -> None:
    assert outcomes[name] == "ok", outcomes[name]
