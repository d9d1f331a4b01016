"""A long silent run reports its progress."""

from __future__ import annotations

import os
import re

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import check_journal
from tests.acceptance.project import Project, Result, open_gate

SPREADS = pytest.mark.ways("spread", ["-n0", "-n2"])
FILE = "suites/slow/test_slow.py"
#: The second case waits until the other end of a pipe is opened.
CASES = """
import os

def test_first(): pass
def test_waits(): open(os.environ["PROBE_DIR"] + "/gate").close()
def test_last(): pass
"""
LINE = re.compile(r"^harness: .* of 3 cases done.*$", re.MULTILINE)


@pytest.fixture
def project(make_project: MakeProject) -> Project:
    project = make_project()
    project.write(FILE, CASES)
    return project


def run(project: Project, *arguments: str, until: str = "", env: dict[str, str] | None = None) -> Result:
    """Run with a case that waits until the run has printed `until`, or if that is empty, until it is seen waiting."""
    gate = project.folder / "probe" / "gate"
    gate.parent.mkdir(exist_ok=True)
    os.mkfifo(gate)
    # Another process may create a file under /dev/shm meanwhile; the case would then run again, and wait again.
    running = project.start("--dist=loadfile", "--leak-check=off", *arguments, env=env)
    try:
        running.started("test_waits")
        if until:
            running.wait_for(lambda: re.search(until, running.terminal()) is not None, f"a line like {until}")
        open_gate(running, gate)
        return running.result()
    except BaseException:
        running.kill_all()
        raise


@SPREADS
@pytest.mark.ways("how", [(), ("-q",), ("-qq",), ("-v",)], ids=lambda words: "".join(words) or "plain")
def test_what_runs_where_since_when(project: Project, spread: str, how: tuple[str, ...]) -> None:
    worker = "main" if spread == "-n0" else r"gw\d"
    runs = rf"{worker} runs {FILE}::test_waits on cpu, for \d+ s"
    says = rf"(?m)^harness: 1 of 3 cases done \(1 passed\); 2 left \(.*\); {runs}$"
    result = run(project, spread, "--progress=0.2", *how, until=says)
    assert result.status == 0, result.tail()
    assert re.search(says, result.terminal)
    check_journal(result)
    dots = re.sub(r"(?m)^harness: .*\n", "", result.terminal)
    assert len(re.findall(r"PASSED", dots)) == 3 if how == ("-v",) else re.findall(r"(?<![\w.])\.+(?![\w.])", dots)


@SPREADS
def test_the_zygote_collects(project: Project, spread: str) -> None:
    """The zygote waits in a module of the suite, which no other process imports."""
    project.write(FILE, CASES + "open(os.environ['PROBE_DIR'] + '/zygote').close()\n")
    gate = project.folder / "probe" / "zygote"
    gate.parent.mkdir(exist_ok=True)
    os.mkfifo(gate)
    says = r"(?m)^harness: collecting for \d+ s"
    running = project.start(spread, "--progress=0.2", "-k", "not waits")
    try:
        running.wait_for(lambda: re.search(says, running.terminal()) is not None, "a line about the collection")
        open_gate(running, gate)
        result = running.result()
    except BaseException:
        running.kill_all()
        raise
    assert result.status == 0, result.tail()


@pytest.mark.ways(
    ("arguments", "env"),
    [(("--progress=0",), {}), ((), {"HARNESS_PROGRESS": "0"}), (("--progress=3600",), {}), ((), {})],
    ids=["off", "off-by-environment", "seldom", "by-default-after-half-a-minute"],
)
def test_nothing_is_said(project: Project, arguments: tuple[str, ...], env: dict[str, str]) -> None:
    result = run(project, "-n0", *arguments, env=env)
    assert result.status == 0, result.tail()
    assert not LINE.search(result.terminal)


@pytest.mark.parametrize(("given", "threads"), [((), "1"), (("--progress=3600",), "2")], ids=["default", "asked-for"])
def test_a_case_in_this_process_finds_no_thread_unless_it_was_asked_for(
    make_project: MakeProject, given: tuple[str, ...], threads: str
) -> None:
    """Without isolation and without xdist the case runs in the process that prints the lines."""
    project = make_project()
    project.write(
        "suites/count/test_count.py",
        "import os, threading\n"
        "def test_count():\n"
        "    open(os.environ['PROBE_DIR'] + '/threads', 'w').write(str(threading.active_count()))\n",
    )
    result = project.run("--isolation=none", "-n0", *given)
    assert result.status == 0, result.tail()
    assert project.probe("threads") == [threads]


def test_a_case_in_a_worker_without_isolation_is_seen(project: Project) -> None:
    says = rf"(?m)^harness: .*gw\d runs {FILE}::test_waits on cpu, for \d+ s"
    assert run(project, "-n1", "--isolation=none", "--progress=0.2", until=says).status == 0


def test_a_search_after_the_last_case_is_reported(make_project: MakeProject) -> None:
    """After its last case, a batch that has grown is searched trial by trial."""
    result = make_project("batch_malloc").run("-n0", "--progress=0.01", "--leak-search=600")
    activities = [line["what"] for line in result.lines if line["event"] == "activity"]
    searches = [text for text in activities if "searching for leaks" in text]
    assert re.fullmatch(
        r"searching for leaks, because executor main-e1 grew by .* \(heap_bytes\) over 24 cases", searches[0]
    )
    assert searches[1] == f"{searches[0]}: trial 1"
    assert re.search(
        rf"(?m)^harness: 24 of 24 cases done \(24 passed\); main is {re.escape(searches[1])}, for \d+ s$",
        result.terminal,
    ), result.tail()
    check_journal(result)


def test_the_confirmation_of_a_leak_is_reported(make_project: MakeProject) -> None:
    project = make_project()
    project.write(
        "suites/leaky/test_leaky.py",
        "import tempfile\ndef test_leaks():\n    tempfile.mkstemp()\n",
    )
    result = project.run("-n0")
    assert list(result.verdicts.values()) == ["leaked"], result.tail()
    reported = [line["what"] for line in result.lines if line["event"] == "activity"]
    begun = reported.index("confirming a leak of suites/leaky/test_leaky.py::test_leaks")
    assert reported[begun + 1] == ""
    check_journal(result)
