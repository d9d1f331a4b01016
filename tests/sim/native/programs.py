"""C++ programs of tests: a library's sources together with its tests, compiled without warnings."""

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

_LIMIT = 900.0  # seconds for a compiler or for all tests; only a hanging process takes so long


def run(command: Sequence[str | Path]) -> tuple[int, str]:
    """Run a command; return its exit status and output."""
    done = subprocess.run(
        [str(part) for part in command],
        # Under ThreadSanitizer each process would sleep for a second at its end, so that its threads can race longer.
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
    """Return the program with that name. It comes from the cache if sources, compiler and options are the same.

    `sources` and `parts` are those of a `BuildRecipe`. `libraries` are further libraries that the program needs. Raise
    BuildError, with the first errors of the compiler.
    """
    strict = replace(tools, flags=(*tools.flags, "-Werror"))
    recipe = BuildRecipe(
        f"the tests {name}", f"tests/{name}", ROOT, tuple(sources), tuple(parts), (name, *libraries), strict
    )
    return native.build_libraries(recipe, lambda _: None) / name


def names(file: Path) -> list[str]:
    """Return the names of the tests in a source file."""
    return re.findall(r"^TEST\((\w+)\)", file.read_text(), re.M)


def files(folder: Path) -> list[Path]:
    """Return the source files in a folder that have tests."""
    return [file for file in sorted(folder.glob("*_test.cpp")) if names(file)]


def check(program: Path, file: Path) -> str:
    """Run the tests of a source file, check that each passes, and return the output."""
    written = names(file)
    status, output = run([program, *written])
    assert status == 0, output
    assert sorted(re.findall(r"^passed (\w+)$", output, re.M)) == sorted(written)
    return output
