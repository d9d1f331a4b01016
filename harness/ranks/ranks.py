"""The fixture `ranks`: a case of several ranks, each a child process with its own device.

A crew starts the ranks of a call, waits for their end, and leaves nothing running. Effects only; `judgement` decides.
Each rank leads its own process group, so that leftover processes can be attributed to it.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from harness.core import clock, linux
from harness.ranks.judgement import BROKEN, LIMIT, How, RankEnd, breakage
from harness.ranks.rank import STACKS_SIGNAL, Rank, RankFiles, pickled, read_report, run_rank, write_order

#: Seconds that the other ranks have to end after one has broken.
GRACE = 5.0
#: Seconds in which a rank must write its stacks, and in which a killed rank must end. The latter takes longest with a
#: GPU.
_STACKS_PATIENCE = 2.0
_KILL_PATIENCE = 10.0
_STEP = 0.02
_OUTPUT_READ = 64 << 10


@dataclass(slots=True)
class _Process:
    rank: Rank
    files: RankFiles
    pid: int
    pidfd: int
    ended: RankEnd | None = None


@dataclass
class Crew:
    """The ranks of one call. Use it as a context: at its end no rank runs.

    `deaths`: by rank, the status with which it is expected to die.
    """

    folder: Path
    deaths: Mapping[int, int] = field(default_factory=dict)
    _processes: list[_Process] = field(default_factory=list)

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        """Kill the ranks that still run, and forget all ranks."""
        self._kill([process for process in self._processes if process.ended is None])
        for process in self._processes:
            os.close(process.pidfd)
            if not _reap(process.pid):
                print(f"rank {process.rank.number} (process {process.pid}) cannot be killed", file=sys.stderr)
        self._processes.clear()

    def start(
        self, ranks: Sequence[Rank], body: Callable[..., Any], arguments: Sequence[object], *, loading: str | None
    ) -> None:
        """Start all ranks as forks of this process.

        With `loading`, start them as fresh interpreters that first execute this code.

        Raise ValueError if a body or its arguments cannot be sent, OSError if a process cannot be started.
        """
        data = pickled(body, arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        linux.flush_c_stdio()
        for rank in ranks:
            files = RankFiles(self.folder, rank.number)
            files.stacks.touch()
            if loading is None:
                pid = _fork(rank, body, data)
            else:
                write_order(files.order, rank, body, data, loading)
                pid = _spawn(files)
            self._processes.append(_Process(rank, files, pid, os.pidfd_open(pid)))

    def wait(self, deadline: float, leftovers: Callable[[int], str | None]) -> list[RankEnd]:
        """Wait until all ranks have ended.

        After `deadline`, or `GRACE` seconds after one has broken, cut the others short.

        `leftovers` describes a process that a rank has left; None if it may stay.
        """
        self._wait(deadline)
        waiting = [process for process in self._processes if process.ended is None]
        if waiting:
            cut = BROKEN if any(process.ended for process in self._processes if _is_broken(process)) else LIMIT
            self._cut(waiting, cut)
        left = self._left(leftovers)
        return [replace(end, left=left.get(end.number, ())) for process in self._processes if (end := process.ended)]

    def _wait(self, deadline: float) -> None:
        poll = select.poll()
        running = {process.pidfd: process for process in self._processes}
        for descriptor in running:
            poll.register(descriptor, select.POLLIN)
        while running:
            remaining = deadline - clock.monotonic()
            if remaining <= 0:
                return
            for descriptor, _ in poll.poll(remaining * 1000):
                process = running.pop(descriptor)
                poll.unregister(descriptor)
                self._note(process)
                if _is_broken(process):
                    deadline = min(deadline, clock.monotonic() + GRACE)

    def _note(self, process: _Process, cut: str = "", state: str = "") -> None:
        """Record the end of a process. It stays a zombie, so that its number cannot be reused."""
        at = clock.monotonic()
        result = os.waitid(os.P_PIDFD, process.pidfd, os.WEXITED | os.WNOWAIT)
        assert result is not None
        status = result.si_status if result.si_code == os.CLD_EXITED else -result.si_status
        files, number = process.files, process.rank.number
        report = None if cut else read_report(files.report)
        process.ended = RankEnd(
            number,
            process.pid,
            status,
            at,
            report=report,
            wanted=self.deaths.get(number),
            cut=cut,
            state=state,
            stacks=_read(files.stacks),
            output=_read(files.output),
        )

    def _cut(self, processes: Sequence[_Process], cut: str) -> None:
        """Make the ranks write their stacks, then kill them."""
        before = _stack_sizes(processes)
        for process in processes:
            signal.pidfd_send_signal(process.pidfd, STACKS_SIGNAL)
        give_up = clock.monotonic() + _STACKS_PATIENCE
        sizes = before
        while clock.monotonic() < give_up:
            time.sleep(_STEP)
            last, sizes = sizes, _stack_sizes(processes)
            if sizes == last and all(sizes[pid] > before[pid] for pid in sizes):
                break
        silent = {pid for pid, size in sizes.items() if size == before[pid]}
        states = {member.pid: _state(member.pid) if member.pid in silent else "" for member in processes}
        self._kill(processes)
        for process in processes:
            if _has_ended(process):
                self._note(process, cut, states[process.pid])
            else:
                state = f"cannot be killed, in {linux.kernel_wait_channel(process.pid) or 'an unknown place'}"
                process.ended = RankEnd(process.rank.number, process.pid, 0, clock.monotonic(), cut=cut, state=state)

    def _kill(self, processes: Sequence[_Process]) -> None:
        """Kill ranks with their groups, and wait for their end."""
        for process in processes:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:  # it has not made its group yet
                signal.pidfd_send_signal(process.pidfd, signal.SIGKILL)
        give_up = clock.monotonic() + _KILL_PATIENCE
        while not all(_has_ended(process) for process in processes) and clock.monotonic() < give_up:
            time.sleep(_STEP)

    def _left(self, leftovers: Callable[[int], str | None]) -> dict[int, tuple[str, ...]]:
        """Kill the remaining processes in the groups of the ranks, all of which have ended.

        Return descriptions by rank.
        """
        groups = {process.pid: process.rank.number for process in self._processes}
        left: dict[int, tuple[str, ...]] = {}
        for pid, group in _groups_of_processes():
            if group not in groups or pid in groups:
                continue
            text = leftovers(pid)
            if text is None:
                continue
            left[groups[group]] = (*left.get(groups[group], ()), text)
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            _reap(pid)
        return left


def _is_broken(process: _Process) -> bool:
    return process.ended is not None and process.ended.how is not None and process.ended.how is not How.STOPPED


def _fork(rank: Rank, body: Callable[..., Any], arguments: bytes) -> int:
    parent = os.getpid()
    with warnings.catch_warnings():
        # Since Python 3.12, a fork warns if the process has threads. Python threads prevent a fork
        # (`RankSettings.unsafe`).
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        try:
            os.setpgid(0, 0)
            run_rank(rank, body, arguments, parent)
        finally:
            os._exit(71)
    return pid


_FRESH = "import sys; from harness.ranks.rank import execute_order; execute_order(sys.argv[1])"


def _spawn(files: RankFiles) -> int:
    """Start an interpreter for a rank. It is reaped by this module, so its `Popen` is not kept."""
    output = os.open(files.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        path = os.pathsep.join(entry for entry in sys.path if entry)
        program = [sys.executable, "-c", _FRESH, str(files.order)]
        child = subprocess.Popen(
            program,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
            env={**os.environ, "PYTHONPATH": path},
        )
    finally:
        os.close(output)
    child.returncode = 0  # otherwise its destructor would wait or warn
    return child.pid


def _stack_sizes(processes: Sequence[_Process]) -> dict[int, int]:
    return {process.pid: process.files.stacks.stat().st_size for process in processes}


def _state(pid: int) -> str:
    """Return the kernel's state of a rank that has written no stacks."""
    letter = (linux.describe_process(pid) or linux.GONE).state
    if letter in "Tt":
        return "it is stopped by a signal"
    return f"state {letter}, in {linux.kernel_wait_channel(pid) or 'an unknown place'}; it wrote no stacks"


def _has_ended(process: _Process) -> bool:
    result = os.waitid(os.P_PIDFD, process.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return result is not None


def _reap(pid: int) -> bool:
    """Reap a child that was killed or has ended. Return whether it no longer exists."""
    give_up = clock.monotonic() + _KILL_PATIENCE
    while clock.monotonic() < give_up:
        try:
            if os.waitpid(pid, os.WNOHANG)[0] == pid:
                return True
        except ChildProcessError:
            return True  # another process has adopted it
        time.sleep(0.001)
    return False


def _groups_of_processes() -> list[tuple[int, int]]:
    """Return process and process group of all processes."""
    pairs = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                pairs.append((int(entry), os.getpgid(int(entry))))
            except ProcessLookupError:
                continue
    return pairs


def _read(path: Path) -> str:
    """Return the end of a file of text; empty if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - _OUTPUT_READ))
            return file.read().decode("utf-8", "backslashreplace")
    except FileNotFoundError:
        return ""


#: The time that the report of hung ranks needs, taken from that of the case: the least seconds, and the share of the
#: limit.
_RESERVE, _RESERVED_PART = 2.0, 0.05


class RanksError(AssertionError):
    """A rank has broken. The text begins with a line that names the rank, followed by the details of each rank."""


@dataclass(frozen=True)
class RankSettings:
    """The settings of the ranks of a case.

    `device`: the name of the device of a rank, by its number. `devices`: the number of devices of the case, None if any
    number of ranks can have one. `deadline`: the end of the case's time on the monotonic clock; None for no limit.
    `limit`: the time limit of the case in seconds.
    `unsafe`: returns why this process must not be forked; empty if it may be. `loading`: code with which a fresh
    interpreter can use the devices. `leftovers`: see `Crew.wait`. `note`: takes an outcome other than `failed`, and a
    line, for the verdict on the case; returns whether there will be one.
    """

    device: Callable[[int], str]
    devices: int | None
    seed: int
    deadline: float | None
    limit: float
    unsafe: Callable[[], str]
    loading: Callable[[], str]
    leftovers: Callable[[int], str | None]
    note: Callable[[str, str], bool]


@dataclass
class Ranks:
    """Runs functions in several processes at the same time. The files of a failed call stay in `folder`."""

    settings: RankSettings
    folder: Path
    _calls: int = field(default=0)

    def __repr__(self) -> str:
        return f"<ranks in {str(self.folder)!r}>"

    def run(
        self,
        body: Callable[..., Any],
        *arguments: object,
        world: int,
        limit: float | None = None,
        deaths: Mapping[int, int] | None = None,
    ) -> list[Any]:
        """Call ``body(rank, *arguments)`` in `world` processes at the same time. Return the results, by rank.

        `body` is a function of a module, and its arguments and results must be picklable. `rank` is a
        `harness.ranks.rank.Rank`. `deaths`: the ranks that are expected to die, and the status of each as
        ``os.waitstatus_to_exitcode`` returns it; their result is None. `limit`: seconds after which ranks that still
        run count as broken, at most until shortly before the case's own limit.

        Raise RanksError, which names the rank that broke first, if one raises, dies, or does not end. Raise pytest's
        skip if one skips and none breaks. No rank runs afterwards.
        """
        __tracebackhide__ = True
        settings = self.settings
        if settings.devices is not None and world > settings.devices:
            raise RanksError(
                f"{world} ranks need as many devices, and the case has {settings.devices}: add requires(ranks={world})"
            )
        self._calls += 1
        folder = self.folder / f"ranks-{self._calls}"
        folder.mkdir()
        deadline, seconds = self._deadline(limit)
        ranks = [Rank(number, world, settings.device(number), folder, settings.seed) for number in range(world)]
        loading = settings.loading() if settings.unsafe() else None
        with Crew(folder, deaths or {}) as crew:
            crew.start(ranks, body, arguments, loading=loading)
            ends = crew.wait(deadline, settings.leftovers)
        left = [f"rank {end.number} of {world} left a process running: {text}" for end in ends for text in end.left]
        left = [line for line in left if not settings.note("leaked", line)]
        broken = breakage(ends, seconds)
        if broken is not None:
            if broken.outcome != "failed":
                settings.note(broken.outcome, broken.line)
            raise RanksError(broken.text)
        if left:
            raise RanksError("\n".join(left))
        shutil.rmtree(folder, ignore_errors=True)
        skipped = next((end.report for end in ends if end.report is not None and end.report.how == "skipped"), None)
        if skipped is not None:
            pytest.skip(skipped.error)
        return [end.report.value if end.report is not None else None for end in ends]

    def _deadline(self, limit: float | None) -> tuple[float, float]:
        """Return the time by which the ranks must have ended, and the seconds until then."""
        now, settings = clock.monotonic(), self.settings
        seconds = float("inf") if limit is None else limit
        if settings.deadline is not None:
            reserve = max(_RESERVE, _RESERVED_PART * settings.limit)
            seconds = min(seconds, max(0.5, settings.deadline - reserve - now))
        if seconds == float("inf"):
            seconds = 300.0
        return now + seconds, seconds
