"""What the zygote does to processes, behind a small interface, so that its decisions can be tested without any."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Protocol

from harness import linux
from harness.checks import process


class Processes(Protocol):
    """Forks, kills and waits for processes."""

    def fork(self) -> int:
        """Fork this process: 0 in the child, the child's process id in the parent. Raises OSError."""

    def open(self, pid: int) -> int:
        """A descriptor that becomes readable when the child `pid` ends. Raises OSError."""

    def kill(self, pid: int) -> None:
        """Send SIGKILL to the child `pid`."""

    def kill_group(self, pid: int, number: int) -> None:
        """Send signal `number` to the process group of the executor `pid`, which was not waited for yet."""

    def reap(self, pid: int) -> int | None:
        """The exit code of the child `pid`, which then is gone; None where it cannot be waited for yet."""

    def children(self) -> list[int]:
        """The process ids of all children that live or were not waited for."""

    def describe(self, pid: int) -> tuple[str, str] | None:
        """State letter and command line of a process, None when it is gone."""

    def describe_stuck(self, pid: int) -> str:
        """A text about a process that does not end although it was killed."""


class LinuxProcesses:
    """The real ones."""

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
        # Never blocks: of a process that a debugger holds the end may be seen long before it can be waited for.
        found, status = os.waitpid(pid, os.WNOHANG)
        return os.waitstatus_to_exitcode(status) if found else None

    def children(self) -> list[int]:
        return linux.children()

    def describe(self, pid: int) -> tuple[str, str] | None:
        return linux.describe_process(pid)

    def describe_stuck(self, pid: int) -> str:
        return process.describe_stuck(pid)
