"""The harness's own code fails in an executor: no case is blamed, and the traceback is reported."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import check_journal, compare_junit
from tests.acceptance.project import Project, Result
from tests.acceptance.rules import kinds

CASES = [f"suites/own/test_own.py::test_{name}" for name in ("before", "it", "after")]
_SUITE = """
from suites.own import defect

def test_before():
    pass

def test_it():
    defect.armed = True

def test_after():
    pass
"""
# Code of a conftest that patches a function of the harness in the forked process: it raises if `when` holds.
_DEFECT = """
import os, pathlib
from {module} import {owner} as owner

armed = False
original = owner.{name}
once = pathlib.Path(os.environ["PROBE_DIR"], "raised")

def raises(*arguments, **named):
    if {when}:
        once.touch()
        raise {error}
    return original(*arguments, **named)

owner.{name} = raises
"""
_MISTAKE = 'TypeError("a mistake of ours")'
SEEDS = ("harness.executor", "executor", "seed_everything")
BEGIN = ("harness.checks.inspector", "StateInspector", "begin")
END = ("harness.checks.inspector", "StateInspector", "end")
REPORT = ("harness.protocol", "reports", "is_default_pass")
WRITE = ("harness.executor", "channel", "write_to")


def with_defect(project: Project, target: tuple[str, str, str], *, when: str, error: str = _MISTAKE) -> Project:
    """Return a project in which a function of the harness raises in executors."""
    module, owner, name = target
    project.write("suites/__init__.py", "")
    project.write("suites/own/__init__.py", "")
    project.write("suites/own/defect.py", _DEFECT.format(module=module, owner=owner, name=name, when=when, error=error))
    project.write("suites/own/conftest.py", "from suites.own import defect")
    project.write("suites/own/test_own.py", _SUITE)
    return project


def expect(result: Result, outcomes: list[str], error: str = "TypeError: a mistake of ours") -> None:
    """Check the outcomes, and that findings name the error with its traceback without blaming a case."""
    assert [result.verdicts[case] for case in CASES] == outcomes, result.tail()
    found = [finding for finding in result.ledger.findings if finding.kind == "harness_error"]
    assert {*kinds(result)} == {"harness_error"}, result.tail()
    assert error in found[0].message.splitlines()[0]
    assert "Traceback (most recent call last)" in found[0].message
    assert "in raises" in found[0].message
    assert result.status == 1
    lost = [line for line in result.lines if line["event"] == "finish" and line["outcome"] == "lost"]
    assert lost
    for line in lost:
        assert line["message"].startswith("the harness failed (in ")
        assert line["message"].endswith(error)
        assert "Traceback (most recent call last)" in line["detail"]
        assert line["exit_status"] == 244
    check_journal(result)
    compare_junit(result, {case: (outcome, "") for case, outcome in result.verdicts.items()})


@pytest.mark.ways("target", [SEEDS, BEGIN, END, REPORT])
@pytest.mark.ways("mode", ["batch", "case"])
def test_an_error_that_comes_each_time(make_project: MakeProject, mode: str, target: tuple[str, str, str]) -> None:
    """Each case is tried once more, in a fresh process, and is lost."""
    result = with_defect(make_project(), target, when="True").run("-n0", f"--isolation={mode}")
    expect(result, ["lost"] * 3)
    attempts = [(line["case"], line["final"]) for line in result.lines if line["event"] == "finish"]
    assert attempts == [(case, final) for case in CASES for final in (False, True)]


@pytest.mark.parametrize("target", [END, REPORT])
def test_an_error_with_one_case(make_project: MakeProject, target: tuple[str, str, str]) -> None:
    """Cases before it in the same process, and after it in another, are not affected."""
    result = with_defect(make_project(), target, when="armed").run("-n0")
    expect(result, ["passed", "lost", "passed"])


@pytest.mark.ways("target", [SEEDS, BEGIN, END, REPORT])
def test_an_error_that_does_not_come_again(make_project: MakeProject, target: tuple[str, str, str]) -> None:
    """The case is tried once more in a fresh process, and that attempt counts; the run is still red."""
    result = with_defect(make_project(), target, when="not once.exists()").run("-n0")
    expect(result, ["passed"] * 3)


def test_a_full_disk(make_project: MakeProject) -> None:
    """There is no space for the files that the executor writes; the socket needs none."""
    error = 'OSError(28, "No space left on device")'
    project = with_defect(make_project(), WRITE, when="armed", error=error)
    project.write(
        "suites/own/test_own.py",
        _SUITE.replace("test_it():", "test_it(record_property):\n    record_property('size', 3)"),
    )
    result = project.run("-n0")
    expect(result, ["passed", "lost", "passed"], "OSError: [Errno 28] No space left on device")


@pytest.mark.parametrize("target", [("harness.executor.become", "linux", "line_buffer_c_stdio"), SEEDS])
def test_the_same_error_again_and_again_is_one_finding(make_project: MakeProject, target: tuple[str, str, str]) -> None:
    result = with_defect(make_project(), target, when="True").run("-n0")
    assert kinds(result) == ["harness_error"], result.tail()
    assert {*result.verdicts.values()} == {"lost"}


def test_an_error_before_the_executor_can_speak(make_project: MakeProject) -> None:
    """The message has the text from the zygote's log."""
    result = with_defect(make_project(), ("harness.zygote", "server", "detach_from_zygote"), when="True").run("-n0")
    expect(result, ["lost"] * 3, "before it could report an error")


def test_an_error_at_the_end_of_a_process(make_project: MakeProject) -> None:
    """The growth of the process is unknown: a finding without a case."""
    target = ("harness.checks.inspector", "StateInspector", "finish")
    result = with_defect(make_project(), target, when="True").run("-n0")
    assert {*result.verdicts.values()} == {"passed"}, result.tail()
    assert kinds(result) == ["harness_error"], result.tail()
    assert "TypeError: a mistake of ours" in result.terminal


# Only in executors, which are forked: pytest itself handles a hook that raises in the run's own process.
_CONFTEST = """
import os, sys
import pytest

HERE = int(str(os.getpid()))  # as text, since a variable with the id itself gets that of each executor

def fail(wanted):
    if wanted and os.getpid() != HERE:
        {error}
"""
_HOOKS = {
    "logreport": """
def pytest_runtest_logreport(report):
    fail(report.when == "call" and "test_it" in report.nodeid)
""",
    "protocol": """
@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    result = yield
    fail(item.name == "test_it")
    return result
""",
    "makereport": """
def pytest_runtest_makereport(item, call):
    fail(item.name == "test_it" and call.when == "setup")
""",
    "logfinish": """
def pytest_runtest_logfinish(nodeid):
    fail("test_it" in nodeid)
""",
}


@pytest.mark.ways("hook", _HOOKS)
@pytest.mark.ways("mode", ["batch", "case"])
def test_a_hook_of_a_conftest_raises(make_project: MakeProject, hook: str, mode: str) -> None:
    """pytest would stop with an internal error; the harness reports an error of the case, and continues elsewhere."""
    result = with_hook(make_project(), hook, 'raise ValueError("a mistake of the conftest")').run(
        "-n0", f"--isolation={mode}"
    )
    assert [result.verdicts[case] for case in CASES] == ["passed", "error", "passed"], result.tail()
    assert kinds(result) == []
    (line,) = [line for line in result.lines if line["event"] == "finish" and line["outcome"] == "error"]
    assert line["message"] == "a hook of a plugin or conftest raised ValueError: a mistake of the conftest"
    assert "suites/own/conftest.py" in line["detail"]
    first, second = (
        next(line for line in result.lines if line["event"] == "start" and line["case"] == case) for case in CASES[1:]
    )
    assert first["executor"] != second["executor"]
    check_journal(result)
    compare_junit(result, {case: (outcome, "") for case, outcome in result.verdicts.items()})


def test_a_hook_of_a_conftest_exits(make_project: MakeProject) -> None:
    result = with_hook(make_project(), "logreport", "sys.exit(3)").run("-n0")
    assert [result.verdicts[case] for case in CASES] == ["passed", "error", "passed"], result.tail()
    assert "a hook of a plugin or conftest raised SystemExit: 3" in result.terminal


def with_hook(project: Project, hook: str, error: str) -> Project:
    """Return a project with a hook that fails in executors."""
    project.write("suites/own/conftest.py", _CONFTEST.format(error=error) + _HOOKS[hook])
    project.write("suites/own/test_own.py", _SUITE.replace("from suites.own import defect", "class defect: pass"))
    return project
