"""The soft device's core, by its own C++ tests: as it is, and under the sanitizers for threads and for addresses."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.devices import software
from harness.softdevice.build import CSRC
from tests.native import programs

CORE = CSRC / "core"
TESTS = CORE / "tests"
_FLAGS = ("-std=c++17", "-O1", "-g", "-pthread")

# Programs with one fault each, which a sanitizer that works here must find.
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
    """A way to compile the tests. `control`: a faulty program that shows whether the way works on this machine."""

    name: str
    flags: tuple[str, ...] = ()
    control: str = ""
    finds: str = ""


VARIANTS = (
    Variant("plain"),
    Variant("thread", ("-fsanitize=thread", "-DSANITIZED"), _RACE, "ThreadSanitizer: data race"),
    Variant(
        "address",
        ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-DSANITIZED"),
        _OVERRUN,
        "AddressSanitizer: heap-buffer-overflow",
    ),
)


@pytest.fixture(scope="module")
def compiler() -> list[str]:
    command = software.cpp_command(os.environ.get("CXX", ""), os.environ.get("PATH", ""))
    if isinstance(command, str):
        pytest.skip(f"no C++ compiler: {command}")
    return command


def _check_control(compiler: list[str], variant: Variant, folder: Path) -> None:
    """Skips where the compiler has no such sanitizer, or where it finds nothing on this machine."""
    source = folder / "control.cpp"
    source.write_text(variant.control)
    status, output = programs.run([*compiler, "-g", "-pthread", *variant.flags, source, "-o", folder / "control"])
    if status != 0:
        pytest.skip(f"{compiler[0]} cannot use {variant.flags[0]}: {output.strip()[-300:]}")
    status, output = programs.run([folder / "control"])
    if status == 0 or variant.finds not in output:
        pytest.skip(f"{variant.flags[0]} does not work on this machine: {output.strip()[-300:]!r} of a faulty program")


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_core(variant: Variant, compiler: list[str], tmp_path: Path) -> None:
    if variant.control:
        _check_control(compiler, variant, tmp_path)
    program = tmp_path / "core_test"
    sources = [*sorted(CORE.glob("*.cpp")), *sorted(TESTS.glob("*.cpp"))]
    programs.build([*compiler, *_FLAGS, *variant.flags], sources, program)
    output = programs.check(program, TESTS)
    assert "Sanitizer" not in output
    assert "runtime error" not in output

    if variant.name == "plain":
        status, output = programs.run([program, "--bench"])
        assert status == 0, output
        assert len(re.findall(r"^\S.* [1-9]\d* a second$", output, re.M)) == 6, output
