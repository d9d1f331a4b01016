"""The simulated CUPTI, tested by a client: a C++ program with CUPTI's headers, linked with the libraries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.sim.simcuda import toolchain
from harness.sim.simcuda.build import ROOT, runtime_files
from tests.sim.native import programs
from tests.sim.simcuda.cuda_builds import needs_cuda_build

pytestmark = pytest.mark.acceptance

CSRC = ROOT / "simcuda" / "csrc"
TESTS = CSRC / "cupti" / "tests"
_SOURCES = ("simcuda", "simcuda/csrc/cupti/tests", "softdevice/csrc/core", "softdevice/csrc/core/tests")


@needs_cuda_build
def test_cupti() -> None:
    found = toolchain.find_simcuda_toolchains()
    tools = found.runtime
    program = programs.build(
        "simcuda_cupti_tests",
        replace(tools, flags=(*tools.flags, "-O1", "-g")),
        _SOURCES,
        ["simcuda", "simcuda/csrc/cupti/tests"],
        runtime_files(found.major),
    )
    for file in programs.files(TESTS):
        programs.check(program, file)
    assert programs.run([program, "no_such_test"])[0] != 0
