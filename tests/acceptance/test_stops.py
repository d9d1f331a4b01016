"""A run that gets a stop signal: running cases get their grace, everything is reported, and no process remains."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.reporting.junit import FILE_NAME
from tests.acceptance.conftest import MakeProject
from tests.acceptance.expected import check_journal, compare_junit
from tests.acceptance.project import PATIENCE, Project, Result, Running, interrupt, journal_lines
from tests.acceptance.rules import report

WAITS = "::test_waits"
SPREADS = pytest.mark.ways("spread", ["-n0", "-n2"])
SIGNALS = pytest.mark.ways("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])

Start = Callable[..., Running]

#: A case whose end the test controls, and one that ignores SIGTERM.
STUBBORN = """
import os, pathlib, signal, time
def test_before(): pass
def test_waits():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (pathlib.Path(os.environ["PROBE_DIR"]) / f"waits-{os.getpid()}").touch()
    while True:
        time.sleep(60)
def test_after(): pass
"""
SLOW_TO_COLLECT = """
import os, pathlib, sys, time
probe = pathlib.Path(os.environ["PROBE_DIR"])
(probe / f"collects-{os.getpid()}").touch()
while not (probe / "go").exists():
    time.sleep(0.01)
def test_it(): pass
"""


@pytest.fixture
def project(make_project: MakeProject) -> Project:
    project = make_project("waiting")
    (project.folder / "probe").mkdir()
    return project


@pytest.fixture
def start(project: Project) -> Iterator[Start]:
    """Start a run, and return once its waiting case waits."""
    begun: list[Running] = []

    def start(*arguments: str) -> Running:
        running = project.start(*arguments)
        begun.append(running)
        pid = running.started(WAITS).get("pid", "")  # without isolation the journal has none
        running.wait_for(
            lambda: any(name.startswith(f"waits-{pid}") for name in project.probe_names()), f"{WAITS} to wait"
        )
        return running

    yield start
    for running in begun:
        running.kill_all()


def to_group(running: Running, number: signal.Signals) -> None:
    """Send the signal to each process of the run's group, as a terminal, ``timeout`` or a batch system does."""
    os.killpg(running.process.pid, number)


def check_stopped(result: Result, by: signal.Signals, waits: str = "not_run") -> dict[str, str]:
    """Check the properties of any stopped run, and return its verdicts."""
    assert result.status == 2, result.tail()
    assert "INTERNALERROR" not in result.terminal
    assert "crashed worker" not in result.terminal
    assert "crashed while" not in result.terminal
    check_journal(result)
    assert not result.ledger.findings
    verdicts = result.verdicts
    for case, outcome in verdicts.items():
        assert outcome == waits if case.endswith(WAITS) else outcome in ("passed", "not_run"), case
    stopped, end = result.lines[-2:]
    assert (stopped["event"], stopped["by"]) == ("stopped", by.name)
    assert (end["event"], end["exit_status"]) == ("end", 2)
    assert "cases: " in result.terminal
    hint = f"    to run the rest, repeat the command with --resume {result.run_dir}\n"
    assert (hint in result.terminal) is ("not_run" in verdicts.values())
    compare_junit(result, {case: (outcome, "") for case, outcome in verdicts.items()})
    assert not [name for name in os.listdir(result.run_dir.parent / "tmp") if name.startswith("harness-")]
    (result.run_dir / FILE_NAME).unlink()
    assert report(result.run_dir).returncode == 2
    compare_junit(result, {case: (outcome, "") for case, outcome in verdicts.items()})
    return verdicts


def message_of(result: Result, case: str) -> str:
    return next(verdict.message for verdict in result.ledger.verdicts if verdict.case.endswith(case))


@SIGNALS
@SPREADS
def test_what_is_not_over_after_the_grace_is_ended_and_not_run(
    start: Start, spread: str, number: signal.Signals
) -> None:
    running = start(spread, "--grace=0.2")
    running.process.send_signal(number)
    result = running.result()
    verdicts = check_stopped(result, number)
    assert message_of(result, WAITS) == f"stopped by {number.name} after 0.2 s of grace (in call)"
    if spread == "-n0":
        assert list(verdicts.values()) == ["passed", "passed", *["not_run"] * 5]
        assert (
            message_of(result, "::test_after[3]")
            == f"the run was stopped by {number.name}, and the journal has no start of this case"
        )


@SIGNALS
@SPREADS
def test_a_signal_to_the_whole_group_is_the_controllers(start: Start, spread: str, number: signal.Signals) -> None:
    running = start(spread, "--grace=0.2")
    to_group(running, number)
    check_stopped(running.result(), number)


@SPREADS
def test_sigterm_to_all_processes_is_a_stop_and_no_crash(project: Project, start: Start, spread: str) -> None:
    """scancel, a time limit of a batch job, systemd and an evicted pod send it to each process, executors included."""
    running = start(spread, "--grace=600")
    for process in sorted(running.processes(), key=lambda each: each.pid != running.process.pid):
        process.terminate()
    result = running.result()
    check_stopped(result, signal.SIGTERM)
    assert message_of(result, WAITS) == "stopped by SIGTERM (in call)"
    (project.folder / "probe" / "go").touch()
    resumed = project.run(spread, f"--resume={result.run_dir.name}", results_dir=False)
    assert {
        line["outcome"] for line in journal_lines(result.run_dir) if line["event"] == "finish" and line["final"]
    } == {
        "passed",
        "not_run",
    }
    assert resumed.status == 0, resumed.tail()


@SPREADS
def test_what_ends_within_the_grace_has_its_verdict(project: Project, start: Start, spread: str) -> None:
    running = start(spread, "--grace=600")
    running.process.send_signal(signal.SIGTERM)
    running.wait_for(lambda: any(stop_requests(project)), "the request")
    (project.folder / "probe" / "go").touch()
    verdicts = check_stopped(running.result(), signal.SIGTERM, waits="passed")
    if spread == "-n0":
        assert list(verdicts.values()) == ["passed"] * 3 + ["not_run"] * 4


@SPREADS
@pytest.mark.ways("isolation", ["--isolation=case", "--start=cold"])
def test_in_other_modes(start: Start, spread: str, isolation: str) -> None:
    running = start(spread, isolation, "--grace=0")
    interrupt(running)
    result = running.result()
    check_stopped(result, signal.SIGINT)
    # There is no phase if the signal came between two cases, while pytest reported the previous one.
    assert message_of(result, WAITS) in ("stopped by SIGINT, without grace (in call)", "stopped by SIGINT")


@SPREADS
def test_a_second_signal_is_handling_at_once(project: Project, start: Start, spread: str) -> None:
    """This also holds for a case that ignores SIGTERM."""
    project.write("suites/waiting/test_waiting.py", STUBBORN)
    running = start(spread, "--grace=100000")
    interrupt(running)
    running.wait_for(lambda: any(stop_requests(project)), "the first request")
    said = "harness: SIGINT: no further case begins, and the cases that run have 100000 s to end; a second signal ends"
    resume = f"To resume: repeat the command with --resume {running.run_dir}\n"
    running.wait_for(lambda: said in running.terminal() and resume in running.terminal(), "what the signal does")
    assert "cases done" not in running.terminal(), "the line waits in a buffer for the next sign of life"
    interrupt(running)
    result = running.result()
    check_stopped(result, signal.SIGINT)
    assert result.terminal.count(said) == 1
    assert message_of(result, WAITS) == "stopped by SIGINT, without grace (in call)"


def stop_requests(project: Project) -> list[Path]:
    """Return the files left for workers that start later, which are written once all others got the request."""
    return list(project.temp.glob("harness-*/stop/request.json"))


@pytest.mark.nightly
@SPREADS
def test_an_impatient_user_leaves_nothing_behind(start: Start, spread: str) -> None:
    running = start(spread)
    for _ in range(4):
        interrupt(running)
    result = running.result()
    assert result.status == 2, result.tail()
    check_journal(result)
    compare_junit(result, {case: (outcome, "") for case, outcome in result.verdicts.items()})


@SPREADS
@pytest.mark.parametrize("start", ["fork", "cold"])
def test_while_cases_are_collected(project: Project, spread: str, start: str) -> None:
    """Nothing runs, and nothing is waited for. With cold executors each worker collects, otherwise only the zygote."""
    project.write("suites/a/test_slow.py", SLOW_TO_COLLECT)
    project.write("suites/b/test_more.py", "def test_more(): pass\n")
    running = project.start(spread, f"--start={start}")
    try:
        collecting = 2 if start == "cold" and spread == "-n2" else 1
        running.wait_for(
            lambda: sum(name.startswith("collects-") for name in project.probe_names()) == collecting, "collecting"
        )
        to_group(running, signal.SIGTERM)
        running.wait_for(lambda: bool(stop_requests(project)), "the request") if spread == "-n2" else None
        (project.folder / "probe" / "go").touch()
        result = running.result()
    finally:
        running.kill_all()
    assert result.status == 2, result.tail()
    assert "crashed worker" not in result.terminal
    assert "crashed while" not in result.terminal
    assert [line["event"] for line in result.lines] == ["run", "stopped", "end"]
    assert (result.run_dir / FILE_NAME).exists()


#: Two workers stop at different files.
PARTS = """
import os, pathlib, time

def pytest_collectstart(collector):
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    probe = pathlib.Path(os.environ["PROBE_DIR"])
    if collector.name == {"gw0": "test_1.py", "gw1": "test_3.py"}.get(worker):
        (probe / f"collects-{worker}").touch()
        while not (probe / "go").exists():
            time.sleep(0.01)
"""


def test_workers_that_have_collected_different_parts(project: Project) -> None:
    """A stop then is no difference between collections: xdist would list it, for each case."""
    project.write("suites/parts/conftest.py", PARTS)
    for number in range(5):
        project.write(f"suites/parts/test_{number}.py", "def test_it(): pass\n")
    running = project.start("-n2")
    try:
        running.wait_for(lambda: {"collects-gw0", "collects-gw1"} <= {*project.probe_names()}, "both to collect")
        running.process.send_signal(signal.SIGINT)
        running.wait_for(lambda: bool(stop_requests(project)), "the request")
        (project.folder / "probe" / "go").touch()
        result = running.result()
    finally:
        running.kill_all()
    assert result.status == 2, result.tail()
    assert "Different tests" not in result.terminal
    assert not result.ledger.findings
    assert [line["event"] for line in result.lines] == ["run", "stopped", "end"]


def test_while_the_zygote_collects(project: Project) -> None:
    """The supervisor waits for the zygote, and the signal ends the wait."""
    project.write("suites/waiting/conftest.py", ZYGOTE_WAITS)
    running = project.start("-n0", "--grace=600")
    try:
        running.wait_for(lambda: "zygote" in project.probe_names(), "the zygote to collect")
        running.process.send_signal(signal.SIGTERM)
        result = running.result()
    finally:
        running.kill_all()
    assert result.status == 2, result.tail()
    assert [line["event"] for line in result.lines] == ["run", "stopped", "end"]
    assert "terminated" in project.probe_names(), "the zygote was waited for, and then killed"


ZYGOTE_WAITS = """
import os, pathlib, signal, sys
if "harness.zygote" in " ".join(sys.orig_argv):
    probe = pathlib.Path(os.environ["PROBE_DIR"])
    signal.signal(signal.SIGTERM, lambda *_: ((probe / "terminated").touch(), os._exit(1)))
    (probe / "zygote").touch()
    while True:
        signal.pause()
"""


@SPREADS
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_without_isolation_the_report_is_written_all_the_same(
    start: Start, spread: str, number: signal.Signals
) -> None:
    running = start(spread, "--isolation=none")
    running.process.send_signal(number)
    result = running.result()
    assert result.status == 2, result.tail()
    assert (result.run_dir / FILE_NAME).exists()
    outcome = next(outcome for case, outcome in result.verdicts.items() if case.endswith(WAITS))
    assert outcome == "not_run" if spread == "-n0" else outcome in ("not_run", "lost")


@pytest.mark.nightly
@SPREADS
def test_a_crash_that_could_not_be_confirmed_stays_a_crash(project: Project, start: Start, spread: str) -> None:
    """The running case dies after other cases: it is not run again, and it is not declared innocent."""
    running = start(spread, "--grace=600")
    line = running.started(WAITS)
    running.process.send_signal(signal.SIGTERM)
    running.wait_for(lambda: bool(stop_requests(project)), "the request")
    os.kill(line["pid"], signal.SIGKILL)
    result = running.result()
    check_stopped(result, signal.SIGTERM, waits="crashed")
    if not line["alone"]:
        (verdict,) = (verdict for verdict in result.ledger.verdicts if verdict.case.endswith(WAITS))
        assert verdict.decided is not None
        assert "not run again alone: stopped by SIGTERM" in verdict.decided.notes


@SPREADS
def test_a_terminal_that_goes_away(project: Project, spread: str) -> None:
    """pytest's output has nowhere to go, and the report is written."""
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # these tests may run under nohup
        os.chdir(project.folder)
        os.environ |= {"PROBE_DIR": str(project.folder / "probe"), "TMPDIR": str(project.temp)}
        os.execv(sys.executable, [sys.executable, "-m", "pytest", "suites", spread, "--grace=0", "--results-dir=run"])
    try:
        deadline = time.monotonic() + PATIENCE
        while not any(name.startswith("waits-") for name in os.listdir(project.folder / "probe")):
            assert time.monotonic() < deadline
            if select.select([terminal], [], [], 0.1)[0]:
                os.read(terminal, 4096)
    finally:
        os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2
    run_dir = project.folder / "run"
    assert (run_dir / FILE_NAME).exists()
    assert [(line["event"], line.get("by")) for line in journal_lines(run_dir)][-2:] == [
        ("stopped", "SIGHUP"),
        ("end", None),
    ]


def test_what_the_user_has_ignored_stays_ignored(project: Project) -> None:
    """With ``nohup pytest``, a terminal that closes does not end the run."""
    command = ["nohup", sys.executable, "-m", "pytest", "suites", "-n0", "--results-dir=nohup"]
    environment = {**os.environ, "PROBE_DIR": str(project.folder / "probe"), "TMPDIR": str(project.temp)}
    output = project.folder / "output"
    with output.open("wb") as file:
        process = subprocess.Popen(command, cwd=project.folder, env=environment, stdout=file, stderr=file)
    running = Running(process, output, project.folder / "nohup", "")
    running.started(WAITS)
    process.send_signal(signal.SIGHUP)
    (project.folder / "probe" / "go").touch()
    assert process.wait(600) == 0, output.read_text()
