"""`python -m tests.breaks mutants` as a whole, with a package of one function and its cases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.outcome import EXIT_USAGE
from tests.cli.commands import ROOT, command

pytest.importorskip("libcst")

pytestmark = [pytest.mark.acceptance, pytest.mark.long]

PACKAGE = """\
def clipped(x, most=10):
    if x > most:
        return most
    return x


def unused():
    return 1


def halved(x):
    return x / 2
"""
LATE = """\
import warnings

warnings.warn("this module is old", DeprecationWarning)


def doubled(x):
    return x * 2
"""
SETTINGS = """\
[tool.pytest.ini_options]
harness_suites = ['checks']
filterwarnings = ['error:this module is old']
"""
CASES = """\
import os

import pytest

from harness.core.outcome import EXIT_USAGE
from clipping import clip


def test_clipped_returns_the_limit_for_more():
    assert clip.clipped(11) == 10


def test_halved_in_a_fork():
    child = os.fork()
    if child == 0:
        os._exit(int(clip.halved(4) != 2))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:this module is old")
def test_doubled_of_a_module_that_is_imported_late():
    from clipping import late

    assert late.doubled(3) == 6


@pytest.mark.skip
def test_nothing():
    clip.unused()
"""


@pytest.mark.nightly
def test_generate_finds_the_clause_that_no_case_checks(tmp_path: Path) -> None:
    (tmp_path / "clipping").mkdir()
    (tmp_path / "clipping" / "__init__.py").touch()
    (tmp_path / "clipping" / "clip.py").write_text(PACKAGE)
    (tmp_path / "clipping" / "late.py").write_text(LATE)
    (tmp_path / "checks").mkdir()
    (tmp_path / "checks" / "test_clip.py").write_text(CASES)
    (tmp_path / "pyproject.toml").write_text(SETTINGS)
    words = [sys.executable, "-m", "tests.breaks", "mutants", "checks", "--module", "clipping/*.py"]
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "HARNESS_CACHE_DIR": str(tmp_path / "cache")}

    def generate(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*words, "--results-dir", str(tmp_path / "results"), *options],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    done = generate("--noticed", "0.9")
    assert done.returncode == 1, done.stdout + done.stderr  # fewer are noticed
    values = json.loads((tmp_path / "results" / "mutants.json").read_text())
    found = {(each["mutant"]["operator"], each["mutant"]["new"]): each["verdict"] for each in values["mutants"]}
    assert found == {
        ("default changed", "11"): "noticed",
        ("condition negated", "not (x > most)"): "noticed",
        ("condition always true", "True"): "missed",
        ("condition never true", "False"): "noticed",
        ("comparison changed", "(x >= most)"): "missed",
        ("nothing returned", "return None"): "noticed",
        ("early return", "return None\n    "): "noticed",
        ("arithmetic changed", "(x * 2)"): "noticed",
        ("arithmetic changed", "(x / 2)"): "noticed",
        ("constant changed", "3"): "noticed",
    }
    assert "clipping/clip.py clipped: 2 survivors" in done.stdout
    assert "recorded: 3 passed, 0 red" in done.stderr
    again = generate()
    assert again.returncode == 0
    assert again.stdout == done.stdout
    assert not again.stderr  # neither recorded nor run again


def test_a_package_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    done = command("tests.breaks", "mutants", "--module", "no_such/*.py", "--list", cwd=tmp_path)
    assert done.returncode == EXIT_USAGE
    assert "there is no package 'no_such'" in done.stderr
