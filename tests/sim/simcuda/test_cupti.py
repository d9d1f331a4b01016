"""The simulated CUPTI, by a client of its own: a C++ program with CUPTI's headers, linked with the libraries."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.devices import software
from harness.sim.native.toolchain import Toolchain
from harness.sim.simcuda import build, toolchain
from harness.sim.simcuda.build import ROOT
from tests.sim.native import programs

pytestmark = pytest.mark.acceptance

CSRC = ROOT / "simcuda" / "csrc"
TESTS = CSRC / "cupti" / "tests"
_BUILT_FOR = software.cuda()


@pytest.mark.skipif(_BUILT_FOR.value is None, reason=f"needs a CUDA build of torch: {_BUILT_FOR.detail}")
def test_cupti() -> None:
    built = build.build()
    program = programs.build(
        "simcuda-cupti",
        _linked(toolchain.find().runtime, built),
        ROOT,
        [TESTS, ROOT / programs.TESTING],
        include=[CSRC / "include"],
    )
    for file in programs.files(TESTS):
        programs.check(program, file)
    assert programs.run([program, "no_such_test"])[0] != 0


def _linked(tools: Toolchain, built: build.Built) -> Toolchain:
    flags = (*tools.flags, "-O1", "-g")
    libraries = [str(library) for library in built.runtime]
    link = (*(word for word in tools.link if word != "-shared"), *libraries, f"-Wl,-rpath,{built.folder}")
    return replace(tools, flags=flags, link=link)
