"""A fake of the simulated CUDA runtime with fixed answers, for this process, and a process that loads it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.devices.compiled import compile_library

_SOURCE = """
int simcudaIsInitialized(void) { return %d; }
int simcudaThreadCount(void) { return %d; }
static int installed = 0;
int simcuda_installed(void) { return installed; }
int simcuda_install_operators(void) { installed += 1; return %d; }
"""


def fake_runtime(folder: Path, *, initialized: bool = False, threads: int = 0, installs: bool = True) -> Path:
    """Return the library; it can also stand in for the operators' library, which installs or fails to."""
    source = folder / "runtime.c"
    source.write_text(_SOURCE % (initialized, threads, not installs))
    return compile_library(source, folder / "libruntime.so")


def run_python(script: str, environ: Mapping[str, str], timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a script in a process with these additional variables."""
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
