"""Commands of `harness` in their own process, and their errors."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.warm import client

ROOT = Path(__file__).parents[2]
_PLAIN = {"NO_COLOR": "1", "COLUMNS": "200"}


def harness(
    *arguments: str, cwd: Path = ROOT, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``harness`` with these arguments, without colours and with wide tables."""
    return client.run(["-m", "harness", *arguments], cwd, {**os.environ, **_PLAIN, **(environ or {})})


def command(
    module: str, *arguments: str, cwd: Path = ROOT, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command as ``python -m``, without colours and with wide tables."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), **_PLAIN, **(environ or {})}
    return client.run(["-m", module, *arguments], cwd, variables)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one-line message of an expected error."""
    assert done.returncode == 4
    assert done.stdout == ""
    assert "Traceback (most recent call last)" not in done.stderr
    return done.stderr.splitlines()[-1]
