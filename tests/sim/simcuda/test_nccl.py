"""The simulated NCCL, tested by a client: a C++ program with NCCL's header, linked with the libraries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.sim.simcuda import toolchain
from harness.sim.simcuda.build import ROOT, runtime_files
from tests.sim.native import programs
from tests.sim.simcuda.cuda_builds import needs_cuda_build

pytestmark = pytest.mark.acceptance

CSRC = ROOT / "simcuda" / "csrc"
TESTS = CSRC / "nccl" / "tests"
_SOURCES = ("simcuda", "simcuda/csrc/nccl/tests", "softdevice/csrc/core", "softdevice/csrc/core/tests")


@needs_cuda_build
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
