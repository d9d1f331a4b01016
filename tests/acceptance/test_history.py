"""The order of a run follows from earlier durations, longest first; an explicitly chosen order is kept."""

from __future__ import annotations

import json

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import check_journal
from tests.acceptance.project import Project, Result

CASES = """
import time
import pytest

@pytest.mark.parametrize("number", range(20))
def test_short(number): pass

@pytest.mark.timeout(600)
def test_slow():
    time.sleep(0.3)

def test_slower():
    time.sleep(0.6)
"""
SLOW, SLOWER = "suites/some/test_some.py::test_slow", "suites/some/test_some.py::test_slower"


@pytest.fixture
def project(make_project: MakeProject) -> Project:
    project = make_project()
    project.write("suites/some/test_some.py", CASES)
    return project


def begun(result: Result) -> list[str]:
    """Return the cases in the order of their start."""
    check_journal(result)
    assert {*result.verdicts.values()} == {"passed"}, result.tail()
    return [line["case"] for line in result.lines if line["event"] == "start"]


def first(result: Result) -> set[str]:
    """Return the first case of each worker. One may have run several before another has started."""
    begun(result)
    return {*{line["worker"]: line["case"] for line in reversed(result.lines) if line["event"] == "start"}.values()}


def test_the_longest_case_of_the_last_run_comes_first(project: Project) -> None:
    """The durations come from the file in results/, or from the run directories that are named."""
    fresh = project.run("-n2", "-v", results_dir=False)
    assert "scheduling tests via LongestFirstScheduling" in fresh.terminal
    path = project.folder / "results" / "history.json"
    (known,) = json.loads(path.read_text())["seconds"].values()
    assert known[SLOWER] > known[SLOW] > 0.3
    assert len(known) == 22
    kept = path.read_bytes()
    again = project.run("-n2")
    assert first(again) == {SLOW, SLOWER}
    assert path.read_bytes() == kept, "a run elsewhere changes it not"
    path.unlink()
    named = project.run("-n2", f"--history={again.run_dir.name}", f"--history={again.run_dir.name}")
    assert first(named) == {SLOW, SLOWER}


def test_without_history_the_limit_tells(project: Project) -> None:
    assert SLOW in first(project.run("-n2"))


@pytest.mark.ways(
    ("options", "name"),
    [
        (["--dist=load"], "LoadScheduling"),
        (["--dist=worksteal"], "WorkStealingScheduling"),
        (["--dist=loadfile"], "LoadFileScheduling"),
        (["--dist=loadscope"], "LoadScopeScheduling"),
        (["--dist=loadgroup"], "LoadGroupScheduling"),
        (["--maxschedchunk=1"], "LoadScheduling"),
        (["--shuffle", "--seed=3"], "LoadScheduling"),
    ],
)
def test_an_order_that_an_option_chooses_is_kept(project: Project, options: list[str], name: str) -> None:
    result = project.run("-n2", "-v", *options)
    assert f"scheduling tests via {name}" in result.terminal
    assert len(begun(result)) == 22


def test_one_worker_and_fewer_cases_than_workers(project: Project) -> None:
    assert len(begun(project.run("-n1"))) == 22
    assert begun(project.run("-n3", "-k", "test_slower")) == [SLOWER]


DIES = """
import os

worker = 0

def pytest_configure(config):
    global worker
    if getattr(config, "workerinput", {}).get("workerid") in ("gw0", "gw1"):
        worker = os.getpid()

def pytest_runtest_logstart(nodeid):
    if nodeid.endswith("test_short[7]") and os.getpid() == worker:
        os.kill(worker, 9)
"""


def test_when_a_worker_dies_another_one_gets_what_it_had(project: Project) -> None:
    project.write("suites/some/conftest.py", DIES)
    result = project.run("-n2", "-v")
    check_journal(result)
    verdicts = result.verdicts
    assert len(verdicts) == 22
    assert [case for case, outcome in verdicts.items() if outcome != "passed"] == []
    assert [finding.kind for finding in result.ledger.findings] == ["worker"]


@pytest.mark.parametrize(
    ("history", "words"),
    [
        ("nothing", "--history='nothing': there is no journal at "),
        ("suites", "--history='suites': there is no journal at "),
    ],
)
def test_a_history_that_is_none(project: Project, history: str, words: str) -> None:
    result = project.run("-n2", f"--history={history}")
    assert (result.status, words in result.terminal, result.run_dir.exists()) == (4, True, False), result.tail()


def test_a_history_of_another_tree(project: Project) -> None:
    """The run continues without the history, and reports it."""
    other = project.run("-n0", "-k", "test_slower")
    project.write("suites/some/test_some.py", "def test_new(): pass\n\ndef test_newer(): pass\n")
    result = project.run("-n2", f"--history={other.run_dir.name}")
    assert result.status == 0
    words = f"--history='{other.run_dir.name}': none of its 1 cases is in this run: it comes from another tree"
    assert words in result.terminal, result.tail()
