"""`ci/matrix.sh page` after two nights, with the real harness: the history, its pages, and the notifications."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.outcome import Outcome
from tests.ci.checkout import ROOT
from tests.fleet.history import nights
from tests.fleet.matrix.runs import CASES

pytestmark = [pytest.mark.acceptance]

PLAN = """
machines:
  m:
    hardware: cpu
    build: cpu
    github: [m]
jobs:
  - when: nightly
    machines: [m]
    torch: ["2.13"]
    profiles: [nightly]
"""
RULES = """
channels: {here: {kind: stdout}}
routes: [{to: [here]}]
"""


def script(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "ci" / "matrix.sh", *words],
        env=os.environ
        | {
            "MATRIX_PYTHON": sys.executable,
            "MATRIX_FILE": str(folder / "matrix.yaml"),
            "MATRIX_RESULTS": str(folder / "results"),
            "MATRIX_PAGE": str(folder / "page"),
            "MATRIX_HISTORY": str(folder / "kept" / "nights.duckdb"),
            "MATRIX_NOTIFY": str(folder / "notify.yaml"),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.nightly
def test_two_nights_are_remembered_and_what_is_new_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_text(PLAN)
    (tmp_path / "notify.yaml").write_text(RULES)
    (name,) = script(tmp_path, "plan", "names").stdout.split()
    reported = []
    for number, bad in enumerate([{}, {CASES[0]: Outcome.FAILED}, {CASES[0]: Outcome.FAILED}]):
        shutil.rmtree(tmp_path / "results", ignore_errors=True)
        made = nights.night(tmp_path / "runs", number, bad)
        (tmp_path / "results" / name).parent.mkdir(parents=True)
        made.rename(tmp_path / "results" / name)
        done = script(tmp_path, "page")
        assert done.returncode == bool(bad), done.stderr
        assert "history" not in done.stderr
        assert (tmp_path / "page" / "history" / "index.html").is_file()
        reported.append(done.stdout.count("1 new group of failures"))
    assert reported == [0, 1, 0]
    pages = [path.read_text() for path in (tmp_path / "page" / "history" / "runs").iterdir()]
    assert len(pages) == 3
