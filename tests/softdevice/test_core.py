"""The soft device's core, by its own C++ tests: as it is, and under the sanitizers for threads and for addresses."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness.devices import software
from harness.softdevice.build import CSRC

CORE = CSRC / "core"
TESTS = CORE / "tests"
_FLAGS = ("-std=c++17", "-O1", "-g", "-pthread", "-Wall", "-Wextra", "-Werror")
_LIMIT = 900.0  # seconds for a compiler or for all tests; only what hangs takes so long

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


def _compile(compiler: list[str], flags: Sequence[str], folder: Path) -> Path:
    """The program of all tests; compiling it without a warning is part of what is tested."""

    def compiled(source: Path) -> Path:
        made = folder / f"{source.stem}.o"
        status, output = _run([*compiler, *_FLAGS, *flags, "-c", source, "-o", made])
        assert status == 0, f"{source}: {output}"
        return made

    sources = [*sorted(CORE.glob("*.cpp")), *sorted(TESTS.glob("*.cpp"))]
    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        objects = list(pool.map(compiled, sources))
    program = folder / "core_test"
    status, output = _run([*compiler, *_FLAGS, *flags, *objects, "-o", program])
    assert status == 0, output
    return program


def _check_control(compiler: list[str], variant: Variant, folder: Path) -> None:
    """Skips where the compiler has no such sanitizer, or where it finds nothing on this machine."""
    source = folder / "control.cpp"
    source.write_text(variant.control)
    status, output = _run([*compiler, "-g", "-pthread", *variant.flags, source, "-o", folder / "control"])
    if status != 0:
        pytest.skip(f"{compiler[0]} cannot use {variant.flags[0]}: {output.strip()[-300:]}")
    status, output = _run([folder / "control"])
    if status == 0 or variant.finds not in output:
        pytest.skip(f"{variant.flags[0]} does not work on this machine: {output.strip()[-300:]!r} of a faulty program")


def _written() -> list[str]:
    return sorted(
        name for file in TESTS.glob("*_test.cpp") for name in re.findall(r"^TEST\((\w+)\)", file.read_text(), re.M)
    )


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_core(variant: Variant, compiler: list[str], tmp_path: Path) -> None:
    if variant.control:
        _check_control(compiler, variant, tmp_path)
    program = _compile(compiler, variant.flags, tmp_path)
    status, output = _run([program])
    assert status == 0, output
    assert sorted(re.findall(r"^passed (\w+)$", output, re.M)) == _written()
    assert "Sanitizer" not in output
    assert "runtime error" not in output

    if variant.name == "plain":
        status, output = _run([program, "--bench"])
        assert status == 0, output
        assert len(re.findall(r"^\S.* [1-9]\d* a second$", output, re.M)) == 6, output
        assert _run([program, "no_such_test"])[0] != 0
