"""The soft device's core, by its own C++ tests: plain, and with the thread and the address sanitizer."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from harness.sim.native import toolchain
from harness.sim.native.toolchain import BuildError, Toolchain
from harness.sim.softdevice.build import CSRC
from tests.sim.native import programs

pytestmark = [pytest.mark.acceptance, pytest.mark.long]

TESTS = CSRC / "core" / "tests"
#: Lines for the sanitizers' reports only: full debug information takes a third of the compile time.
_FLAGS = ("-g1",)
_SOURCES = ("softdevice/csrc/core", "softdevice/csrc/core/tests", "softdevice/csrc/faults.def")

# Programs with one fault each, which a working sanitizer must detect.
_RACE = """
#include <thread>
int value = 0;
int main() {
  std::thread other([] { ++value; });
  ++value;
  other.join();
}
"""
_OVERRUN = """
int main(int count, char**) {
  int* values = new int[4];
  values[3 + count] = 1;
  int read = values[3 + count];
  delete[] values;
  return read == 1 ? 0 : 1;
}
"""


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to compile the tests. `control`: a faulty program that shows whether it works on this machine."""

    name: str
    sanitizer: tuple[str, ...] = ()
    level: str = "-O1"
    control: str = ""
    finds: str = ""

    @property
    def flags(self) -> tuple[str, ...]:
        return (*self.sanitizer, *(("-DSANITIZED",) if self.sanitizer else ()), self.level)


VARIANTS = (
    Variant("plain", level="-O0"),
    Variant("thread", ("-fsanitize=thread",), "-O1", _RACE, "ThreadSanitizer: data race"),
    Variant(
        "address",
        ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"),
        "-O0",  # halves the compile time, without making the tests slower
        _OVERRUN,
        "AddressSanitizer: heap-buffer-overflow",
    ),
)


@pytest.fixture(scope="module")
def compiler() -> Toolchain:
    try:
        return toolchain.find_cpp_toolchain(os.environ, "the tests of the core")
    except BuildError as error:
        pytest.skip(str(error))


def _check_control(tools: Toolchain, variant: Variant, folder: Path) -> None:
    """Skip the test if the compiler lacks the sanitizer, or if it detects nothing on this machine."""
    flags = variant.flags
    source = folder / "control.cpp"
    source.write_text(variant.control)
    status, output = programs.run([*tools.compiler, "-g", "-pthread", *flags, source, "-o", folder / "control"])
    if status != 0:
        pytest.skip(f"{tools.compiler[0]} cannot use {flags[0]}: {output.strip()[-300:]}")
    status, output = programs.run([folder / "control"])
    if status == 0 or variant.finds not in output:
        pytest.skip(f"{flags[0]} does not work on this machine: {output.strip()[-300:]!r} of a faulty program")


@pytest.fixture(
    scope="module",
    params=[pytest.param(each, marks=pytest.mark.nightly if each.sanitizer else []) for each in VARIANTS],
    ids=lambda variant: variant.name,
)
def program(request: pytest.FixtureRequest, compiler: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the core with its tests, compiled in one of the ways."""
    variant: Variant = request.param
    if variant.control:
        _check_control(compiler, variant, tmp_path_factory.mktemp("control"))
    tools = replace(compiler, flags=(*_FLAGS, *variant.flags))
    return programs.build("softdevice_core_tests", tools, _SOURCES, ["softdevice/csrc/core/tests"])


@pytest.mark.parametrize("file", programs.files(TESTS), ids=lambda file: file.stem)
def test_core(program: Path, file: Path) -> None:
    output = programs.check(program, file)
    assert "Sanitizer" not in output
    assert "runtime error" not in output


def test_a_test_that_is_not_there(program: Path) -> None:
    assert programs.run([program, "no_such_test"])[0] != 0


@pytest.mark.nightly
@pytest.mark.parametrize("program", VARIANTS[:1], indirect=True, ids=["plain"])
def test_bench(program: Path) -> None:
    status, output = programs.run([program, "--bench"])
    assert status == 0, output
    assert len(re.findall(r"^\S.* [1-9]\d* a second$", output, re.M)) == 6, output
