"""A run of the harness in its own process, whose processes are hit at moments that a seed determines.

A moment is progress of the run, counted in start and finish lines of its journal, so slow machines have the same ones.
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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path

import psutil

from harness.journal import journal, reader
from harness.journal.events import Executor, Start
from harness.journal.ledger import Ledger
from harness.journal.reader import JournalContents
from tests.chaos import starvation
from tests.chaos.victims import Victim, living

CASES = 500
WORKERS = 2
_FILES = 4
#: The range of progress in which processes are hit: early enough that the run does not end first.
_FIRST_STEP, _LAST_STEP = 10, 800
#: Seconds. A run takes five, and a machine may be busy.
_RUN_LIMIT = 240.0
_DEATH_LIMIT = 30.0
_WAIT_LIMIT = 60.0
_MARKER = "CHAOS_RUN"
_DONE, _READY, _BESIDE = "done", "ready", "beside"

_CASES = f"""
import os
import select

import pytest

FOLDER = os.environ["{_MARKER}"]
known = set()


def lives(pid):
    try:
        with open(f"/proc/{{pid}}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def look_for_others():
    # An executor of our worker that has run a case before, and lives on beside us.
    known.add(os.getpid())
    mine = os.environ["PYTEST_XDIST_WORKER"]
    with open(os.path.join(FOLDER, "{_DONE}")) as done:
        others = {{int(pid) for _, pid, worker in map(str.split, done) if worker == mine}} - known
    for pid in filter(lives, others):
        with open(os.path.join(FOLDER, "{_BESIDE}"), "a") as beside:
            print(mine, pid, os.getpid(), file=beside)


@pytest.mark.parametrize("number", range({CASES // _FILES}))
def test_waits(number, request):
    if os.getpid() not in known:
        look_for_others()
    reader, writer = os.pipe()
    select.select([reader], [], [], 0.003)
    os.close(reader)
    os.close(writer)
    with open(os.path.join(FOLDER, "{_DONE}"), "a") as done:
        print(request.node.nodeid, os.getpid(), os.environ["PYTEST_XDIST_WORKER"], file=done)
"""

_CONFTEST = f"""
import os


def pytest_collection_finish(session):
    if hasattr(session.config, "workerinput"):
        with open(os.path.join(os.environ["{_MARKER}"], "{_READY}"), "a") as ready:
            print(os.getpid(), file=ready)
"""

#: Shortened limits for the run under test; in the harness they are constants.
_SHORT_LIMITS = """
import signal

from harness.supervisor import attempt, executor_handle
from harness.zygote import client

client.ANSWER_LIMIT = 5.0
client.FORK_PATIENCE = 3.0
attempt.GRACE = 1.0
executor_handle.LADDER = ((signal.SIGTERM, 0.5), (signal.SIGKILL, 3.0))
"""
#: Options for a run that reaches limits: a case of milliseconds gets this many seconds.
SHORT_LIMITS = ("--case-timeout=4", "--grace=1")


class Act(StrEnum):
    """What is done to a process."""

    KILL = "killed"
    STOP = "stopped"
    NO_DESCRIPTORS = "left without descriptors"
    NO_MEMORY = "left without memory"


@dataclass(frozen=True, slots=True)
class Blow:
    """One hit on a process of a kind, once the journal has `after` start and finish lines.

    If it can be undone, it is undone after `lasting` seconds; never if that is None.
    """

    after: int
    victim: Victim
    act: Act = Act.KILL
    lasting: float | None = None

    def __str__(self) -> str:
        back = "" if self.lasting is None else f" for {self.lasting:g} s"
        return f"{self.victim} {self.act}{back} after step {self.after}"


def plan(seed: int, victims: Sequence[Victim], before: int = _LAST_STEP) -> list[Blow]:
    """Return one kill per entry of `victims`, in this order, at the moments of `seed`."""
    return moments(seed, [(victim, Act.KILL, None) for victim in victims], before)


def moments(seed: int, what: Sequence[tuple[Victim, Act, float | None]], before: int = _LAST_STEP) -> list[Blow]:
    """Return a blow per entry, in this order, at the moments of `seed`."""
    steps = sorted(random.Random(seed).sample(range(_FIRST_STEP, before), len(what)))
    return [Blow(after, *entry) for after, entry in zip(steps, what, strict=True)]


@dataclass
class ChaosRun:
    """A run under fire, then its results. `hits` has what was done to which process."""

    folder: Path
    seed: int
    process: subprocess.Popen[bytes]
    hits: list[tuple[Blow, int]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def results(self) -> Path:
        return self.folder / "results"

    @property
    def output(self) -> str:
        """The output of the run."""
        return (self.folder / "output").read_text(errors="backslashreplace")

    @cached_property
    def journal(self) -> JournalContents:
        """The contents of the journal. Read it after all processes have ended."""
        return reader.read_journal(self.results / journal.FILE_NAME)

    @cached_property
    def ledger(self) -> Ledger:
        return Ledger.from_journal(self.journal)

    def pids(self) -> dict[tuple[str, int], int | None]:
        """Return the process id of the executor by case and number of the attempt."""
        return {(event.case, event.attempt): event.pid for event in self.journal.events if isinstance(event, Start)}

    def completed(self) -> list[tuple[str, int]]:
        """Return case id and process id for each time that a case reached its last line, as the cases recorded it."""
        lines = [line.split() for line in (self.folder / _DONE).read_text().splitlines()]
        return [(case, int(pid)) for case, pid, _ in lines]

    def beside(self) -> list[str]:
        """Return the worker and both process ids wherever an executor found an earlier one of its worker alive.

        An executor that looks into a suspected leak is meant to live beside the one that is set aside.
        """
        ended = [event for event in self.journal.events if isinstance(event, Executor) and event.state == "ended"]
        rehearsals = {str(event.pid) for event in ended if event.reason == "rehearsal"}
        found = (self.folder / _BESIDE).read_text().splitlines()
        return [line for line in found if line.split()[2] not in rehearsals]

    def hit(self, victim: Victim) -> dict[int, Act]:
        """Return what was done to each process of a kind, by process id."""
        return {pid: blow.act for blow, pid in self.hits if blow.victim is victim}

    def killed_executors(self) -> dict[int, int | None]:
        """Return the exit status in the journal of each executor that was hit, by process id."""
        ended = {
            event.pid: event.exit_status
            for event in self.journal.events
            if isinstance(event, Executor) and event.state == "ended"
        }
        return {pid: ended.get(pid) for pid in self.hit(Victim.EXECUTOR)}

    def processes(self) -> list[psutil.Process]:
        """Return all living processes of this run, anywhere in the tree: they inherit the marker."""
        return [
            process
            for process in psutil.process_iter(["environ", "status"])
            if (process.info["environ"] or {}).get(_MARKER) == str(self.folder)
            and process.info["status"] != psutil.STATUS_ZOMBIE
        ]

    def survivors(self) -> list[psutil.Process]:
        """Return the processes of this run that still exist some time after its end."""
        return psutil.wait_procs(self.processes(), timeout=_DEATH_LIMIT)[1]

    def living(self, victim: Victim) -> list[psutil.Process]:
        """Return the living processes of a kind."""
        ready = {int(pid) for pid in (self.folder / _READY).read_text().split()}
        return living(psutil.Process(self.process.pid), victim, ready)

    def until(self, condition: Callable[[], bool]) -> None:
        """Poll until `condition` holds; fail if the run ends first."""
        deadline = time.monotonic() + _WAIT_LIMIT
        with _end_of(self.process.pid) as end:
            while not condition():
                assert not end.poll(10), f"the run has ended; it said:\n{self.output[-3000:]}"
                assert time.monotonic() < deadline, f"waited in vain; the run said:\n{self.output[-3000:]}"

    def endure(self, blows: Sequence[Blow], *, to_the_last: bool = True) -> None:
        """Wait for the end of the run, and hit its processes on the way.

        All blows must hit; without `to_the_last` only the first must, since the run may end because of it.
        """
        begun = time.monotonic()
        progress = _Progress(self.results / journal.FILE_NAME)
        pending = deque(blows)
        back: list[tuple[float, Callable[[], None]]] = []
        choose = random.Random(self.seed)
        with _end_of(self.process.pid) as end:
            while not end.poll(1):
                now = time.monotonic()
                assert now - begun < _RUN_LIMIT, f"the run does not end; it said:\n{self.output[-3000:]}"
                if pending and progress.steps() >= pending[0].after:
                    undo = self._strike(pending[0], choose)
                    if undo is not None:
                        blow = pending.popleft()
                        if blow.lasting is not None:
                            back.append((now + blow.lasting, undo))
                for entry in [entry for entry in back if entry[0] <= now]:
                    back.remove(entry)
                    entry[1]()
        self.process.wait()
        self.seconds = time.monotonic() - begun
        assert len(pending) < (1 if to_the_last else len(blows)), (
            f"the run ended before all blows, it said:\n{self.output[-3000:]}"
        )

    def _strike(self, blow: Blow, choose: random.Random) -> Callable[[], None] | None:
        """Hit a process of this kind. Return the function that undoes it, or None if there is no such process now."""
        hit_before = {pid for _, pid in self.hits}
        candidates = [process for process in self.living(blow.victim) if process.pid not in hit_before]
        # xdist aborts a run if it sends work to a worker whose death it has not noticed, so only one is hit at a time.
        if len(candidates) < (WORKERS if blow.victim is Victim.WORKER else 1):
            return None
        process = choose.choice(candidates)
        try:
            undo = _ACTS[blow.act](process)
        except psutil.NoSuchProcess:
            return None
        self.hits.append((blow, process.pid))
        return undo


def _kill(process: psutil.Process) -> Callable[[], None]:
    process.kill()
    return lambda: None


def _stop(process: psutil.Process) -> Callable[[], None]:
    process.suspend()

    def go_on() -> None:
        try:
            process.resume()
        except psutil.NoSuchProcess:
            return

    return go_on


_ACTS: dict[Act, Callable[[psutil.Process], Callable[[], None]]] = {
    Act.KILL: _kill,
    Act.STOP: _stop,
    Act.NO_DESCRIPTORS: starvation.take_descriptors,
    Act.NO_MEMORY: starvation.take_memory,
}


@contextmanager
def _end_of(pid: int) -> Iterator[select.poll]:
    """Yield an object that becomes readable when a process ends."""
    end = select.poll()
    pidfd = os.pidfd_open(pid)
    end.register(pidfd, select.POLLIN)
    try:
        yield end
    finally:
        os.close(pidfd)


class _Progress:
    """Counts the start and finish lines of a journal that is being written."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._steps = 0

    def steps(self) -> int:
        """Return the count so far; 0 while there is no journal."""
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
def chaos_run(
    folder: Path,
    seed: int,
    *options: str,
    temporary: Path | None = None,
    before_start: Callable[[], None] | None = None,
) -> Iterator[ChaosRun]:
    """Start a run of CASES cases on two workers in `folder`; at the end, none of its processes remains.

    With SHORT_LIMITS among the `options`, constant limits are short, too. `before_start` is called in the process that
    becomes the controller.
    """
    suite = folder / "suites" / "waits"
    suite.mkdir(parents=True, exist_ok=True)  # a run is resumed in its folder
    for number in range(_FILES):
        (suite / f"test_waits_{number}.py").write_text(_CASES)
    (folder / "pytest.ini").write_text("[pytest]\nharness_suites = suites\nharness_preload =\n")
    (folder / "conftest.py").write_text(_SHORT_LIMITS if set(SHORT_LIMITS) <= set(options) else "")
    (suite / "conftest.py").write_text(_CONFTEST)
    for name in (_DONE, _READY, _BESIDE):
        (folder / name).touch()
    temporary = temporary or folder / "tmp"
    temporary.mkdir(exist_ok=True)
    # Variables of pytest and the harness concern the run of these tests, not the one under test.
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
        "-p",
        "no:hypothesispytest",  # it imports modules at the end of the session, which fails if nothing can be opened
        "--results-dir=results",
        *options,
    ]
    with (folder / "output").open("wb") as output:
        process = subprocess.Popen(
            [*command, f"--seed={seed}"],
            cwd=folder,
            env={**outer, **own},
            stdout=output,
            stderr=output,
            preexec_fn=before_start,
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
