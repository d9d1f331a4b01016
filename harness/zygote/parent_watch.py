"""Tells the user that pytest's process, which started this one, has been stopped.

A case can stop it with SIGSTOP, and so can an operator or a batch system. A stopped process prints nothing, so the run
would hang without a line.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from harness.core import linux
from harness.zygote.loop import EventLoop

#: Seconds between two looks, and the number of successive looks that must find the process stopped. A batch system that
#: suspends all processes of a job and continues them in any order is no reason for a line.
PAUSE, LOOKS = 10.0, 3


class ParentWatch:
    """Looks at a process from time to time, and prints a line where that process prints if it has been stopped."""

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
