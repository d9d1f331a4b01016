"""A case begins while the previous one is being reported, without effects on order, blame, output or stops."""

from __future__ import annotations

from tests.acceptance.conftest import MakeProject
from tests.acceptance.project import Project

CASES = """
import os, pathlib
def began(name):
    (pathlib.Path(os.environ["PROBE_DIR"]) / name).touch()
def test_0(): print("zero")
def test_1():
    print("one")
    began("one")
def test_2(): print("two")
"""
#: In the reporting process, not in executors: after the report of the first case, wait until the second runs.
WAITS = """
import os, pathlib, time
here = None
def pytest_runtestloop(session):
    global here
    here = session if session.config.pluginmanager.has_plugin("terminalreporter") else None
def pytest_runtest_logfinish(nodeid):
    if here is not None and nodeid.endswith("test_0"):
        while not (pathlib.Path(os.environ["PROBE_DIR"]) / "one").exists():
            time.sleep(0.01)
        {then}
"""


#: Many cases, one of which ends its process. Each records that it ran.
MANY = """
import os, pathlib, pytest
@pytest.mark.parametrize("n", range(60))
def test_n(n):
    print("case", n)
    (pathlib.Path(os.environ["PROBE_DIR"]) / str(n)).touch()
    if n == 40:
        os._exit(3)
"""
#: In the reporting process: check briefly after each report whether the next but one case has begun.
LOOKS = """
import os, pathlib, re, time
here = None
def pytest_runtestloop(session):
    global here
    here = session if session.config.pluginmanager.has_plugin("terminalreporter") else None
def pytest_runtest_logfinish(nodeid):
    probe = pathlib.Path(os.environ["PROBE_DIR"])
    until = time.monotonic() + 0.1
    while here is not None and not (probe / "ahead").exists() and time.monotonic() < until:
        if (probe / str(int(re.search(r"[0-9]+", nodeid.partition("[")[2])[0]) + 2)).exists():
            (probe / "ahead").touch()
        time.sleep(0.005)
"""


def overlapping(make_project: MakeProject, then: str) -> Project:
    """Return a project whose second case must begin before the first is reported; `then` is the code that follows."""
    project = make_project()
    project.write("suites/conftest.py", WAITS.format(then=then))
    project.write("suites/quick/test_quick.py", CASES)
    (project.folder / "probe").mkdir()
    return project


def test_the_next_case_begins_before_the_last_is_reported(make_project: MakeProject) -> None:
    result = overlapping(make_project, "pass").run("-n0")
    assert set(result.verdicts.values()) == {"passed"}
    attempts = [line for line in result.lines if line["event"] in ("start", "finish")]
    assert [(line["event"], line["case"][-1]) for line in attempts] == [
        (event, name) for name in "012" for event in ("start", "finish")
    ]
    assert [line["stdout"] for line in attempts if line["event"] == "finish"] == ["zero\n", "one\n", "two\n"]


def test_a_case_that_had_begun_when_the_session_ended_was_not_run(make_project: MakeProject) -> None:
    result = overlapping(make_project, "here.shouldstop = 'enough'").run("-n0")
    assert [outcome for _, outcome in sorted(result.verdicts.items())] == ["passed", "not_run", "not_run"]
    (second,) = [line for line in result.lines if line["event"] == "finish" and line["case"].endswith("test_1")]
    assert second["message"] == "the session ended before the case finished"
    assert result.status != 0


def test_another_order_than_that_of_the_list_loses_no_case(make_project: MakeProject) -> None:
    project = make_project()
    project.write(
        "suites/conftest.py",
        "def pytest_runtestloop(session):\n"
        "    if not session.config.pluginmanager.has_plugin('terminalreporter'): return None\n"
        "    first, second, third = session.items\n"
        "    for item, nextitem in ((first, second), (third, second), (second, None)):\n"
        "        item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)\n"
        "    return True\n",
    )
    project.write("suites/quick/test_quick.py", CASES)
    (project.folder / "probe").mkdir()
    result = project.run("-n0")
    assert set(result.verdicts.values()) == {"passed"}
    assert len(result.verdicts) == 3


def test_cases_that_are_left_out_and_come_later_are_not_lost(make_project: MakeProject) -> None:
    """pytest continues with the 32nd case after the 30th: the 31st, which may have run, runs again at the end."""
    project = make_project()
    project.write(
        "suites/conftest.py",
        "def pytest_runtestloop(session):\n"
        "    if not session.config.pluginmanager.has_plugin('terminalreporter'): return None\n"
        "    items = [*session.items[:30], *session.items[31:], session.items[30]]\n"
        "    for item, nextitem in zip(items, [*items[1:], None]):\n"
        "        item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)\n"
        "    return True\n",
    )
    project.write("suites/quick/test_quick.py", MANY.replace("n == 40", "False"))
    (project.folder / "probe").mkdir()
    result = project.run("-n0")
    assert list(result.verdicts.values()) == ["passed"] * 60
    finishes = [line for line in result.lines if line["event"] == "finish"]
    starts = [line for line in result.lines if line["event"] == "start"]
    named = ("case", "attempt", "executor")
    assert [[line[name] for name in named] for line in starts] == [[line[name] for name in named] for line in finishes]


def test_an_executor_runs_several_cases_at_one_request(make_project: MakeProject) -> None:
    """Each case is journalled as if requested alone, and only the case that ended the process is blamed."""
    project = make_project()
    project.write("suites/conftest.py", LOOKS)
    project.write("suites/quick/test_quick.py", MANY)
    (project.folder / "probe").mkdir()
    result = project.run("-n0")
    assert (project.folder / "probe" / "ahead").exists(), "no case began before the one before the last was reported"
    assert sorted(result.verdicts.values()) == ["crashed"] + ["passed"] * 59
    lines = [line for line in result.lines if line["event"] in ("start", "finish")]
    assert len(lines) == 2 * 61
    for start, finish in zip(lines[::2], lines[1::2], strict=True):
        assert (start["event"], finish["event"]) == ("start", "finish")
        assert {name: start[name] for name in ("case", "attempt", "executor")} == {
            name: finish[name] for name in ("case", "attempt", "executor")
        }
        number = start["case"].partition("[")[2].rstrip("]")
        assert finish["stdout"] == f"case {number}\n"
        assert start["t"] <= finish["t"]
    assert [line["t"] for line in lines] == sorted(line["t"] for line in lines)
    again = [line for line in lines if line["attempt"] == 2]
    assert {line["case"].partition("[")[2] for line in again} == {"40]"}
