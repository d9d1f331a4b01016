"""Compiles the small C libraries that replace a driver's."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


def compile_library(source: Path, library: Path, *flags: str) -> Path:
    """Compile `source` to the shared object `library`, and return it. Raise CalledProcessError if that fails."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise FileNotFoundError("the tests compile fakes of a driver's libraries: put cc, gcc or clang on the path")
    command = [compiler, "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-O1", "-o", str(library), str(source)]
    subprocess.run([*command, *flags], check=True, timeout=120)
    return library
