"""The zygote's processes: its event loop, its operations on processes, and the end of orphans.

The zygote adopts the orphans of its executors: every child that the zygote did not fork is an orphan. Nothing here
blocks: the end of a process is an event of the loop.

Two executors can die at the same time. The session of an orphan identifies its executor, because each executor starts a
session. An orphan with its own session counts against the executor whose end is handled first.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import selectors
import signal
import sys
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field

from harness.checks.process import CLEANUP_HELPERS, FORK_OF_CASE, KEPT_HELPERS, describe_stuck
from harness.core import linux
from harness.core.clock import monotonic
from harness.core.linux import ProcessDescription

LoopAction = Callable[[], object]


class EventLoop:
    """Calls an action when its descriptor is readable or its time has come. No action may block."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, LoopAction]] = []
        self._numbers = itertools.count()  # actions with the same time are called in the order of registration

    def watch(self, descriptor: int, action: LoopAction) -> None:
        """Call `action` whenever `descriptor` is readable."""
        self._selector.register(descriptor, selectors.EVENT_READ, action)

    def unwatch(self, descriptor: int) -> None:
        """Stop watching `descriptor`. Call this before it is closed."""
        self._selector.unregister(descriptor)

    def after(self, seconds: float, action: LoopAction) -> None:
        """Call `action` once, in `seconds`."""
        heapq.heappush(self._timers, (self._clock() + seconds, next(self._numbers), action))

    def turn(self) -> None:
        """Wait for an event, and call its action."""
        timeout = max(0.0, self._timers[0][0] - self._clock()) if self._timers else None
        for key, _ in self._selector.select(timeout):
            # An earlier action of this turn may have ended the watch, or started another on the same descriptor number.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        while self._timers and self._timers[0][0] <= self._clock():
            heapq.heappop(self._timers)[2]()

    def close(self) -> None:
        """Close the loop's own descriptor. The watched descriptors stay open."""
        self._selector.close()


class ProcessOperations:
    """Forks, kills and waits for processes. Tests override them, and need no real processes."""

    def fork(self) -> int:
        """Fork this process. Return 0 in the child, the child's process id in the parent. Raise OSError."""
        return os.fork()

    def open(self, pid: int) -> int:
        """Return a descriptor that becomes readable when the child `pid` ends. Raise OSError."""
        return os.pidfd_open(pid)

    def kill(self, pid: int) -> None:
        """Send SIGKILL to the child `pid`."""
        os.kill(pid, signal.SIGKILL)

    def kill_group(self, pid: int, number: int) -> None:
        """Send signal `number` to the process group of the executor `pid`, which must not have been reaped."""
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)  # before its setsid

    def reap(self, pid: int) -> int | None:
        """Reap the child `pid`. Return its exit code, or None if it cannot be reaped yet."""
        # Must not block: if a debugger holds the process, its pidfd is readable long before waitpid succeeds.
        ended, status = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if ended else None

    def children(self) -> list[int]:
        """Return the process ids of all children that live or were not reaped."""
        return linux.child_pids()

    def session(self, pid: int) -> int:
        """Return the session id of a child, 0 if it is gone."""
        try:
            return os.getsid(pid)
        except ProcessLookupError:
            return 0

    def describe(self, pid: int) -> ProcessDescription | None:
        """Return the description of a process, None if it is gone."""
        return linux.describe_process(pid)

    def describe_stuck(self, pid: int) -> str:
        """Return a text about a process that does not end although it was killed."""
        return describe_stuck(pid)


#: Seconds to wait for the end of a killed process. With a GPU it takes longer, because the driver must clean up.
#: The kill ladder waits longer than this after SIGKILL. Otherwise an orphan that cannot be killed would make its dead
#: executor look unkillable too.
KILL_PATIENCE = 5.0
#: Seconds that a helper has to remove shared memory before it is killed. The work takes milliseconds.
CLEANER_PATIENCE = 2.0
#: Seconds between two tries to reap a process that has ended but is still held by a debugger.
REAP_PAUSE = 0.1

#: The start of the command line of the zygote and of executors, forked and cold.
_OURS = f"{sys.executable} -m harness.zygote"


@dataclass
class OrphanSweep:
    """The processes that one executor left running: all of them by process id, and those that have not ended yet."""

    done: Callable[[list[str], list[str]], None]
    commands: dict[int, str] = field(default_factory=dict)
    dying: set[int] = field(default_factory=set)
    over: bool = False


@dataclass
class _Orphan:
    pid: int
    pidfd: int
    sweep: OrphanSweep


class OrphanKiller:
    """Kills the orphans: every child of the zygote that the zygote did not fork."""

    def __init__(self, processes: ProcessOperations, loop: EventLoop, executors: Container[int]) -> None:
        """`executors` are the process ids of the executors."""
        self._processes = processes
        self._loop = loop
        self._executors = executors
        self._orphans: dict[int, _Orphan] = {}
        self._sweeps = 0

    @property
    def sweeping(self) -> bool:
        """Whether any sweep still waits for a process to end."""
        return self._sweeps > 0

    def sweep(self, done: Callable[[list[str], list[str]], None]) -> None:
        """Kill every orphan, and every process that an orphan leaves when it ends.

        Orphans in the session of an executor that has not been reaped yet are left to that executor's own sweep.

        `done` is called once they are gone, or after `KILL_PATIENCE`, with the command lines of the killed processes
        and a text about each process that could not be killed. A later sweep does not wait for such a process again.
        """
        sweep = OrphanSweep(done)
        self._sweeps += 1
        self._kill_new(sweep)
        if sweep.dying:
            self._loop.after(KILL_PATIENCE, lambda: self._finish(sweep))
        else:
            self._finish(sweep)

    def close_descriptors(self) -> None:
        """Close the pidfds, in a fork of the zygote, which must not keep the zygote's descriptors."""
        for orphan in self._orphans.values():
            if orphan.pidfd >= 0:
                os.close(orphan.pidfd)

    def _kill_new(self, sweep: OrphanSweep) -> None:
        """Kill the orphans that are not known yet. If one ends immediately, also kill its children.

        Helpers that clean up get some time for this first.
        """
        ended = True
        while ended:
            ended = False
            for pid in self._processes.children():
                if self._is_new_orphan(pid):
                    ended = self._kill(pid, sweep) or ended

    def _is_new_orphan(self, pid: int) -> bool:
        is_known = pid in self._executors or pid in self._orphans
        return not is_known and self._processes.session(pid) not in self._executors

    def _kill(self, pid: int, sweep: OrphanSweep) -> bool:
        """Kill one orphan. Return whether it has ended already."""
        found = self._processes.describe(pid) or linux.GONE
        if not (found.state in "ZX" or found.ending or _has(found.command, KEPT_HELPERS)):
            sweep.commands[pid] = FORK_OF_CASE if found.command.startswith(_OURS) else found.command
        cleans_up = _has(found.command, CLEANUP_HELPERS)
        if not cleans_up:
            self._processes.kill(pid)
        if self._processes.reap(pid) is not None:
            return True
        try:
            pidfd = self._processes.open(pid)
        except OSError as error:
            # The orphan stays unknown, so that a later sweep handles it.
            print(f"harness zygote: cannot watch for the end of process {pid}: {error}", file=sys.stderr)
            return False
        orphan = self._orphans[pid] = _Orphan(pid, pidfd, sweep)
        sweep.dying.add(pid)
        self._loop.watch(pidfd, lambda: self._ended(orphan))
        if cleans_up:
            self._loop.after(CLEANER_PATIENCE, lambda: self._kill_late(orphan))
        return False

    def _kill_late(self, orphan: _Orphan) -> None:
        if self._orphans.get(orphan.pid) is orphan:
            self._processes.kill(orphan.pid)

    def _ended(self, orphan: _Orphan) -> None:
        self._loop.unwatch(orphan.pidfd)
        os.close(orphan.pidfd)
        orphan.pidfd = -1
        self._reap(orphan)

    def _reap(self, orphan: _Orphan) -> None:
        if self._processes.reap(orphan.pid) is None:
            self._loop.after(REAP_PAUSE, lambda: self._reap(orphan))
            return
        del self._orphans[orphan.pid]
        sweep = orphan.sweep
        sweep.dying.discard(orphan.pid)
        if sweep.over:
            print(f"harness zygote: process {orphan.pid} has ended, after it could not be killed", file=sys.stderr)
        self._kill_new(sweep)  # the zygote has adopted the children of the ended orphan
        if not sweep.dying:
            self._finish(sweep)

    def _finish(self, sweep: OrphanSweep) -> None:
        if sweep.over:
            return
        sweep.over = True
        self._sweeps -= 1
        swept = [command for pid, command in sweep.commands.items() if pid not in sweep.dying]
        sweep.done(swept, [self._processes.describe_stuck(pid) for pid in sorted(sweep.dying)])


def _has(command: str, words: Iterable[str]) -> bool:
    return any(word in command for word in words)


#: Seconds between two looks, and the number of successive looks that must find the process stopped. A batch system that
#: suspends all processes of a job and continues them in any order is no reason for a line.
PAUSE, LOOKS = 10.0, 3


class ParentWatch:
    """Looks at a process from time to time, and prints a line where that process prints if it has been stopped.

    A case can stop it with SIGSTOP, and so can an operator or a batch system. A stopped process prints nothing, so the
    run would hang without a line.
    """

    def __init__(self, loop: EventLoop, pid: int, is_stopped: Callable[[int], bool] = linux.is_stopped_unseen) -> None:
        self._loop = loop
        self._pid = pid
        self._is_stopped = is_stopped
        self._times = 0
        self._loop.after(PAUSE, self._look)

    def _look(self) -> None:
        self._times = self._times + 1 if self._is_stopped(self._pid) else 0
        if self._times == LOOKS:
            _print_where(
                self._pid,
                f"harness: pytest's process {self._pid} is stopped (SIGSTOP), so the run does not go on; "
                f"continue it with kill -CONT {self._pid}, or end it with kill -KILL {self._pid}",
            )
        self._loop.after(PAUSE, self._look)


def _print_where(pid: int, line: str) -> None:
    """Print a line to the standard error of another process of this user. Do nothing if that is a socket or closed.

    Opening it does not wait, also if it is a pipe that nobody reads.
    """
    try:
        descriptor = os.open(
            f"/proc/{pid}/fd/2", os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        )
    except OSError:
        return
    try:
        os.write(descriptor, f"\n{line}\n".encode())
    except OSError:
        return  # the disk is full, the pipe is, or its reader is gone
    finally:
        os.close(descriptor)
