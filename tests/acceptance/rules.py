"""Helpers that write profiles and waivers into a project, and check how a run applied them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.acceptance.project import PATIENCE, Project, Result
from tests.warm import client


def configure(project: Project, name: str, **keys: Any) -> None:
    """Write ``configs/<name>.yaml``; JSON is YAML."""
    project.write(f"configs/{name}.yaml", json.dumps(keys))


def waive(project: Project, **keys: Any) -> None:
    """Write ``configs/waivers/known.yaml`` with one waiver; `keys` override the defaults."""
    entry = {"expect": "failed", "reason": "known", "link": "https://example.org/1", "owner": "me", **keys}
    configure(project, "waivers/known", waivers=[{"expires": "2999-12-31", **entry}])


def kinds(result: Result) -> list[str]:
    """Return the kinds of the run's findings."""
    return sorted(finding.kind for finding in result.ledger.findings)


def refused(result: Result, *words: str) -> None:
    """Check that the run did not start: a usage error with these words, and no files on disk."""
    assert result.status == 4, result.tail()
    for word in words:
        assert word in result.terminal, result.tail()
    assert not result.run_dir.exists()
    assert "collected" not in result.terminal
    assert list((result.run_dir.parent / "tmp").iterdir()) == []


def command(
    project: Project, *arguments: str, patience: float = PATIENCE, env: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Return exit status and output of ``harness ARGUMENTS`` in the project's folder; fail after `patience` seconds.

    `env` is the whole environment; by default this process's, with all GPUs hidden.
    """
    variables = {**({**os.environ, "CUDA_VISIBLE_DEVICES": ""} if env is None else env), "COLUMNS": "200"}
    done = client.run(["-m", "harness", *arguments], project.folder, variables, timeout=patience)
    return done.returncode, done.stdout + done.stderr


def report(run_dir: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``harness report ARGUMENTS DIR`` with more environment variables."""
    return client.run(["-m", "harness", "report", *arguments, run_dir], environment={**os.environ, **variables})
