"""Layers on simulated devices: convolutions, pooling, embeddings, and sums of their sparse gradients; and operators on
lists of tensors."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from harness.devices import software
from harness.simcuda import build, loading
from tests.simcuda.fake_runtime import run_python

_BUILT_FOR = software.cuda()

_CHECKS = Path(__file__).with_name("layer_checks.py")
#: The names of the checks in that file.
NAMES = [
    line.removeprefix("def check_").partition("(")[0]
    for line in _CHECKS.read_text(encoding="utf-8").splitlines()
    if line.startswith("def check_")
]


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    """What became of each check: "ok", or a traceback. All run in one process, so after a device-side assertion those
    behind it fail as well."""
    done = run_python(_CHECKS.read_text(encoding="utf-8"), loading.variables(build.build(), os.environ))
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.skipif(_BUILT_FOR.value is None, reason=f"needs a CUDA build of torch: {_BUILT_FOR.detail}")
@pytest.mark.parametrize("name", NAMES)
def test_layer(name: str, outcomes: dict[str, str]) -> None:
    assert outcomes[name] == "ok", outcomes[name]
