"""Fake processes of a zygote, which end when a test says so."""

from __future__ import annotations

import errno
import os
import signal

from harness.checks.process import stuck_text
from harness.core.linux import ProcessDescription
from harness.zygote.processes import ProcessOperations


def no_room(code: int = errno.EAGAIN) -> OSError:
    """Return the error of a kernel that cannot create another process."""
    return OSError(code, os.strerror(code))


class FakeProcesses(ProcessOperations):
    """Replaces the operations of a zygote. A descriptor of a process is the end of a pipe."""

    def __init__(self) -> None:
        self.fork_errors: list[OSError] = []
        self.open_errors: list[OSError] = []
        self.commands: dict[int, str] = {}
        self.sessions: dict[int, int] = {}
        self.signals: list[tuple[int, int]] = []
        #: Processes that SIGKILL does not end.
        self.immortal: set[int] = set()
        #: Processes whose end is visible, but which cannot be waited for yet.
        self.held: set[int] = set()
        #: Processes that are between their last instruction and their end.
        self.ending: set[int] = set()
        #: By process, the children that it leaves to its parent's parent when it ends.
        self.leaves: dict[int, list[int]] = {}
        self.reaped: list[int] = []
        self._codes: dict[int, int] = {}
        self._hidden: set[int] = set()
        self._writers: dict[int, list[int]] = {}
        self._next = 1000

    def add(self, command: str, *, left_by: int | None = None) -> int:
        """Add a process that the zygote did not fork: a child of it now, or once `left_by` has ended."""
        pid = self._next = self._next + 1
        self.commands[pid] = command
        if left_by is not None:
            self.leaves.setdefault(left_by, []).append(pid)
            self._hidden.add(pid)
        return pid

    def end(self, pid: int, code: int = 0) -> None:
        """End the process now."""
        if pid in self._codes:
            return
        self._codes[pid] = code
        self._hidden -= set(self.leaves.pop(pid, []))
        for writer in self._writers.pop(pid, []):
            os.close(writer)

    def fork(self) -> int:
        if self.fork_errors:
            raise self.fork_errors.pop(0)
        return self.add("an executor")

    def open(self, pid: int) -> int:
        if self.open_errors:
            raise self.open_errors.pop(0)
        reader, writer = os.pipe()
        if pid in self._codes:
            os.close(writer)
        else:
            self._writers.setdefault(pid, []).append(writer)
        return reader

    def kill(self, pid: int) -> None:
        self.kill_group(pid, signal.SIGKILL)

    def kill_group(self, pid: int, number: int) -> None:
        self.signals.append((pid, number))
        if number == signal.SIGKILL and pid not in self.immortal:
            self.end(pid, -number)

    def reap(self, pid: int) -> int | None:
        if pid not in self._codes or pid in self.held:
            return None
        del self.commands[pid]
        self.reaped.append(pid)
        return self._codes[pid]

    def children(self) -> list[int]:
        return [pid for pid in self.commands if pid not in self._hidden]

    def session(self, pid: int) -> int:
        return self.sessions.get(pid, pid)

    def describe(self, pid: int) -> ProcessDescription | None:
        if pid not in self.commands:
            return None
        state = "Z" if pid in self._codes else "S"
        return ProcessDescription(state, self.commands[pid], ending=pid in self.ending)

    def describe_stuck(self, pid: int) -> str:
        return stuck_text(pid, self.commands[pid], "D", "nv_wait")

    def close(self) -> None:
        """Close all open descriptors."""
        for pid in list(self._writers):
            self.end(pid)
