"""The zygote under shortage of resources, the modules that it imports, and what the programs of its executors leave."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import tempfile
from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import check_journal
from tests.acceptance.project import Project, Result, Running

SPREADS = pytest.mark.ways("spread", ["-n0", "-n2"])
STARTS = pytest.mark.ways("start", ["fork", "cold"])

#: Makes the first forks of a zygote fail, and shortens the supervisors' limits.
NO_ROOM = """\
import errno, os, pathlib, sys

import harness.zygote.client

harness.zygote.client.FORK_PATIENCE = {patience}
main = sys.modules["__main__"].__spec__
if main is not None and main.name == "harness.zygote.__main__":
    really_fork = os.fork

    def fork():
        tries = pathlib.Path(os.environ["PROBE_DIR"], "forks")
        with tries.open("a") as file:
            file.write("tried\\n")
        if len(tries.read_text().splitlines()) <= {failures}:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return really_fork()

    os.fork = fork
"""
PLAIN = """\
import pytest

@pytest.mark.parametrize("number", range(4))
def test_plain(number):
    pass
"""


def _lines(result: Result, event: str) -> list[dict[str, Any]]:
    return [line for line in result.lines if line["event"] == event]


@pytest.mark.parametrize(
    ("cases", "entry", "imported"),
    [
        (9, "heavy", False),
        (10, "heavy", True),
        (10, "suites/plain:heavy", True),
        (10, "suites/pla:heavy", False),
        (9, "suites/plain:heavy", False),
    ],
)
def test_modules_are_imported_for_all_executors_where_there_are_many_cases(
    make_project: MakeProject, cases: int, entry: str, imported: bool
) -> None:
    """Importing `torch._inductor` takes as long as importing torch: a run of one case does not wait for it."""
    project = make_project()
    project.write("heavy.py", "import os\nzygote = int(str(os.getpid()))\n")
    text = (
        "import os, sys\nimport pytest\n\n"
        f"@pytest.mark.parametrize('number', range({cases}))\ndef test_a(number):\n"
        "    heavy = sys.modules.get('heavy')\n"
        f"    assert (heavy is not None) == {imported}\n    assert heavy is None or heavy.zygote == os.getppid()\n"
    )
    project.write("suites/plain/test_plain.py", text)
    if ":" in entry:
        project.write("suites/other/test_other.py", "def test_b(): pass\n")  # ten cases in total, not in the folder
    result = project.run("-n0", "-opythonpath=.", f"-oharness_preload_many={entry}")
    assert result.status == 0, result.tail()
    assert set(result.verdicts.values()) == {"passed"}


@SPREADS
@pytest.mark.parametrize("ini", ["harness_preload", "harness_preload_many"])
def test_a_module_that_cannot_be_imported_is_named(make_project: MakeProject, spread: str, ini: str) -> None:
    project = make_project()
    project.write("suites/plain/test_plain.py", PLAIN.replace("4", "10"))
    result = project.run(spread, f"-o{ini}=no_such_module")
    assert result.status != 0
    if ini == "harness_preload":
        assert result.status == 4
        assert "harness_preload needs no_such_module, and no_such_module is not installed for" in result.terminal
        assert not result.run_dir.exists()
        return
    assert f"{ini} names 'no_such_module'" in result.terminal, result.tail()
    assert "passed" not in result.verdicts.values()


@SPREADS
def test_a_fork_that_fails_for_a_while_is_waited_for(make_project: MakeProject, spread: str) -> None:
    project = make_project()
    project.write("suites/conftest.py", NO_ROOM.format(patience=60.0, failures=5))
    project.write("suites/plain/test_plain.py", PLAIN)
    result = project.run(spread)
    assert result.status == 0, result.tail()
    assert set(result.verdicts.values()) == {"passed"}
    check_journal(result)
    waits = _lines(result, "wait")
    assert waits
    assert all("could not fork for executor" in line["message"] and "EAGAIN" in line["message"] for line in waits)


@SPREADS
def test_a_fork_that_always_fails_ends_the_run(make_project: MakeProject, spread: str) -> None:
    project = make_project()
    project.write("suites/conftest.py", NO_ROOM.format(patience=0.5, failures=1 << 20))
    project.write("suites/plain/test_plain.py", PLAIN)
    result = project.run(spread)
    assert result.status not in (0, 1), result.tail()
    assert "the zygote could not fork for executor" in result.terminal
    assert "EAGAIN" in result.terminal
    assert "ulimit -u" in result.terminal
    assert set(result.verdicts.values()) == {"not_run"}
    assert not (result.run_dir / "zygote-gw0.log").exists(), "another zygote was started, under the same pressure"


@STARTS
def test_a_fork_that_stays_is_called_one(make_project: MakeProject, start: str) -> None:
    project = make_project()
    project.write(
        "suites/plain/test_forks.py",
        """
import os, signal

def test_forks():
    told, tells = os.pipe()
    if os.fork() == 0:
        os.setsid()  # else it is killed with the group of the executor
        os.write(tells, b"!")
        signal.pause()
    os.read(told, 1)

def test_dies():
    test_forks()
    os.kill(os.getpid(), signal.SIGKILL)
""",
    )
    # Cold, since a fork of the case is identified by its command line, which is the zygote's.
    result = project.run("--isolation=case", f"--start={start}", cold=True)
    stays, dies = (result.final(name) for name in ("test_forks", "test_dies"))
    assert stays["outcome"] == "leaked"
    assert stays["message"].startswith("left a child process running: ")
    assert stays["message"].endswith(", a fork of the case")
    assert stays["notes"] == ["killed processes that it left running: a fork of the case"]
    assert dies["outcome"] == "crashed"
    assert dies["notes"] == ["killed processes that it left running: a fork of the case"]


@pytest.mark.nightly
def test_the_helper_that_keeps_torchs_shared_files_is_no_leftover(make_project: MakeProject) -> None:
    """Its socket is in the folder for temporary files, and its path may have at most 107 bytes."""
    project = make_project()
    project.write(
        "suites/plain/test_shares.py",
        """
import torch
import torch.multiprocessing

def test_shares():
    before = torch.multiprocessing.get_sharing_strategy()
    torch.multiprocessing.set_sharing_strategy("file_system")
    torch.zeros(10).share_memory_()
    torch.multiprocessing.set_sharing_strategy(before)
""",
    )
    with tempfile.TemporaryDirectory(prefix="shares-") as temp:
        result = project.run("-n0", env={"TMPDIR": temp})
    assert set(result.verdicts.values()) == {"passed"}, result.tail()
    assert "notes" not in result.final("test_shares")


# Processes that cannot be killed

_PTRACE_SEIZE = 0x4206
_PTRACE_O_TRACEEXIT = 0x40
#: Leaves a child that any process may trace like a debugger, and waits until one does.
LEAVES_A_HELD_CHILD = """
import os, pathlib, subprocess, sys, time

CHILD = '''
import ctypes, signal
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)  # PR_SET_PTRACER, PR_SET_PTRACER_ANY
print(flush=True)
signal.pause()
'''

def test_leaves():
    probe = pathlib.Path(os.environ["PROBE_DIR"])
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE)
    child.stdout.readline()
    (probe / "child.new").write_text(str(child.pid))
    (probe / "child.new").rename(probe / "child")
    while not (probe / "held").exists():
        time.sleep(0.01)
"""
#: Cases of the other worker, which begin while the first worker's child cannot be killed.
OTHERS = """
import os, pathlib, time

import pytest

@pytest.mark.parametrize("number", range(6))
def test_other(number):
    while not (pathlib.Path(os.environ["PROBE_DIR"]) / "held").exists():
        time.sleep(0.01)
    if number == 3:
        os.abort()
"""


@pytest.fixture
def hold() -> Iterator[list[int]]:
    """Collect process ids that are released at the end in any case."""
    held: list[int] = []
    yield held
    for pid in held:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _debugger(pid: int) -> int:
    """Start a process that keeps the process `pid` from ending, as a debugger can, until it ends itself."""
    reported, tells = os.pipe()
    debugger = os.fork()
    if debugger == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        libc.ptrace.restype = ctypes.c_long
        done = libc.ptrace(_PTRACE_SEIZE, pid, None, _PTRACE_O_TRACEEXIT)
        os.write(tells, bytes([0 if done == 0 else ctypes.get_errno()]))
        signal.pause()
        os._exit(0)
    (code,) = os.read(reported, 1)
    os.close(reported)
    os.close(tells)
    if code:
        os.kill(debugger, signal.SIGKILL)
        os.waitpid(debugger, 0)
        pytest.skip(f"no process may be held here: ptrace says {errno.errorcode.get(code, code)}")
    return debugger


@pytest.mark.nightly
def test_a_leftover_that_cannot_be_killed_holds_nobody_up(make_project: MakeProject, hold: list[int]) -> None:
    project = make_project()
    project.write("suites/plain/test_leaves.py", LEAVES_A_HELD_CHILD)
    project.write("suites/plain/test_others.py", OTHERS)
    running = project.start("-n2", "--dist=loadfile", "--isolation=case")
    try:
        pid = _hold_child(project, running, hold)
        running.wait_for(lambda: any(line["event"] == "finding" for line in running.lines()), "the finding")
        (debugger,) = hold
        os.kill(debugger, signal.SIGKILL)
        os.waitpid(hold.pop(), 0)
        result = running.result()
    finally:
        running.kill_all()
    (finding,) = result.ledger.findings
    assert finding.kind == "unkillable"
    assert "left a process that could not be killed: process" in finding.message
    assert f"process {pid} " in finding.message
    assert "state t, held by a debugger" in finding.message
    assert [case.partition("::")[2] for case in finding.cases] == ["test_leaves"]
    assert {case.partition("::")[2]: outcome for case, outcome in result.verdicts.items()} == {
        "test_leaves": "leaked",
        **{f"test_other[{number}]": "crashed" if number == 3 else "passed" for number in range(6)},
    }
    assert result.status == 1
    log = (result.run_dir / "zygote.log").read_text()
    assert f"process {pid} has ended, after it could not be killed" in log


def _hold_child(project: Project, running: Running, hold: list[int]) -> int:
    """Keep the child of the case from ending, and return its process id."""
    running.wait_for(lambda: "child" in project.probe_names(), "the child")
    (pid,) = map(int, project.probe("child"))
    hold.append(_debugger(pid))
    (project.folder / "probe" / "held").touch()
    return pid
