"""The script that runs the cases that draw random numbers with many seeds."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ci import new_seeds
from tests.ci.new_seeds import Drawing

ROOT = Path(__file__).parents[2]
#: Each row: what a case does, and whether it draws.
CASES = {
    "test_python": ("", "random.random()", True),
    "test_numpy": ("", "numpy.random.rand()", True),
    "test_torch": ("", "torch.rand(1)", True),
    "test_own_generator": ("case_seed", "assert case_seed >= 0", True),
    "test_no_number": ("", "torch.ones(1)", False),
}


@pytest.mark.parametrize(
    ("cases", "seeds", "found"),
    [(10, 7, [7]), (10, 25, [10, 10, 5]), (1000, 3, [1, 1, 1]), (3, 33, [33])],
)
def test_no_run_has_too_many_cases(cases: int, seeds: int, found: list[int]) -> None:
    functions = {"a::f": Drawing("a", cases, 1.0)}
    assert [run["a::f"] for run in new_seeds.rounds(functions, {"a": seeds}, most=100)] == found


def test_a_file_with_few_seeds_is_in_the_first_runs_only() -> None:
    functions = {"a::f": Drawing("a", 10, 1.0), "b::g": Drawing("b", 10, 1.0)}
    found = new_seeds.rounds(functions, {"a": 3, "b": 20}, most=100)
    assert found == [{"a::f": 3, "b::g": 5}, {"b::g": 10}, {"b::g": 5}]
    assert new_seeds.rounds({}, {}) == []


def test_each_suite_has_runs_of_its_own() -> None:
    names = ("/s/a/t.py::f", "/s/b/t.py::f", "/s/a/u.py::g")
    functions = {name: Drawing(name.partition("::")[0], 1, 1.0) for name in names}
    found = new_seeds.by_folder(functions)
    assert {folder.name: [*part] for folder, part in found.items()} == {
        "a": ["/s/a/t.py::f", "/s/a/u.py::g"],
        "b": ["/s/b/t.py::f"],
    }


def test_the_copies_of_a_file_fit_in_the_seconds() -> None:
    functions = [Drawing("fast", 3, 0.1), Drawing("slow", 1, 4.0), Drawing("slow", 1, 2.0), Drawing("endless", 1, 99.0)]
    assert new_seeds.seeds_of_files(functions, 200, 30.0) == {"fast": 200, "slow": 5, "endless": 1}
    assert new_seeds.seeds_of_files(functions, 7, math.inf) == {"fast": 7, "slow": 7, "endless": 7}


def _run(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_drawn.py").write_text(text)
    command = [sys.executable, "-m", new_seeds.__name__, str(folder / "test_drawn.py"), "--seeds=3", "--seed=5"]
    command += ["--workers=0", f"--results={folder / 'results'}"]
    return subprocess.run(command, cwd=ROOT, env=os.environ.copy(), capture_output=True, text=True, check=False)


@pytest.mark.acceptance
def test_the_cases_that_draw_run_with_each_seed(tmp_path: Path) -> None:
    lines = "".join(f"def {name}({given}):\n    {line}\n" for name, (given, line, _) in CASES.items())
    done = _run(tmp_path, f"import random\nimport numpy\nimport torch\n{lines}")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "new_seeds: 4 cases of 1 files draw; 3 seeds each; 0 red runs"
    assert "12 cases: 12 passed" in done.stdout
    named = new_seeds.drawn(tmp_path / "results" / "drawn.ndjson")
    assert [name.rpartition("::")[2] for name in named] == [name for name, (*_, draws) in CASES.items() if draws]


@pytest.mark.acceptance
def test_a_case_that_is_red_with_one_of_the_seeds_is_found(tmp_path: Path) -> None:
    done = _run(
        tmp_path, "SEEDS = []\ndef test(case_seed):\n    SEEDS.append(case_seed)\n    assert len(set(SEEDS)) < 3\n"
    )
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "new_seeds: 1 cases of 1 files draw; 3 seeds each; 1 red runs"
