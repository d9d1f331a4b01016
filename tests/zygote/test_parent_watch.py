"""The line that names a stopped pytest process, on the standard error of that process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.core import linux
from harness.zygote.processes import PAUSE, EventLoop, ParentWatch

_WAITS = [sys.executable, "-c", "input()"]


class Process:
    """A process with a file as its standard error, and a watch that looks at it on a clock of the test."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "stderr.txt"
        with self._file.open("w") as file:
            self.child = subprocess.Popen(_WAITS, stdin=subprocess.PIPE, stderr=file)
        self.now = 0.0
        self.loop = EventLoop(lambda: self.now)
        ParentWatch(self.loop, self.child.pid)

    def look(self, times: int) -> str:
        """Look a number of times. Return what the process's standard error has."""
        for _ in range(times):
            self.now += PAUSE
            self.loop.turn()
        return self._file.read_text()

    def stop(self) -> None:
        """Stop the process, and wait until it is stopped."""
        self.child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.child.pid, os.WSTOPPED)

    def close(self) -> None:
        self.loop.close()
        self.child.kill()
        self.child.communicate()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    started = Process(tmp_path)
    yield started
    started.close()


def test_a_stopped_process_is_named_once(process: Process) -> None:
    assert process.look(9) == ""
    process.stop()
    assert process.look(2) == ""
    said = process.look(3)
    assert said.count("\n") == 2
    assert f"pytest's process {process.child.pid} is stopped" in said
    assert f"kill -CONT {process.child.pid}" in said


def test_a_process_that_continues_is_named_again_if_it_is_stopped_again(process: Process) -> None:
    process.stop()
    process.look(3)
    process.child.send_signal(signal.SIGCONT)
    os.waitid(os.P_PID, process.child.pid, os.WCONTINUED)
    assert process.look(5).count("is stopped") == 1
    process.stop()
    assert process.look(3).count("is stopped") == 2


def test_a_closed_output_and_a_process_that_is_gone_are_no_errors() -> None:
    reader, writer = os.pipe()
    child = subprocess.Popen(_WAITS, stdin=subprocess.PIPE, stderr=writer)
    os.close(reader)
    os.close(writer)
    now = [0.0]
    loop = EventLoop(lambda: now[0])
    ParentWatch(loop, child.pid, is_stopped=lambda _: True)
    for _ in range(4):
        now[0] += PAUSE
        loop.turn()
        child.kill()
        child.communicate()
    loop.close()


@pytest.mark.parametrize(
    ("end", "stopped"),
    [
        ("T 1 7 7 0 -1", True),  # without a terminal
        ("T 1 7 7 34816 7", True),  # in the foreground of its terminal: no shell has taken that back
        ("T 1 7 7 34816 3", False),  # a shell shows "Stopped"
        ("t 1 7 7 0 -1", False),  # a debugger
        ("S 1 7 7 0 -1", False),
    ],
)
def test_when_a_stopped_process_is_shown_by_no_shell(end: str, stopped: bool) -> None:
    assert linux.is_stopped_line(linux.fields_of_stat(f"7 (pytest (x) T) {end} 0 0 0")) is stopped
