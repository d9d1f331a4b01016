"""C++ programs of tests: the sources of a library together with its own tests, compiled without a warning."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.sim.native import build as native
from harness.sim.native.build import Library, Recipe
from harness.sim.native.toolchain import Toolchain

#: What the tests of both devices are written with.
TESTING = Path("softdevice/csrc/core/tests/testing.cpp")
_WARNINGS = ("-Wall", "-Wextra", "-Werror")
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


def build(name: str, tools: Toolchain, root: Path, sources: Sequence[Path], include: Sequence[Path] = ()) -> Path:
    """Returns the program of that name. It comes from the cache if sources, compiler and options are the same.

    `sources` are files and folders below `root`, `include` folders of headers there. Raises BuildError, with the first
    errors of the compiler.
    """
    strict = replace(tools, flags=(*tools.flags, *_WARNINGS))
    library = Library(name, _below(root, sources), strict, include=_below(root, include))
    return native.build(Recipe(f"the tests {name}", f"tests/{name}", root, (library,)), lambda _: None) / name


def _below(root: Path, paths: Sequence[Path]) -> tuple[str, ...]:
    return tuple(str(path.relative_to(root)) for path in paths)


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
