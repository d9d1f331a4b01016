"""The description of this project's suites that supervisors get equals pytest's own collection."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).parents[2]

#: Writes the attributes of items that supervisors use, and ends the session after its first case.
PLUGIN = """\
import json, os, pathlib, sys

import pytest

def pytest_runtest_logfinish():
    pytest.exit("enough")

def pytest_sessionfinish(session):
    if "harness.zygote" in " ".join(sys.orig_argv):
        return
    ours = ("requires", "covers", "leaks", "keeps", "timeout")  # supervisors read their arguments
    items = [
        {
            "id": item.nodeid,
            "names": item.listnames(),
            "location": item.location,
            "path": str(item.path),
            "keywords": sorted(item.keywords),
            "extra": sorted(item.listextrakeywords()),
            "marks": [
                [mark.name, *([repr(mark.args), repr(mark.kwargs)] if mark.name in ours else [])]
                for mark in item.iter_markers()
            ],
        }
        for item in session.items
    ]
    listed = {"torch": "torch" in sys.modules, "items": items}
    pathlib.Path(os.environ["LISTED"]).write_text(json.dumps(listed))
"""


def _listed(folder: Path, *arguments: str) -> dict[str, Any]:
    (folder / "lists.py").write_text(PLUGIN)
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "HARNESS_"))}
    environment = {**outer, "PYTHONPATH": str(folder), "LISTED": str(folder / "listed.json")}
    options = ["-n0", "-q", "-p", "lists", "-p", "no:cacheprovider", "--device=cpu", *arguments]
    command = [sys.executable, "-m", "pytest", "suites", *options]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (folder / "listed.json").exists(), done.stdout[-3000:] + done.stderr
    listed: dict[str, Any] = json.loads((folder / "listed.json").read_text())
    return listed


@pytest.mark.nightly
def test_described_items_are_those_of_a_local_collection(tmp_path: Path) -> None:
    """Ids, order, marks, keywords and locations are equal; and the supervisor has not imported torch."""
    (tmp_path / "local").mkdir()
    (tmp_path / "described").mkdir()
    local = _listed(tmp_path / "local", "--collect-only")
    described = _listed(tmp_path / "described", f"--results-dir={tmp_path / 'run'}")
    assert local["torch"]
    assert not described["torch"]
    assert [item["id"] for item in described["items"]] == [item["id"] for item in local["items"]]
    for ours, theirs in zip(described["items"], local["items"], strict=True):
        assert ours == theirs
