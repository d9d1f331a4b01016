"""A warm process behaves like a cold one."""

from __future__ import annotations

import json
import os
import re
import secrets
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.project import Project, Result
from tests.warm import client, spares
from tests.warm.launch import MARK, Launch, can_be_warm, early

_TELLS = """
import json, os, resource, signal, sys

print(json.dumps({
    "argv": sys.argv[1:],
    "orig_argv": sys.orig_argv,
    "path": sys.path,
    "folder": os.getcwd(),
    "environment": sorted(item for item in os.environ.items() if item[0] != "ACCEPTANCE_RUN"),
    "files": sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1],
    "leads": [os.getpid() == os.getsid(0), os.getpid() == os.getpgid(0)],
    "signals": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "limits": [resource.getrlimit(getattr(resource, name)) for name in dir(resource) if name.startswith("RLIMIT_")],
    "flags": str(sys.flags),
    "main": [sys.modules["__main__"].__name__, __name__],
    "terminals": [file.isatty() for file in (sys.stdin, sys.stdout, sys.stderr)],
    "torch": "torch" in sys.modules,
}))
print("said", file=sys.stderr)
raise SystemExit(7)
"""
_SUITE = """
import os, signal, sys, warnings

import pytest

def test_passes():
    assert "torch" not in sys.modules

def test_fails():
    assert [1, 2] == [1, 3]

def test_crashes():
    os.kill(os.getpid(), signal.SIGSEGV)

def test_aborts():
    os.abort()

def test_ends():
    os._exit(3)

def test_warns():
    warnings.warn("told", UserWarning)

def test_leaves_a_variable():
    os.environ["LEFT"] = "behind"

@pytest.mark.timeout(0.5)
def test_hangs():
    signal.pause()

@pytest.fixture
def broken():
    raise ValueError("broken")

def test_error(broken):
    pass
"""


@pytest.fixture(autouse=True)
def _warm() -> None:
    """Use up the first process with an environment, which is cold. None of the processes here is the first."""
    client.SERVERS.find(os.environ)


def _reported(folder: Path, *, cold: bool) -> tuple[int, Any, str]:
    """Return the exit status, the script's report, and the rest of the output."""
    (folder / "tells.py").write_text(_TELLS)
    with (folder / "out").open("wb") as output:
        environment = {**os.environ, "OWN": "value", MARK: secrets.token_hex(8)}
        process = client.start(["-m", "tells", "one", "two"], folder, environment, output, cold=cold)
        assert isinstance(process, client.WarmProcess) is not cold
        status = process.wait(60)
    reported = (folder / "out").read_text().splitlines()
    (line,) = [line for line in reported if line.startswith("{")]
    return status, json.loads(line), "\n".join(text for text in reported if text != line)


def test_a_warm_process_has_all_that_a_cold_one_has(tmp_path: Path) -> None:
    cold, warm = (_reported(tmp_path, cold=cold) for cold in (True, False))
    assert warm == cold
    assert cold[0] == 7


#: Records the properties of each process of a run after it has read its command line.
_CONFTEST = """
import json, os, pathlib, signal, sys

def pytest_configure(config):
    kind = "zygote" if "harness.zygote" in sys.orig_argv else os.environ.get("PYTEST_XDIST_WORKER", "controller")
    # The last: a library that pytest imports sets it, for programs alone.
    theirs = ("ACCEPTANCE_RUN", "RUN", "PYTEST_XDIST_TESTRUNUID", "LINES")
    facts = {
        "orig_argv": [word for word in sys.orig_argv if not word.isdigit() and "results-dir" not in word],
        "path": sys.path,
        "folder": os.getcwd(),
        "environment": sorted(item for item in os.environ.items() if item[0] not in theirs),
        "leads": [os.getpid() == os.getsid(0), os.getpid() == os.getpgid(0)],
        "signals": [str(signal.getsignal(number)).partition(" at ")[0] for number in sorted(signal.valid_signals())],
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "plugins": sorted(name for name, _ in config.pluginmanager.list_name_plugin() if not name.isdigit()),
        "torch": "torch" in sys.modules,
    }
    pathlib.Path(os.environ["PROBE_DIR"], f"{os.environ['RUN']}-{kind}").write_text(json.dumps(facts))
"""


@pytest.mark.nightly
@pytest.mark.ways("spread", ["-n0", "-n2"])
def test_each_process_of_a_run_is_what_it_is_in_a_cold_one(tmp_path: Path, spread: str) -> None:
    project = Project(tmp_path / "project")
    project.write("suites/a/test_a.py", "def test_a(): pass\n")
    project.write("conftest.py", _CONFTEST)
    for run, cold in (("cold", True), ("warm", False)):
        assert _run(project, spread, "--seed=1", cold=cold, env={"RUN": run}).status == 0
    kinds = {"controller", "zygote", *(["gw0", "gw1"] if spread == "-n2" else [])}
    for kind in kinds:
        warm, cold = (json.loads(project.probe(f"{run}-{kind}")[0]) for run in ("warm", "cold"))
        assert warm == cold, kind
        assert not warm["torch"]
    assert {*project.probe_names()} == {f"{run}-{kind}" for run in ("warm", "cold") for kind in kinds}


def _run(project: Project, *arguments: str, cold: bool, **more: Any) -> Result:
    """Run, and check that the processes were warm or cold as requested."""
    running = project.start(*arguments, cold=cold, **more)
    assert isinstance(running.process, client.WarmProcess) is not cold
    return running.result()


def _shown(project: Project, result: Result) -> list[str]:
    """Return a run's output without stacks, and without the parts that differ between any two runs."""
    text = result.terminal.replace(result.run_dir.name, "RUN").replace(str(project.folder), "PROJECT")
    for pattern, by in (
        (r"\d+\.\d+ ?s", "N s"),
        (r"=+( [^=]+ )=+", r"=\1="),  # the width depends on the time
        (r"0x[0-9a-f]+", "ADDRESS"),
        (r"\b(pid|process|thread) \d+", r"\1 N"),
    ):
        text = re.sub(pattern, by, text)
    # A warm process has the server's frames below pytest's, so its stacks are not shortened.
    return [line for line in text.splitlines() if not line.startswith(("  File ", "  [… "))]


def _journal(result: Result) -> list[tuple[object, ...]]:
    """Return the journal's entries about the verdicts."""
    names = ("event", "case", "attempt", "alone", "outcome", "final", "exit_status", "reason", "state")
    return [tuple(line.get(name) for name in names) for line in result.lines if line["event"] != "activity"]


@pytest.mark.ways("isolation", ["batch", "case", "none"])
def test_a_run_comes_to_the_same(tmp_path: Path, isolation: str) -> None:
    """Without workers the order of all lines is the same: outcomes, exit status, output, journal."""
    project = Project(tmp_path / "project")
    suite = _SUITE if isolation != "none" else _SUITE.partition("def test_crashes")[0]
    project.write("suites/all/test_all.py", suite)
    arguments = ("-n0", "--seed=1", f"--isolation={isolation}", "-p", "no:cacheprovider")
    cold, warm = (_run(project, *arguments, cold=cold) for cold in (True, False))
    assert warm.status == cold.status
    assert warm.verdicts == cold.verdicts
    assert _shown(project, warm) == _shown(project, cold)
    assert _journal(warm) == _journal(cold)


@pytest.mark.nightly
def test_a_run_with_workers_comes_to_the_same(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    project.write("suites/all/test_all.py", _SUITE)
    cold, warm = (_run(project, "-n2", "--seed=1", "-v", cold=cold) for cold in (True, False))
    assert warm.status == cold.status
    assert warm.verdicts == cold.verdicts
    assert warm.counts == cold.counts


def test_a_mistake_on_the_command_line_is_reported_alike(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    cold, warm = (_run(project, "--no-such-option", results_dir=False, cold=cold) for cold in (True, False))
    assert (warm.status, warm.terminal) == (cold.status, cold.terminal)
    assert cold.status == 4


def test_a_process_that_was_killed_has_the_signal_as_status(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    project.write("suites/a/test_a.py", "import signal\ndef test_waits(): signal.pause()\n")
    running = project.start("-n0")
    running.started("test_waits")
    assert running.process.poll() is None
    running.process.kill()
    assert running.process.wait(60) == running.process.returncode == -signal.SIGKILL
    running.kill_all()


def test_a_server_ends_with_its_starter() -> None:
    script = "from tests.warm import client; print(client.Server({}).pid)"
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, cwd=client.ROOT, capture_output=True, text=True, check=True, timeout=60)
    try:
        end = os.pidfd_open(int(done.stdout))
    except ProcessLookupError:
        return
    assert select.select([end], [], [], 60)[0]
    os.close(end)


@pytest.mark.parametrize(
    ("arguments", "possible"),
    [
        (("-m", "pytest", "suites"), True),
        (("-m", "harness.zygote", "7"), True),
        (("-u", "-c", "code"), True),
        (("-c", "code"), False),
        (("-X", "importtime", "-m", "pytest"), False),
        (("script.py",), False),
    ],
)
def test_what_can_be_warm(arguments: tuple[str, ...], possible: bool) -> None:
    assert can_be_warm(arguments) is possible


def test_variables_that_only_a_new_process_reads() -> None:
    early_ones = {"PYTHONPATH": "/a", "LD_LIBRARY_PATH": "/b", "LC_ALL": "C", "MALLOC_ARENA_MAX": "1"}
    assert early({**early_ones, "HOME": "/x", "TMPDIR": "/y", "COLUMNS": "80"}) == early_ones


def test_a_server_is_started_for_an_environment_that_comes_again() -> None:
    servers = client._Servers()
    environment = dict(os.environ)
    try:
        assert servers.find(environment) is None
        assert servers.find({**environment, "PYTHONPATH": "/other"}) is None
        found = servers.find({**environment, "HOME": "/elsewhere"})
        assert found is not None
        assert servers.find(environment) is found
        assert servers.all() == [found]
    finally:
        servers.close()


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (("-m", "pytest", "suites", "-n0"), 1),
        (("-m", "pytest", "suites"), 1),
        (("-m", "pytest", "suites", "-n2"), 3),
        (("-m", "pytest", "--numprocesses=3"), 4),
        (("-m", "pytest", "-n", "auto"), 9),
        (("-m", "pytest", "-n2", "--isolation=none"), 2),
        (("-m", "pytest", "-n0", "--collect-only"), 0),
        (("-m", "pytest", "-p", "no:harness", "-n2"), 2),
        (("-m", "harness", "cluster", "run", "--engine=local", "--nodes=3", "--", "suites", "-n1"), 3),
        (("-m", "harness", "cluster", "run", "--engine=slurm", "--nodes=3", "--", "suites"), 0),
        (("-m", "harness.tools.cluster.agent"), 1),
        (("-m", "harness", "bisect", "run", "suites/a.py::test_b"), 12),
        (("-m", "harness", "report", "run"), 0),
    ],
)
def test_how_many_processes_a_run_starts(arguments: tuple[str, ...], count: int) -> None:
    assert spares.needed(arguments) == count


def test_variables_before_a_command_are_those_of_the_process() -> None:
    variables = {"A": "1", "B": "1"}
    assert spares.without_env(["env", "B=2", "C=3=4", "python", "D=5"], variables) == ["python", "D=5"]
    assert variables == {"A": "1", "B": "2", "C": "3=4"}
    assert spares.without_env(["python", "env", "A=2"], variables) == ["python", "env", "A=2"]
    assert variables["A"] == "1"


def test_a_launch_survives_its_way() -> None:
    launch = Launch(("-m", "pytest"), "/", {"A": "ä\udc80"}, (0, 7), session=True, blocked=(2,), ignored=(1, 15))
    assert Launch.from_json(launch.to_json()) == launch
