"""Each fixture suite in each isolation mode, without xdist and with two workers: the whole summary is compared."""

from __future__ import annotations

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.project import journal_lines
from tests.acceptance.rules import waive

_SERIAL = """
import pytest

@pytest.mark.parametrize("number", [0, pytest.param(1, marks=pytest.mark.serial), 2, 3])
def test_one(number): pass
"""


def test_a_serial_case_ends_no_executor_on_the_cpu(make_project: MakeProject) -> None:
    """Nothing is leased on the CPU, so an executor of its own would not help the case."""
    project = make_project()
    for name in "ab":
        project.write(f"suites/test_{name}.py", _SERIAL)
    result = project.run("-n2", "--dist=loadfile")
    assert result.status == 0, result.tail()
    lines = journal_lines(result.run_dir)
    started = [line["executor"] for line in lines if line["event"] == "executor" and line["state"] == "started"]
    assert sorted(started) == ["gw0-e1", "gw1-e1"]


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


_FINALISED = """
import os
import pytest

class Witness:
    # Makes a file when the interpreter drops this module, which was imported before the fork.
    file = ""
    def __del__(self, open=os.open, how=os.O_CREAT | os.O_WRONLY):
        if self.file:
            open(self.file, how)

WITNESS = Witness()

@pytest.fixture
def witness(request):
    WITNESS.file = str(request.config.rootpath / request.node.name)
"""

_ENDS = """
import pytest

@pytest.mark.own_process
def test_own(witness): pass

@pytest.mark.own_process
def test_waived(witness): pass

def test_shared(witness): pass
"""


def test_a_case_alone_takes_the_short_exit_unless_it_may_break(make_project: MakeProject) -> None:
    """Only the whole finalisation drops what was there before the fork."""
    project = make_project()
    project.write("suites/conftest.py", _FINALISED)
    project.write("suites/test_ends.py", _ENDS)
    waive(project, case="*::test_waived", expect=["crashed", "passed"])
    result = project.run("-n0", "--waivers=known", "--device=cpu")
    assert result.status == 0, result.tail()
    assert sorted(path.name for path in project.folder.glob("test_*")) == ["test_shared", "test_waived"]
