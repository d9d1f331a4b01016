"""Kills processes that executors leave running, and tracks those that cannot be killed.

The zygote adopts the orphans of its executors: every child that the zygote did not fork is an orphan. Nothing here
blocks: the end of a process is an event of the loop.

Two executors can die at the same time. The session of an orphan identifies its executor, because each executor starts a
session. An orphan with its own session counts against the executor whose end is handled first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field

from harness.checks.process import CLEANUP_HELPERS, FORK_OF_CASE, KEPT_HELPERS
from harness.zygote.loop import EventLoop
from harness.zygote.processes import ProcessOperations

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
        state, command = self._processes.describe(pid) or ("X", "")
        if state not in "ZX" and not _has(command, KEPT_HELPERS):
            sweep.commands[pid] = FORK_OF_CASE if command.startswith(_OURS) else command
        cleans_up = _has(command, CLEANUP_HELPERS)
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
