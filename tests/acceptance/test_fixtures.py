"""Fixtures of every scope are set up and torn down as pytest promises, in each process that needs them."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import compare, expected
from tests.acceptance.project import Project

SCOPES = ["session", "package", "module", "class", "function"]


def only(project: Project, *names: str) -> None:
    """Leave only these files of tests in the project."""
    for path in project.folder.glob("suites/**/test_*.py"):
        if path.name not in names:
            path.unlink()


def still_open(lines: list[str]) -> list[str]:
    """What is set up and not torn down at the end; that things are torn down in reverse order is asserted."""
    stack: list[str] = []
    for line in lines:
        sign, name = line[0], line[1:]
        if sign == "+":
            stack.append(name)
        else:
            assert stack.pop() == name, lines
    return stack


def notes(project: Project, prefix: str) -> list[list[str]]:
    """What each process noted, a list a process."""
    return [project.probe(name) for name in project.probe_names() if name.startswith(prefix)]


def test_scopes_in_batch(make_project: MakeProject) -> None:
    """Shared as in one process; what a crash cuts off is set up anew in the next one."""
    project = make_project("fixtures")
    only(project, "test_scopes.py", "test_second_module.py")
    compare(project.run("-n0"), expected(project, "batch"))
    first, last = sorted(notes(project, "scopes-"), key=len, reverse=True)
    assert still_open(first) == ["session", "package", "module"]  # a crash tears nothing down
    counts = Counter(first)
    assert [counts[f"+{scope}"] for scope in SCOPES] == [1, 1, 2, 4, 5]
    assert [counts[f"-{scope}"] for scope in SCOPES] == [0, 0, 1, 4, 5]
    assert last == [f"+{scope}" for scope in SCOPES] + [f"-{scope}" for scope in reversed(SCOPES)]


@pytest.mark.ways("spread", ["-n0", "-n2"])
def test_scopes_alone(make_project: MakeProject, spread: str) -> None:
    """A case in a process of its own has fixtures of its own, whatever their scope."""
    project = make_project("fixtures")
    only(project, "test_scopes.py", "test_second_module.py")
    once = "--leak-check=off"  # else cases may run again, to find out what has made their process grow
    compare(project.run("--isolation=case", spread, once), expected(project, "case"), alone=True)
    processes = notes(project, "scopes-")
    assert len(processes) == 6
    for lines in processes:
        assert lines == [f"+{scope}" for scope in SCOPES] + [f"-{scope}" for scope in reversed(SCOPES)]


def test_scopes_on_two_workers(make_project: MakeProject) -> None:
    """Each worker's process has its own, all torn down in the end where nothing crashed."""
    project = make_project("fixtures")
    only(project, "test_scopes.py")
    once = "--leak-check=off"
    compare(project.run("-n2", "--dist=load", once), expected(project, "batch"))
    processes = notes(project, "scopes-")
    assert 1 <= len(processes) <= 2
    for lines in processes:
        assert still_open(lines) == []
        assert Counter(lines)["+session"] == 1
    assert sum(Counter(lines)["+function"] for lines in processes) == 4


def test_scopes_without_isolation(make_project: MakeProject) -> None:
    project = make_project("fixtures")
    only(project, "test_scopes.py")
    compare(project.run("-n0", "--isolation=none"), expected(project, "batch"))
    (lines,) = notes(project, "scopes-")
    assert still_open(lines) == []
    assert [Counter(lines)[f"+{scope}"] for scope in SCOPES] == [1, 1, 1, 3, 4]


@pytest.mark.ways("mode", ["batch", "case"])
def test_unittest(make_project: MakeProject, mode: str) -> None:
    """Set-up and tear-down of unittest's modules and classes, once each in a process that runs their cases."""
    project = make_project("fixtures")
    only(project, "test_unittest.py")
    once = "--leak-check=off"  # else cases may run again, to find out what has made their process grow
    compare(project.run("-n0", once, f"--isolation={mode}"), expected(project, mode), alone=mode == "case")
    processes = notes(project, "classes-")
    assert len(processes) == (1 if mode == "batch" else 9)
    for lines in processes:
        assert still_open(lines) == []
        assert Counter(lines)["+module"] == 1
        assert Counter(lines)["+class"] <= 1
    assert sum(Counter(lines)["+class"] for lines in processes) == (1 if mode == "batch" else 5)
    assert sum(Counter(lines)["+case"] for lines in processes) == 5
