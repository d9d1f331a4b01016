"""Interpreters that a case starts: they have its break, or record what they reach."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from tests.breaks.engine import environment
from tests.breaks.search import child
from tests.breaks.search.recorder import read_records

ROOT = Path(torch.__file__).parent.parent


def run(script: str, name: str, records: Path) -> str:
    """Return the output of an interpreter that got a break."""
    path = os.pathsep.join([str(Path(child.__file__).with_name("inherited")), environment(os.environ)["PYTHONPATH"]])
    variables = {"PYTHONPATH": path, child.VARIABLE: json.dumps([name, "cpu", str(ROOT), str(records)])}
    done = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_interpreter_has_the_break(tmp_path: Path) -> None:
    script = "import torch; print((torch.ones(2) * 3).tolist())"
    assert run(script, "operator mul.Tensor:not_done", tmp_path) == "[0.0, 0.0]\n"
    assert not list(tmp_path.iterdir())


def test_interpreter_and_its_forks_record_what_they_reach(tmp_path: Path) -> None:
    script = (
        "import os, torch\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    torch.random.initial_seed()\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "torch.ones(2) * 3\n"
    )
    run(script, "", tmp_path)
    found = read_records(tmp_path)
    assert len(list(tmp_path.glob("*.json"))) == 2
    assert "mul.Tensor" in found["operators"]
    assert "torch/random.py" in found["lines"]
    assert "torch.ones" in found["functions"]
