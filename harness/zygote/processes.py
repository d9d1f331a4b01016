"""The zygote's operations on processes, behind a small interface, so that tests need no real processes."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Protocol

from harness.checks import process
from harness.core import linux


class ProcessOperations(Protocol):
    """Forks, kills and waits for processes."""

    def fork(self) -> int:
        """Fork this process. Return 0 in the child, the child's process id in the parent. Raise OSError."""

    def open(self, pid: int) -> int:
        """Return a descriptor that becomes readable when the child `pid` ends. Raise OSError."""

    def kill(self, pid: int) -> None:
        """Send SIGKILL to the child `pid`."""

    def kill_group(self, pid: int, number: int) -> None:
        """Send signal `number` to the process group of the executor `pid`, which must not have been reaped."""

    def reap(self, pid: int) -> int | None:
        """Reap the child `pid`. Return its exit code, or None if it cannot be reaped yet."""

    def children(self) -> list[int]:
        """Return the process ids of all children that live or were not reaped."""

    def session(self, pid: int) -> int:
        """Return the session id of a child, 0 if it is gone."""

    def describe(self, pid: int) -> tuple[str, str] | None:
        """Return state letter and command line of a process, None if it is gone."""

    def describe_stuck(self, pid: int) -> str:
        """Return a text about a process that does not end although it was killed."""


class LinuxProcesses:
    """The real operations."""

    def fork(self) -> int:
        return os.fork()

    def open(self, pid: int) -> int:
        return os.pidfd_open(pid)

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def kill_group(self, pid: int, number: int) -> None:
        try:
            os.killpg(pid, number)
        except ProcessLookupError:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)  # before its setsid

    def reap(self, pid: int) -> int | None:
        # Must not block: if a debugger holds the process, its pidfd is readable long before waitpid succeeds.
        ended, status = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if ended else None

    def children(self) -> list[int]:
        return linux.child_pids()

    def session(self, pid: int) -> int:
        try:
            return os.getsid(pid)
        except ProcessLookupError:
            return 0

    def describe(self, pid: int) -> tuple[str, str] | None:
        return linux.describe_process(pid)

    def describe_stuck(self, pid: int) -> str:
        return process.describe_stuck(pid)
