"""Which process a case runs in: one verdict per case with each of xdist's distributions, and processes of its own."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import compare, expected
from tests.acceptance.project import journal_lines


@pytest.mark.ways("dist", ["load", "loadscope", "loadfile", "loadgroup", "worksteal"])
def test_dist(make_project: MakeProject, dist: str) -> None:
    project = make_project("mixed")
    result = project.run("-n2", f"--dist={dist}")
    compare(result, expected(project, "batch"))


def test_dist_each(make_project: MakeProject) -> None:
    """Every worker runs every case, but a case has one verdict. pytest itself counts each run of a case."""
    project = make_project("mixed")
    wanted = expected(project, "batch")
    result = project.run("-n2", "--dist=each")
    compare(result, replace(wanted, counts={word: 2 * number for word, number in wanted.counts.items()}))
    finals = [(line["case"], line["worker"]) for line in result.lines if line["event"] == "finish" and line["final"]]
    assert sorted(finals) == sorted((case, worker) for case in wanted.cases for worker in ("gw0", "gw1"))


@pytest.mark.nightly
def test_more_workers_than_cases(make_project: MakeProject) -> None:
    project = make_project("plain")
    result = project.run("-n8", "--isolation=case")
    compare(result, expected(project, "case"), alone=True)


@pytest.mark.nightly
def test_auto_is_one_worker_a_core(make_project: MakeProject) -> None:
    """``-n auto`` starts at most one worker per core that this process may use, regardless of the machine's cores."""
    project = make_project("mixed")
    result = project.run("-nauto")
    compare(result, expected(project, "batch"))
    workers = {line["worker"] for line in result.lines if line["event"] == "collected"}
    assert 1 <= len(workers) <= len(os.sched_getaffinity(0))


_LISTENER = """
import os
from pathlib import Path

import pytest

FOLDER = Path(os.environ["PROBE_DIR"])

class Listener:
    def __init__(self, config):
        self.name = config.workerinput["workerid"] if hasattr(config, "workerinput") else "controller"
    def note(self, *words):
        with (FOLDER / self.name).open("a") as file:
            print(*words, file=file)
    def pytest_runtest_logstart(self, nodeid, location):
        self.note(nodeid, "start", location[0])
    def pytest_runtest_logreport(self, report):
        if self.name == "controller":
            self.note(report.nodeid, report.when, report.node.gateway.id, report.worker_id, report.item_index)
        else:
            self.note(report.nodeid, report.when)
    def pytest_runtest_logfinish(self, nodeid, location):
        self.note(nodeid, "finish", location[0])
    @pytest.hookimpl(wrapper=True)
    def pytest_report_from_serializable(self):
        if self.name == "controller":
            with (FOLDER / "messages").open("a") as file:
                print("one", file=file)
        return (yield)

def pytest_configure(config):
    if hasattr(config, "workerinput") or config.getoption("dist") != "no":  # not where cases are collected and run
        config.pluginmanager.register(Listener(config))
"""
_LISTENED = """
import pytest

@pytest.mark.parametrize("number", range(4))
def test_passes(number):
    print("printed")

def test_fails():
    assert False
"""
_OF_FOLDER = """
import os
from pathlib import Path

def pytest_runtest_logreport(report):
    with Path(os.environ["PROBE_DIR"], f"folder-{os.getpid()}").open("a") as file:
        print(report.nodeid, report.when, file=file)
"""


@pytest.mark.ways("has_conftest_hook", [False, True])
def test_each_plugin_hears_of_each_case_as_without_the_harness(
    make_project: MakeProject, has_conftest_hook: bool
) -> None:
    """Workers and controller call the hooks once, in pytest's order; a folder's conftest gets only its own cases."""
    project = make_project()
    project.write("conftest.py", _LISTENER)
    for folder in ("one", "two"):
        project.write(f"suites/{folder}/test_{folder}.py", _LISTENED)
    if has_conftest_hook:
        project.write("suites/one/conftest.py", _OF_FOLDER)
    result = project.run("-n2", "--dist=load")
    assert sorted(result.verdicts.values()) == ["failed"] * 2 + ["passed"] * 8, result.tail()
    heard: dict[str, dict[str, list[str]]] = {}
    for file in (project.folder / "probe").iterdir():
        for line in file.read_text().splitlines():
            nodeid, *words = line.split()
            heard.setdefault(file.name, {}).setdefault(nodeid, []).append(" ".join(words))
    workers = {name: cases for name, cases in heard.items() if name.startswith("gw")}
    of_folder = [cases for name, cases in heard.items() if name.startswith("folder-")]
    phases = ["setup", "call", "teardown"]
    # One message per passed case, but three if a conftest must be called for its own cases; three for any other case.
    assert len(heard["messages"]["one"]) == (10 * 3 if has_conftest_hook else 8 + 2 * 3)
    for nodeid in result.verdicts:
        path = nodeid.partition("::")[0]
        ((name, of_worker),) = [(name, cases[nodeid]) for name, cases in workers.items() if nodeid in cases]
        assert of_worker == [f"start {path}", *phases, f"finish {path}"]
        start, *of_controller, finish = heard["controller"][nodeid]
        assert (start, finish) == (f"start {path}", f"finish {path}")
        number = of_controller[0].split()[-1]
        assert of_controller == [f"{phase} {name} {name} {number}" for phase in phases]
    reported = sorted(nodeid for cases in of_folder for nodeid in cases)
    wanted = [nodeid for nodeid in result.verdicts if "/one/" in nodeid] if has_conftest_hook else []
    assert reported == sorted(2 * wanted)  # by the process that runs it, and by the worker
    assert all(words == phases for cases in of_folder for words in cases.values())


_OWN_PROCESS = """
import pytest

@pytest.mark.parametrize("number", [0, 1, pytest.param(2, marks=pytest.mark.own_process), 3, 4])
def test_one(number): pass
"""


@pytest.mark.parametrize(
    ("options", "shared"),
    [
        (("-n0",), [{0, 1}, {3, 4}]),
        (("-n0", "--shuffle", "--seed=1"), [{0, 1, 3, 4}]),
        (("-n1",), [{0, 1, 3, 4}]),
    ],
)
def test_own_process_keeps_others_out(
    make_project: MakeProject, options: tuple[str, ...], shared: list[set[int]]
) -> None:
    """In random order, and with workers, such cases come last, so that the others share their process."""
    project = make_project()
    project.write("suites/test_own.py", _OWN_PROCESS)
    result = project.run(*options)
    assert result.status == 0, result.tail()
    processes: dict[int, set[int]] = {}
    for line in journal_lines(result.run_dir):
        if line["event"] == "start":
            processes.setdefault(line["pid"], set()).add(int(line["case"][-2]))
    assert [numbers for numbers in processes.values() if numbers != {2}] == shared
    assert {2} in processes.values()
