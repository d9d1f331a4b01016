"""The simulated CUDA runtime, by its own C++ tests: its sources and the tests are compiled without a warning."""

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
_SHARED = [ROOT / "softdevice" / "csrc" / "core" / "queue.cpp", ROOT / programs.TESTING]


@pytest.fixture(scope="module")
def tools() -> Toolchain:
    try:
        return toolchain.find().runtime
    except BuildError as error:
        pytest.skip(str(error))


def test_runtime(tools: Toolchain) -> None:
    flags = (*tools.flags, "-O1", "-g")
    link = (*(word for word in tools.link if word != "-shared"), "-ldl")
    program = programs.build(
        "simcuda-runtime",
        replace(tools, flags=flags, link=link),
        ROOT,
        [CSRC / "runtime", *_SHARED, TESTS],
        include=[CSRC / "include"],
    )
    for file in programs.files(TESTS):
        programs.check(program, file)
    assert programs.run([program, "no_such_test"])[0] != 0
