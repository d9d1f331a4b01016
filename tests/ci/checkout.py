"""A checkout for the matrix: this project with one small suite, its profile, and a plan for machines without a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]

_SUITE = """\
import os

import pytest


@pytest.mark.parametrize("number", range(6))
def test_adds(number):
    import torch

    assert int(torch.tensor(number) + 1) == number + 1


def test_says_what_it_is_called():
    assert os.environ.get("FAULTY") != "yes", "<b>1 is not 2</b>"
"""
_PROFILE = "description: The small suite.\n"
_PLAN = """\
machines:
  cpu: {hardware: cpu, github: [ubuntu-24.04], gitlab: [docker], slurm: {partition: all, cpus: 1}}
  soft: {hardware: soft, github: [ubuntu-24.04], gitlab: [docker], slurm: {partition: all, cpus: 1}}
jobs:
  - {when: nightly, machines: [cpu], torch: ["TORCH"], profiles: [small], shards: 2, minutes: 10}
  - {when: weekly, machines: [soft], torch: ["TORCH"], profiles: [small], minutes: 10}
"""


def make(folder: Path, torch: str) -> Path:
    """Create a checkout whose plan is for this release of torch."""
    for name in ("ci", "configs", "harness"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder / name)
    suite = folder / "suites" / "small"
    suite.mkdir(parents=True)
    (suite / "test_small.py").write_text(_SUITE)
    (folder / "configs" / "profiles" / "small.yaml").write_text(_PROFILE)
    (folder / "configs" / "matrix.yaml").write_text(_PLAN.replace("TORCH", torch))
    return folder
