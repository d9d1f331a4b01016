"""Reasons for mutants: the mutants that an entry covers, and the names in the project's own file."""

from __future__ import annotations

import ast
import importlib.util
from functools import cache
from importlib.metadata import version
from pathlib import Path

import pytest

from harness.gating.configfile import ConfigError
from tests.breaks.mutants.mutant import Mutant
from tests.breaks.mutants.reasons import DEFAULT, matches, read_reasons

ROOT = Path(__file__).parents[3]
FILE = """\
mutants:
  - path: torch/a.py
    functions: [f, "C.*"]
    changes: ["statement dropped: *", "constant changed: [1] -> 2"]
    reason: some
  - path: torch/a.py
    functions: [g]
    reason: all
"""


def mutant(function: str, operator: str = "constant changed", old: str = "[1]", path: str = "torch/a.py") -> Mutant:
    return Mutant(path, function, 1, 1, operator, 0, 1, old, "2")


def test_an_entry_is_about_its_file_its_functions_and_its_changes(tmp_path: Path) -> None:
    file = tmp_path / "reasons.yaml"
    file.write_text(FILE)
    reasons = read_reasons(file)
    assert reasons.of(mutant("f")) == "some"
    assert reasons.of(mutant("f", "statement dropped", "x\n= 1")) == "some"
    assert reasons.of(mutant("C.h")) == "some"
    assert reasons.of(mutant("g", "early return")) == "all"
    for other in (mutant("f", old="1"), mutant("f", "early return"), mutant("ff"), mutant("g", path="torch/b.py")):
        assert not reasons.of(other), other


def test_a_star_in_a_path_stands_for_any_text(tmp_path: Path) -> None:
    file = tmp_path / "reasons.yaml"
    file.write_text("mutants:\n  - {path: torch/*.py, functions: [f], reason: always}\n")
    reasons = read_reasons(file)
    assert [reasons.of(mutant("f", path=path)) for path in ("torch/a.py", "torch/b/c.py", "other/a.py")] == [
        "always",
        "always",
        "",
    ]


def test_without_a_file_there_are_no_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_reasons(None).mutants == ()


def test_an_entry_without_a_reason_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "reasons.yaml"
    file.write_text(FILE.replace("    reason: all\n", ""))
    with pytest.raises(ConfigError, match="reason"):
        read_reasons(file)


@pytest.mark.skipif(not version("torch").startswith("2.13"), reason="the file is written for torch 2.13")
def test_the_functions_of_the_own_file_exist() -> None:
    """An entry for a name that torch does not have has no effect."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    for entry in read_reasons(ROOT / DEFAULT).mutants:
        names = {name for file in Path(spec.origin).parents[1].glob(entry.path) for name in _functions(file)}
        for pattern in entry.functions:
            assert any(matches([pattern], name) for name in names), f"{entry.path}: there is no function {pattern!r}"


@cache
def _functions(file: Path) -> set[str]:
    names: set[str] = set()
    _add_functions(ast.parse(file.read_bytes()), "", names)
    return names


def _add_functions(node: ast.AST, above: str, names: set[str]) -> None:
    for each in ast.iter_child_nodes(node):
        below = above
        if isinstance(each, ast.FunctionDef | ast.ClassDef):
            name = f"{above}{each.name}"
            names.add(name)
            below = f"{name}.<locals>." if isinstance(each, ast.FunctionDef) else f"{name}."
        _add_functions(each, below, names)
