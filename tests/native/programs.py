"""C++ programs of tests: the sources of a library together with its own tests, compiled without a warning."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

#: What the tests of both devices are written with.
TESTING = Path("softdevice/csrc/core/tests/testing.cpp")
_WARNINGS = ("-Wall", "-Wextra", "-Werror")
_LIMIT = 900.0  # seconds for a compiler or for all tests; only what hangs takes so long


def run(command: Sequence[str | Path]) -> tuple[int, str]:
    """Exit status and output."""
    done = subprocess.run(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=_LIMIT,
        check=False,
    )
    return done.returncode, done.stdout.decode(errors="replace")


def build(compiler: Sequence[str], sources: Sequence[Path], program: Path, link: Sequence[str] = ()) -> None:
    """Compile and link. `compiler` has the options for both, `link` those for linking alone."""

    def compiled(source: Path) -> Path:
        made = program.with_name(f"{source.stem}.o")
        status, output = run([*compiler, *_WARNINGS, "-c", source, "-o", made])
        assert status == 0, f"{source}: {output}"
        return made

    with ThreadPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        objects = list(pool.map(compiled, sources))
    status, output = run([*compiler, *objects, *link, "-o", program])
    assert status == 0, output


def check(program: Path, tests: Path) -> str:
    """Run all tests of that folder. Each must pass. Returns the output."""
    status, output = run([program])
    assert status == 0, output
    written = [
        name for file in tests.glob("*_test.cpp") for name in re.findall(r"^TEST\((\w+)\)", file.read_text(), re.M)
    ]
    assert sorted(re.findall(r"^passed (\w+)$", output, re.M)) == sorted(written)
    assert run([program, "no_such_test"])[0] != 0
    return output
