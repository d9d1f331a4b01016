"""The simulated CUDA runtime's own C++ tests, compiled with its sources without warnings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.sim.native.toolchain import BuildError, Toolchain
from harness.sim.simcuda import toolchain
from harness.sim.simcuda.build import ROOT
from tests.sim.native import programs

pytestmark = pytest.mark.acceptance

CSRC = ROOT / "simcuda" / "csrc"
TESTS = CSRC / "runtime" / "tests"
_SOURCES = (
    "simcuda/csrc/include",
    "simcuda/csrc/runtime",
    "simcuda/csrc/runtime/tests",
    "simcuda/csrc/simt",
    "softdevice/csrc/core",
    "softdevice/csrc/core/tests",
)


@pytest.fixture(scope="module")
def tools() -> Toolchain:
    try:
        return toolchain.find_simcuda_toolchains().runtime
    except BuildError as error:
        pytest.skip(str(error))


def test_runtime(tools: Toolchain) -> None:
    program = programs.build(
        "simcuda_runtime_tests",
        replace(tools, flags=(*tools.flags, "-O1", "-g")),
        _SOURCES,
        ["simcuda/csrc/runtime/tests"],
    )
    for file in programs.files(TESTS):
        programs.check(program, file)
    assert programs.run([program, "no_such_test"])[0] != 0
