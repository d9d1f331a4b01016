"""A conformance project whose cluster runs are started as a user does, and observed while they run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from harness.journal import journal, reader
from harness.journal.ledger import Ledger
from tests.reporting import build
from tests.warm import client

#: Seconds after which a wait fails: far more than any needs.
PATIENCE = 300.0

_INI = """\
[pytest]
addopts = -p no:hypothesispytest -p no:cacheprovider
harness_suites = suites
harness_preload =
strict_markers = true
"""

SLOW = """
import time
import pytest

@pytest.mark.parametrize("number", range({cases}))
def test_it(number):
    time.sleep({seconds})
"""


class Project:
    """A folder with suites."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.write("pytest.ini", _INI)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def start(
        self,
        *options: str,
        arguments: tuple[str, ...] = ("suites", "-n1", "--leak-check=off"),
        name: str = "run",
        environ: Mapping[str, str] | None = None,
    ) -> Running:
        """Start ``harness cluster run OPTIONS --results-dir NAME -- ARGUMENTS``, or with ``--resume`` in OPTIONS."""
        where = [] if any(word.startswith("--resume") for word in options) else [f"--results-dir={name}"]
        command = ["-m", "harness", "cluster", "run", *options, *where, "--", *arguments]
        output = self.folder / f"{name}.out"
        temp = self.folder / "tmp"
        temp.mkdir(exist_ok=True)
        with output.open("ab") as file:
            variables = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TMPDIR": str(temp), **(environ or {})}
            process = client.start(command, self.folder, variables, file)
        return Running(process, output, self.folder / name)

    def run(self, *options: str, name: str = "run", **more: Any) -> Running:
        """Run `start` to its end."""
        running = self.start(*options, name=name, **more)
        running.wait()
        return running


def of(lines: Sequence[dict[str, Any]], event: str, **fields: Any) -> list[dict[str, Any]]:
    """Return the lines of one kind with these fields."""
    found = [line for line in lines if line["event"] == event]
    return [line for line in found if all(line.get(name) == value for name, value in fields.items())]


class Running:
    """A cluster run."""

    def __init__(self, process: client.Process, output: Path, run_dir: Path) -> None:
        self.process = process
        self.run_dir = run_dir
        self._output = output

    def wait(self) -> int:
        """Wait for the end. Return the exit status."""
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(f"the run does not end:\n{self.output[-6000:]}") from None

    @property
    def output(self) -> str:
        return self._output.read_text(encoding="utf-8", errors="backslashreplace")

    @property
    def lines(self) -> list[dict[str, Any]]:
        """Return the complete lines of the journal so far."""
        try:
            data = (self.run_dir / journal.FILE_NAME).read_bytes()
        except FileNotFoundError:
            return []
        return build.read_lines(data)

    def of(self, event: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the lines of one kind with these fields."""
        return of(self.lines, event, **fields)

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Poll until `condition` holds; fail if the run ends first."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            over = self.process.poll() is not None
            if (over and not condition()) or time.monotonic() > deadline:
                raise AssertionError(f"waited in vain for {what}:\n{self.output[-6000:]}")
            time.sleep(0.02)

    @property
    def ledger(self) -> Ledger:
        return Ledger.from_journal(reader.read_run_journal(self.run_dir / journal.FILE_NAME))

    @property
    def verdicts(self) -> dict[str, str]:
        """Return the outcome of each case, by the part of its id after ``::``."""
        return {verdict.case.rpartition("::")[2]: verdict.outcome.value for verdict in self.ledger.verdicts}

    def agent(self, node: str) -> psutil.Process:
        """Return the process of a node's agent."""
        try:
            return agent_of(self.run_dir, node)
        except ProcessLookupError as error:
            raise AssertionError(f"{error}:\n{self.output[-6000:]}") from None


def agent_of(run_dir: Path, node: str) -> psutil.Process:
    """Return the process of a node's agent, which has started the node's pytest. Raise ProcessLookupError."""
    folder = f"{run_dir}/nodes/{node}/"
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):
            if _output(process.pid).startswith(folder) and not _output(process.ppid()).startswith(folder):
                return psutil.Process(process.ppid())
    raise ProcessLookupError(f"no agent of {node} is at work")


def _output(pid: int) -> str:
    """Return the file to which a process's standard output goes."""
    try:
        return os.readlink(f"/proc/{pid}/fd/1")
    except OSError:  # it has ended
        return ""


def stop(process: psutil.Process) -> None:
    """Stop a process, so that it sends nothing more."""
    process.send_signal(signal.SIGSTOP)


def ran_twice(running: Running) -> list[str]:
    """Return the cases with more than one final end."""
    ends = [line["case"] for line in running.of("finish", final=True)]
    return [case for case in {*ends} if ends.count(case) > 1]
