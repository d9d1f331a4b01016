"""Writes what a run is held to into a project, and reads what it made of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from tests.acceptance.project import PATIENCE, Project, Result


def configure(project: Project, name: str, **keys: Any) -> None:
    """Write ``configs/<name>.yaml``; JSON is YAML."""
    project.write(f"configs/{name}.yaml", json.dumps(keys))


def waive(project: Project, **keys: Any) -> None:
    """Write ``configs/waivers/known.yaml`` with one waiver; `keys` replace what it has by default."""
    entry = {"expect": "failed", "reason": "known", "link": "https://example.org/1", "owner": "me", **keys}
    configure(project, "waivers/known", waivers=[{"expires": "2999-12-31", **entry}])


def kinds(result: Result) -> list[str]:
    """The kinds of the run's findings."""
    return sorted(finding.kind for finding in result.ledger.findings)


def refused(result: Result, *words: str) -> None:
    """The run did not start: pytest's status for wrong usage, what is wrong, and nothing left on disk."""
    assert result.status == 4, result.tail()
    for word in words:
        assert word in result.terminal, result.tail()
    assert not result.run_dir.exists()
    assert "collected" not in result.terminal
    assert list((result.run_dir.parent / "tmp").iterdir()) == []


def command(
    project: Project, *arguments: str, patience: float = PATIENCE, env: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Exit status and output of ``harness ARGUMENTS`` in the project's folder; given up after `patience` seconds.

    `env`: the whole environment; by default that of this process, with all GPUs hidden.
    """
    done = subprocess.run(
        [sys.executable, "-m", "harness.cli", *arguments],
        cwd=project.folder,
        env={**({**os.environ, "CUDA_VISIBLE_DEVICES": ""} if env is None else env), "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=patience,
        check=False,
    )
    return done.returncode, done.stdout
