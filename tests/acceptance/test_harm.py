"""Cases that harm more than their own process, or are hard to end."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import check_journal, compare, compare_junit, expected
from tests.acceptance.project import SUITES

SPREADS = pytest.mark.ways("spread", ["-n0", "-n2"])


@SPREADS
@pytest.mark.ways("mode", ["batch", "case"])
def test_killed_parent(make_project: MakeProject, mode: str, spread: str) -> None:
    """A case that kills the zygote does not affect the next case, which gets a new one."""
    project = make_project("parent")
    result = project.run(f"--isolation={mode}", spread)
    wanted = expected(project, mode)
    assert result.verdicts == wanted.outcomes, result.tail()
    assert {finding.kind for finding in result.ledger.findings} == {"zygote"}
    assert result.status == 1
    check_journal(result)
    compare_junit(result, wanted.cases)


def test_killed_parent_of_two(make_project: MakeProject) -> None:
    """Two workers share the zygote that one's case kills: the innocent case of the other worker is not lost."""
    project = make_project()
    project.write(
        "suites/parent/test_kills.py",
        """
import os, pathlib, signal, time

EXPECTED = {"test_kills_its_parent": "lost"}

def test_kills_its_parent():
    while not (pathlib.Path(os.environ["PROBE_DIR"]) / "innocent").exists():
        time.sleep(0.01)
    os.kill(os.getppid(), signal.SIGKILL)
    signal.pause()
""",
    )
    project.write(
        "suites/parent/test_innocent.py",
        """
import os, pathlib, signal

EXPECTED = {"test_innocent": "passed"}

def test_innocent():
    mine = pathlib.Path(os.environ["PROBE_DIR"]) / "innocent"
    if not mine.exists():
        mine.touch()
        signal.pause()  # until the kernel ends this process with the zygote
""",
    )
    result = project.run("-n2", "--dist=loadfile", "--case-timeout=20")
    assert result.verdicts == expected(project, "batch").outcomes, result.tail()


def test_exit_of_the_session(make_project: MakeProject) -> None:
    """A case that calls `pytest.exit` stops the run; the cases after it are not run."""
    project = make_project()
    project.write(
        "suites/stop/test_stop.py",
        """
import pytest

EXPECTED = {"test_before": "passed", "test_stops": "failed: enough", "test_after": "not_run"}

def test_before():
    pass

def test_stops():
    pytest.exit("enough")

def test_after():
    pass
""",
    )
    result = project.run("-n0")
    assert result.verdicts == expected(project, "batch").outcomes, result.tail()
    assert result.status in (1, 2)
    check_journal(result)


# The end of the process, long after the last result is reported

EXITS = sorted(path.name for path in (SUITES / "exits").glob("test_*.py"))


@pytest.mark.ways("name", EXITS)
def test_an_end_that_one_case_breaks_among_others(make_project: MakeProject, name: str) -> None:
    """If a process with several cases ends badly, the responsible case is found."""
    project = make_project("exits")
    project.keep(name)
    result = project.run("-n0", "--case-timeout=1")
    compare(result, expected(project, "batch"))


def test_an_end_that_several_cases_break(make_project: MakeProject) -> None:
    """If several cases break the end of a shared process, each of them is found."""
    project = make_project("exits")
    project.keep(*{*EXITS} - {"test_atexit_hangs.py", "test_thread_stays.py"})
    result = project.run("-n0")
    compare(result, expected(project, "batch"))
