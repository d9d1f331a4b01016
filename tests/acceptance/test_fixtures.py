"""Fixtures of each scope are set up and torn down as pytest promises, in each process that needs them."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import compare, expected
from tests.acceptance.project import Project

SCOPES = ["session", "package", "module", "class", "function"]


def still_open(lines: list[str]) -> list[str]:
    """Return the fixtures that are still set up at the end; assert that tear-downs have the reverse order."""
    stack: list[str] = []
    for line in lines:
        sign, name = line[0], line[1:]
        if sign == "+":
            stack.append(name)
        else:
            assert stack.pop() == name, lines
    return stack


def notes(project: Project, prefix: str) -> list[list[str]]:
    """Return the notes of each process."""
    return [project.probe(name) for name in project.probe_names() if name.startswith(prefix)]


def test_scopes_in_batch(make_project: MakeProject) -> None:
    """They are shared within a process; after a crash, they are set up again in the next process."""
    project = make_project("fixtures")
    project.keep("test_scopes.py", "test_second_module.py")
    compare(project.run("-n0"), expected(project, "batch"))
    first, last = sorted(notes(project, "scopes-"), key=len, reverse=True)
    assert still_open(first) == ["session", "package", "module"]  # a crash tears down nothing
    counts = Counter(first)
    assert [counts[f"+{scope}"] for scope in SCOPES] == [1, 1, 2, 4, 5]
    assert [counts[f"-{scope}"] for scope in SCOPES] == [0, 0, 1, 4, 5]
    assert last == [f"+{scope}" for scope in SCOPES] + [f"-{scope}" for scope in reversed(SCOPES)]


@pytest.mark.ways("spread", ["-n0", "-n2"])
def test_scopes_alone(make_project: MakeProject, spread: str) -> None:
    """A case in its own process has its own fixtures, whatever their scope."""
    project = make_project("fixtures")
    project.keep("test_scopes.py", "test_second_module.py")
    once = "--leak-check=off"  # otherwise cases may run again, to search for growth
    compare(project.run("--isolation=case", spread, once), expected(project, "case"), alone=True)
    processes = notes(project, "scopes-")
    assert len(processes) == 6
    for lines in processes:
        assert lines == [f"+{scope}" for scope in SCOPES] + [f"-{scope}" for scope in reversed(SCOPES)]


def test_scopes_on_two_workers(make_project: MakeProject) -> None:
    """Each worker's process has its own fixtures, and tears all of them down if nothing crashed."""
    project = make_project("fixtures")
    project.keep("test_scopes.py")
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
    project.keep("test_scopes.py")
    compare(project.run("-n0", "--isolation=none"), expected(project, "batch"))
    (lines,) = notes(project, "scopes-")
    assert still_open(lines) == []
    assert [Counter(lines)[f"+{scope}"] for scope in SCOPES] == [1, 1, 1, 3, 4]


@pytest.mark.ways("mode", ["batch", "case"])
def test_unittest(make_project: MakeProject, mode: str) -> None:
    """Set-up and tear-down of unittest's modules and classes run once in each process that runs their cases."""
    project = make_project("fixtures")
    project.keep("test_unittest.py")
    once = "--leak-check=off"  # otherwise cases may run again, to search for growth
    compare(project.run("-n0", once, f"--isolation={mode}"), expected(project, mode), alone=mode == "case")
    processes = notes(project, "classes-")
    assert len(processes) == (1 if mode == "batch" else 9)
    for lines in processes:
        assert still_open(lines) == []
        assert Counter(lines)["+module"] == 1
        assert Counter(lines)["+class"] <= 1
    assert sum(Counter(lines)["+class"] for lines in processes) == (1 if mode == "batch" else 5)
    assert sum(Counter(lines)["+case"] for lines in processes) == 5
