"""Programs in disposable processes: how they end, what they leave, and each use with a child that keeps running."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.backends.table import BACKENDS
from harness.core.disposable import DisposableRun, run_disposable
from harness.devices import census, health
from harness.devices.device import CPU
from harness.devices.probe import Question
from harness.devices.prober import Prober
from harness.supervisor.diagnostics import _Collected
from harness.tools import backend_check

#: A program that leaves a child with its stdout and stderr. $PID: the file for the pid of the child.
_LEAVES_A_CHILD = """#!/bin/sh
sleep 1000 &
echo $! > "$PID"
"""


def has_ended(pid: int) -> bool:
    """Return whether a process that is no child of this one ends within a minute."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(descriptor):
        return bool(select.select([descriptor], [], [], 60)[0])


@pytest.mark.parametrize(
    ("script", "limit", "expected"),
    [
        ("echo out; echo err >&2", 60.0, DisposableRun(0, True, 0, b"out\n", b"err\n")),
        ("exit 3", 60.0, DisposableRun(3, True, 0)),
        ("kill -SEGV $$", 60.0, DisposableRun(-signal.SIGSEGV, True, 0)),
        ("echo begun; sleep 1000", 0.5, DisposableRun(-signal.SIGKILL, False, 0, b"begun\n")),
    ],
    ids=["ends", "fails", "crashes", "hangs"],
)
def test_how_a_program_ends(script: str, limit: float, expected: DisposableRun) -> None:
    run = run_disposable(["sh", "-c", script], limit)
    assert (run.status, run.in_time) == (expected.status, expected.in_time)
    assert (run.output, run.errors) == (expected.output, expected.errors)


def test_a_program_that_does_not_exist_raises() -> None:
    with pytest.raises(FileNotFoundError):
        run_disposable(["/no/such/program"], 1.0)


def test_the_ladder_gives_time_to_clean_up() -> None:
    """SIGTERM first. The program is deaf until its trap is set, so it sends the signal to itself."""
    script = "trap 'echo clean; exit 7' TERM; sleep 1000 & kill -STOP $$; wait"
    run = run_disposable(["sh", "-c", script], 0.5, ladder=((signal.SIGCONT, 0.1), (signal.SIGTERM, 60.0)))
    assert (run.status, run.in_time, run.output) == (7, False, b"clean\n")


def test_a_program_that_survives_the_ladder_has_no_status() -> None:
    # No test can make a process that survives SIGKILL, so the ladder here is without it.
    script = "trap '' TERM; echo $$; while :; do sleep 0.1; done"
    run = run_disposable(["sh", "-c", script], 0.5, ladder=((signal.SIGTERM, 0.2),))
    assert (run.status, run.in_time) == (None, False)
    os.kill(int(run.output), signal.SIGKILL)
    os.waitpid(int(run.output), 0)


def test_output_may_go_to_a_file_and_much_of_it_is_cut(tmp_path: Path) -> None:
    with (tmp_path / "both").open("wb") as file:
        run = run_disposable(["sh", "-c", "echo out; echo err >&2"], 60.0, both_into=file)
    assert (run.output, run.errors, (tmp_path / "both").read_bytes()) == (b"", b"", b"out\nerr\n")
    long = run_disposable([sys.executable, "-S", "-c", "print('x' * 100_000 + 'y')"], 60.0)
    assert (len(long.output), long.output[-2:]) == (1 << 16, b"y\n")


def test_the_last_line_of_the_errors() -> None:
    assert DisposableRun(1, True, 0.0, errors=b"Traceback\n\xff wrong\n \n").last_error == "\\xff wrong"
    assert DisposableRun(1, True, 0.0).last_error == ""


def _the_probe() -> None:
    finding = {"value": True, "detail": "it has it"}
    answer = json.dumps(dict.fromkeys(Question.DRIVER.capabilities, finding))
    program = [os.environ["PROGRAM"], answer]
    found = Prober(CPU, driver=None, program=program, limit=60.0).ask(Question.DRIVER)
    assert {each.value for each in found.values()} == {True}


def _the_census() -> None:
    assert census._ask(BACKENDS["cpu"], os.environ, limit=60.0)["devices"] == []


def _the_examination() -> None:
    found = health.check_device(CPU)
    assert (found.healthy, found.text) == (True, "computes and copies correctly")


def _the_check_of_a_backend() -> None:
    assert backend_check._start(BACKENDS["cpu"], os.environ, "crash") == (0, "")


def _the_diagnostics() -> None:
    collected = _Collected(Path(os.environ["PID"]).parent / "diagnostics")
    collected.program("nvidia-smi", [os.environ["PROGRAM"]], 60.0, "output.txt")
    assert (collected.missing, collected.files) == ([], ["output.txt"])


@pytest.mark.parametrize(
    ("use", "answer"),
    [
        (_the_probe, 'echo "$1"'),
        (_the_census, """echo '{"devices": []}' > "$4" """),
        (_the_examination, """echo '{"healthy": true}'"""),
        (_the_check_of_a_backend, "true"),
        (_the_diagnostics, "echo answer"),
    ],
    ids=["probe", "census", "examination", "backend check", "diagnostics"],
)
def test_a_child_that_keeps_the_output_open_delays_no_answer_and_ends(
    use: Callable[[], None], answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, pid = tmp_path / "program", tmp_path / "pid"
    program.write_text(f"{_LEAVES_A_CHILD}{answer}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PID", str(pid))
    monkeypatch.setenv("PROGRAM", str(program))
    monkeypatch.setattr(sys, "executable", str(program))
    use()
    assert has_ended(int(pid.read_text()))
