"""The simulated NCCL, tested by a client: a C++ program with NCCL's header, linked with the libraries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.devices import software
from harness.sim.simcuda import toolchain
from harness.sim.simcuda.build import ROOT, runtime_files
from tests.sim.native import programs

pytestmark = pytest.mark.acceptance

CSRC = ROOT / "simcuda" / "csrc"
TESTS = CSRC / "nccl" / "tests"
_SOURCES = ("simcuda", "simcuda/csrc/nccl/tests", "softdevice/csrc/core", "softdevice/csrc/core/tests")
_BUILT_FOR = software.torch_cuda_version()


@pytest.mark.skipif(_BUILT_FOR.value is None, reason=f"needs a CUDA build of torch: {_BUILT_FOR.detail}")
def test_nccl() -> None:
    found = toolchain.find_simcuda_toolchains()
    tools = found.runtime
    program = programs.build(
        "simcuda_nccl_tests",
        replace(tools, flags=(*tools.flags, "-O1", "-g")),
        _SOURCES,
        ["simcuda", "simcuda/csrc/nccl/tests"],
        runtime_files(found.major),
    )
    for file in programs.files(TESTS):
        programs.check(program, file)
    assert programs.run([program, "no_such_test"])[0] != 0
