"""The simulated CUDA runtime, by its own C++ tests: its sources and the tests are compiled without a warning."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness.native.toolchain import BuildError, Toolchain
from harness.simcuda import toolchain
from harness.simcuda.build import ROOT

CSRC = ROOT / "simcuda" / "csrc"
TESTS = CSRC / "runtime" / "tests"
_SHARED = ROOT / "softdevice" / "csrc" / "core" / "queue.cpp"
_FLAGS = ("-O1", "-g", "-Wall", "-Wextra", "-Werror", f"-I{CSRC / 'include'}")
_LIMIT = 900.0  # seconds for a compiler or for all tests; only what hangs takes so long


@pytest.fixture(scope="module")
def tools() -> Toolchain:
    try:
        return toolchain.find().runtime
    except BuildError as error:
        pytest.skip(str(error))


def _run(command: Sequence[str | Path]) -> tuple[int, str]:
    done = subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_LIMIT,
        check=False,
    )
    return done.returncode, done.stdout.decode(errors="replace")


def _program(tools: Toolchain, folder: Path) -> Path:
    """The tests, together with the runtime."""

    def compiled(source: Path) -> Path:
        made = folder / f"{source.stem}.o"
        status, output = _run([*tools.compiler, *tools.flags, *_FLAGS, "-c", source, "-o", made])
        assert status == 0, f"{source}: {output}"
        return made

    sources = [*sorted((CSRC / "runtime").glob("*.cpp")), _SHARED, *sorted(TESTS.glob("*.cpp"))]
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        objects = list(pool.map(compiled, sources))
    program = folder / "runtime_test"
    status, output = _run([*tools.compiler, "-pthread", *objects, "-ldl", "-o", program])
    assert status == 0, output
    return program


def _written() -> list[str]:
    return sorted(
        name for file in TESTS.glob("*_test.cpp") for name in re.findall(r"^TEST\((\w+)\)", file.read_text(), re.M)
    )


def test_runtime(tools: Toolchain, tmp_path: Path) -> None:
    status, output = _run([_program(tools, tmp_path)])
    assert status == 0, output
    assert sorted(re.findall(r"^passed (\w+)$", output, re.M)) == _written()
    assert _run([tmp_path / "runtime_test", "no_such_test"])[0] != 0
