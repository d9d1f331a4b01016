"""``harness backend check`` with a device from a package in a temporary folder, working and with flaws."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.tools.backend_check import MEANINGS, Checked, failed, report_lines
from tests.outside.package import environment, install


def check(folder: Path, **flaws: str) -> tuple[int, dict[str, dict[str, Any]], str]:
    """Return exit status, results by name, and the output on standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "harness", "backend", "check", "npu", "--json"],
        env={**os.environ, **environment(folder, **flaws)},
        capture_output=True,
        text=True,
        check=False,
    )
    found = json.loads(done.stdout) if done.stdout.startswith("[") else []
    return done.returncode, {each["name"]: each for each in found}, done.stderr


@pytest.mark.acceptance
def test_a_good_device(tmp_path: Path) -> None:
    """Working features and missing ones are reported, each with its meaning."""
    status, results, error = check(install(tmp_path / "site"))
    assert status == 0, error
    assert tuple(results) == tuple(MEANINGS)
    states = {name: each["state"] for name, each in results.items()}
    lacking = {"event", "statistics", "seeds", "pinned", "conjugate", "autocast", "convolution"}
    assert states == {name: "missing" if name in lacking else "works" for name in MEANINGS}
    assert results["mask"]["run"] == "each worker has a device for itself"
    assert results["statistics"]["implement"].startswith("a c10::DeviceAllocator")


@pytest.mark.acceptance
@pytest.mark.ways(
    ("flaw", "probe", "sentence"),
    [
        ("count", "count", "device_count raises OSError('the driver does not answer')"),
        ("mask", "mask", "NPU_VISIBLE_DEVICES does not show one device to a fork (1: 2)"),
        ("early", "import", "torch reports that npu is initialised"),
        ("crash", "memory", "the process ends with SIGKILL"),
        ("conjugate", "conjugate", "the process ends with SIGSEGV"),
    ],
)
def test_a_wrong_device(tmp_path: Path, flaw: str, probe: str, sentence: str) -> None:
    status, results, error = check(install(tmp_path / "site"), NPU_FLAW=flaw)
    assert status == 1, error
    assert results[probe]["state"] == "wrong"
    assert sentence in results[probe]["found"]


def test_the_report_says_what_a_run_lacks() -> None:
    results = [Checked("import", "works", "torch"), Checked("mask", "missing", "the registration names none")]
    lines = report_lines(results)
    assert lines[2].split() == ["missing", "mask", "the", "registration", "names", "none"]
    assert "all workers compute on the first device, in turn" in lines[3]
    assert "implement: " in lines[4]
    assert lines[-1] == "2 of 15 probes: 1 works, 1 missing, 0 wrong"
    assert not failed(results)
    assert failed([Checked("mask", "wrong", "")])
