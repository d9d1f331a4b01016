"""A run of the harness in a process of its own whose processes are killed at moments that a seed decides.

A moment is progress of the run, counted in start and finish lines of its journal: the same on a slow machine.
"""

from __future__ import annotations

import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path

import psutil

from harness.reporting import journal
from harness.reporting.events import Executor, Start
from harness.reporting.journal import JournalContents
from harness.reporting.ledger import Ledger

CASES = 500
WORKERS = 2
_FILES = 4
#: Progress from which on processes are killed, and before which: not so late that the run is over meanwhile.
_FIRST_STEP, _LAST_STEP = 10, 800
#: Seconds; a run takes five, and a machine may be busy.
_RUN_LIMIT = 120.0
_DEATH_LIMIT = 30.0
_MARKER = "CHAOS_RUN"
_DONE, _READY = "done", "ready"

_CASES = f"""
import os
import select

import pytest


@pytest.mark.parametrize("number", range({CASES // _FILES}))
def test_waits(number, request):
    reader, writer = os.pipe()
    select.select([reader], [], [], 0.003)
    os.close(reader)
    os.close(writer)
    with open(os.path.join(os.environ["{_MARKER}"], "{_DONE}"), "a") as done:
        print(request.node.nodeid, os.getpid(), file=done)
"""

_CONFTEST = f"""
import os


def pytest_collection_finish(session):
    if hasattr(session.config, "workerinput"):
        with open(os.path.join(os.environ["{_MARKER}"], "{_READY}"), "a") as ready:
            print(os.getpid(), file=ready)
"""


class Victim(StrEnum):
    """The kinds of processes that a run has. A worker is a starting one until it has collected."""

    EXECUTOR = "executor"
    WORKER = "worker"
    STARTING_WORKER = "starting worker"
    ZYGOTE = "zygote"
    CONTROLLER = "controller"


@dataclass(frozen=True, slots=True)
class Kill:
    """One process of a kind is killed once the journal has `after` start and finish lines."""

    after: int
    victim: Victim

    def __str__(self) -> str:
        return f"{self.victim} after step {self.after}"


def plan(seed: int, victims: Sequence[Victim], before: int = _LAST_STEP) -> list[Kill]:
    """One kill for each of `victims`, in this order, at the moments of `seed`."""
    moments = sorted(random.Random(seed).sample(range(_FIRST_STEP, before), len(victims)))
    return [Kill(after, victim) for after, victim in zip(moments, victims, strict=True)]


@dataclass
class ChaosRun:
    """A run under fire, then what it left. `killed` holds kind and process id of each process that was hit."""

    folder: Path
    seed: int
    process: subprocess.Popen[bytes]
    killed: list[tuple[Victim, int]] = field(default_factory=list)

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def output(self) -> str:
        """What the run printed."""
        return (self.folder / "output").read_text(errors="backslashreplace")

    @cached_property
    def journal(self) -> JournalContents:
        """What the journal holds; to be asked for when every process is gone."""
        return journal.read(self.results / journal.FILE_NAME)

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger.from_journal(self.journal)

    def pids(self) -> dict[tuple[str, int], int | None]:
        """By case and number of the attempt, the process id of its executor."""
        return {(event.case, event.attempt): event.pid for event in self.journal.events if isinstance(event, Start)}

    def completed(self) -> list[tuple[str, int]]:
        """Case id and process id of each time a case came to its last line, as the cases themselves wrote it."""
        lines = [line.rsplit(" ", 1) for line in (self.folder / _DONE).read_text().splitlines()]
        return [(case, int(pid)) for case, pid in lines]

    def killed_executors(self) -> dict[int, int | None]:
        """By process id, the exit status that the journal gives for each executor that was hit."""
        ended = {
            event.pid: event.exit_status
            for event in self.journal.events
            if isinstance(event, Executor) and event.state == "ended"
        }
        return {pid: ended.get(pid) for victim, pid in self.killed if victim is Victim.EXECUTOR}

    def processes(self) -> list[psutil.Process]:
        """Every living process of this run, wherever it hangs in the tree: the marker is inherited."""
        return [
            process
            for process in psutil.process_iter(["environ", "status"])
            if (process.info["environ"] or {}).get(_MARKER) == str(self.folder)
            and process.info["status"] != psutil.STATUS_ZOMBIE
        ]

    def survivors(self) -> list[psutil.Process]:
        """The processes of this run that are still there some time after its end."""
        return psutil.wait_procs(self.processes(), timeout=_DEATH_LIMIT)[1]

    def endure(self, kills: Sequence[Kill]) -> None:
        """Wait for the end of the run, killing on the way; every kill has to hit."""
        progress = _Progress(self.results / journal.FILE_NAME)
        pending = deque(kills)
        choose = random.Random(self.seed)
        deadline = time.monotonic() + _RUN_LIMIT
        end = select.poll()
        pidfd = os.pidfd_open(self.process.pid)
        end.register(pidfd, select.POLLIN)
        try:
            while not end.poll(1):
                assert time.monotonic() < deadline, f"the run does not end; it said:\n{self.output[-3000:]}"
                if pending and progress.steps() >= pending[0].after and self._strike(pending[0].victim, choose):
                    pending.popleft()
        finally:
            os.close(pidfd)
        self.process.wait()
        assert not pending, f"the run ended before all kills, it said:\n{self.output[-3000:]}"

    def _strike(self, victim: Victim, choose: random.Random) -> bool:
        """Kill a process of this kind; False when there is none just now."""
        hit_before = {pid for _, pid in self.killed}
        candidates = [process for process in self._living(victim) if process.pid not in hit_before]
        # xdist gives a run up when it hands work to a worker whose death it has not noticed: one at a time.
        if len(candidates) < (WORKERS if victim is Victim.WORKER else 1):
            return False
        process = choose.choice(candidates)
        try:
            process.kill()
        except psutil.NoSuchProcess:
            return False
        self.killed.append((victim, process.pid))
        return True

    def _living(self, victim: Victim) -> list[psutil.Process]:
        controller = psutil.Process(self.process.pid)
        if victim is Victim.CONTROLLER:
            return [controller]
        below = _children(controller)
        workers = [process for process in below if not _is_zygote(process)]
        # The run's own, and those that workers have started in its place. Executors show the same command line.
        zygotes = [process for process in below if _is_zygote(process)]
        zygotes += [process for worker in workers for process in _children(worker) if _is_zygote(process)]
        executors = [process for zygote in zygotes for process in _children(zygote)]
        ready = (self.folder / _READY).read_text().split()
        found = {
            Victim.WORKER: [worker for worker in workers if str(worker.pid) in ready],
            Victim.STARTING_WORKER: [worker for worker in workers if str(worker.pid) not in ready],
            Victim.ZYGOTE: zygotes,
            Victim.EXECUTOR: executors,
        }
        return sorted(found[victim], key=lambda process: process.pid)


def _children(parent: psutil.Process) -> list[psutil.Process]:
    try:
        return [child for child in parent.children() if _is_alive(child)]
    except psutil.NoSuchProcess:
        return []


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _is_zygote(process: psutil.Process) -> bool:
    try:
        return "harness.zygote" in process.cmdline()
    except (psutil.NoSuchProcess, psutil.ZombieProcess):
        return False


class _Progress:
    """Counts start and finish lines of a journal that is being written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._steps = 0

    def steps(self) -> int:
        """How many there are by now; 0 while there is no journal."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return 0
        lines = data[: data.rfind(b"\n") + 1]
        self._read += len(lines)
        self._steps += sum(line.startswith((b'{"event":"start"', b'{"event":"finish"')) for line in lines.split(b"\n"))
        return self._steps


@contextmanager
def chaos_run(folder: Path, seed: int) -> Iterator[ChaosRun]:
    """A run of CASES cases on two workers in `folder`; afterwards none of its processes is left."""
    suite = folder / "suites" / "waits"
    suite.mkdir(parents=True)
    for number in range(_FILES):
        (suite / f"test_waits_{number}.py").write_text(_CASES)
    (folder / "pytest.ini").write_text("[pytest]\nharness_suites = suites\nharness_preload =\n")
    (suite / "conftest.py").write_text(_CONFTEST)
    (folder / _DONE).touch()
    (folder / _READY).touch()
    temporary = folder / "tmp"
    temporary.mkdir()
    # Nothing that pytest or the harness was told about the run of these tests is meant for that one.
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "HARNESS_"))}
    own = {_MARKER: str(folder), "TMPDIR": str(temporary)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "suites",
        f"-n{WORKERS}",
        "-p",
        "no:cacheprovider",
        "--results-dir=results",
    ]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [*command, f"--seed={seed}"], cwd=folder, env={**outer, **own}, stdout=output, stderr=output
        )
    run = ChaosRun(folder, seed, process)
    try:
        yield run
    finally:
        for left in run.processes():
            try:
                left.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        process.wait()
