"""The simulated CUDA runtime, by its own C++ tests: its sources and the tests are compiled without a warning."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.native.toolchain import BuildError, Toolchain
from harness.simcuda import toolchain
from harness.simcuda.build import ROOT
from tests.native import programs

CSRC = ROOT / "simcuda" / "csrc"
TESTS = CSRC / "runtime" / "tests"
_SHARED = [ROOT / "softdevice" / "csrc" / "core" / "queue.cpp", ROOT / programs.TESTING]


@pytest.fixture(scope="module")
def tools() -> Toolchain:
    try:
        return toolchain.find().runtime
    except BuildError as error:
        pytest.skip(str(error))


def test_runtime(tools: Toolchain, tmp_path: Path) -> None:
    program = tmp_path / "runtime_test"
    sources = [*sorted((CSRC / "runtime").glob("*.cpp")), *_SHARED, *sorted(TESTS.glob("*.cpp"))]
    compiler = [*tools.compiler, *tools.flags, "-O1", "-g", f"-I{CSRC / 'include'}"]
    programs.build(compiler, sources, program, link=["-ldl"])
    programs.check(program, TESTS)
