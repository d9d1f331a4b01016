"""C++ programs of tests: the sources of a library together with its own tests, compiled without a warning."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.sim.native import build as native
from harness.sim.native.build import BuildRecipe
from harness.sim.native.toolchain import Toolchain
from harness.sim.softdevice.build import ROOT

_LIMIT = 900.0  # seconds for a compiler or for all tests; only what hangs takes so long


def run(command: Sequence[str | Path]) -> tuple[int, str]:
    """Exit status and output."""
    done = subprocess.run(
        [str(part) for part in command],
        # Under ThreadSanitizer each process would sleep for a second at its end, so that its threads can go on racing.
        env={**os.environ, "TSAN_OPTIONS": "atexit_sleep_ms=10"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_LIMIT,
        check=False,
    )
    return done.returncode, done.stdout.decode(errors="replace")


def build(
    name: str, tools: Toolchain, sources: Sequence[str], parts: Sequence[str], libraries: Sequence[str] = ()
) -> Path:
    """Returns the program of that name. It comes from the cache if sources, compiler and options are the same.

    `sources` and `parts`: as those of a `BuildRecipe`. `libraries`: what the program needs beside it. Raises
    BuildError, with the first errors of the compiler.
    """
    strict = replace(tools, flags=(*tools.flags, "-Werror"))
    recipe = BuildRecipe(
        f"the tests {name}", f"tests/{name}", ROOT, tuple(sources), tuple(parts), (name, *libraries), strict
    )
    return native.build_libraries(recipe, lambda _: None) / name


def names(file: Path) -> list[str]:
    """Returns the names of the tests in a source file."""
    return re.findall(r"^TEST\((\w+)\)", file.read_text(), re.M)


def files(folder: Path) -> list[Path]:
    """Returns the source files in a folder that have tests."""
    return [file for file in sorted(folder.glob("*_test.cpp")) if names(file)]


def check(program: Path, file: Path) -> str:
    """Run the tests of a source file. Each must pass. Returns the output."""
    written = names(file)
    status, output = run([program, *written])
    assert status == 0, output
    assert sorted(re.findall(r"^passed (\w+)$", output, re.M)) == sorted(written)
    return output
