"""All cases of the project, collected once for all workers, since this takes ten seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def cases(once: Callable[[str, Callable[[], str]], str]) -> list[dict[str, Any]]:
    """Return all cases of the project, as the catalog lists them."""

    def catalog() -> str:
        command = [sys.executable, "-m", "harness.cli", "catalog", "--format", "json"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    found: list[dict[str, Any]] = json.loads(once("catalog.json", catalog))
    return found
