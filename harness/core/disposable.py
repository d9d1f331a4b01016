"""Runs a program in a disposable process with a deadline, and leaves nothing of it alive.

The program may crash, hang or leave children. Its output goes to files: a pipe can fill up, and a child that the
program has left can hold it open for ever. The program leads a process group of its own, which is killed at the end,
whatever the end was.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

from harness.core import linux

#: Signals in order, each with the seconds to wait for the exit before the next one.
Ladder = Sequence[tuple[int, float]]
#: For programs that have nothing to clean up. A process that waits inside a driver may outlive it.
KILL: Ladder = ((signal.SIGKILL, 5.0),)
_KEPT = 1 << 16  # bytes of each output
_PAUSE = 0.01  # seconds between two looks at the process
_LOOK = 0.1  # seconds between two looks at its output, and at whether it should stop


@dataclass(frozen=True, slots=True)
class DisposableRun:
    """How a program ended.

    - `status`: as of ``os.waitstatus_to_exitcode``; None if the program could not be killed.
    - `in_time`: it ended by itself, before the limit. `seconds`: how long it ran.
    - `output`, `errors`: the end of stdout and stderr; `output` is empty if it went elsewhere.
    """

    status: int | None
    in_time: bool
    seconds: float
    output: bytes = b""
    errors: bytes = b""

    @property
    def last_error(self) -> str:
        """The last line of stderr that is not empty."""
        lines = self.errors.decode(errors="backslashreplace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "")


def run_disposable(
    command: Sequence[str],
    limit: float,
    *,
    environ: Mapping[str, str] | None = None,
    ladder: Ladder = KILL,
    both_into: IO[bytes] | None = None,
    kept: int = _KEPT,
    most: int | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> DisposableRun:
    """Run a program for at most `limit` seconds, then end it by the `ladder`. Raise OSError if it does not start.

    `environ` defaults to that of this process. `both_into`: a file for stdout and stderr, instead of the result.
    `kept`: bytes of the end of each output that the result has. `most`: bytes of stdout
    after which the program is ended, as after the limit. `stopped`: whether to end it now, for calls in threads, which
    no signal reaches.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        began = time.monotonic()
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=both_into or output,
            stderr=both_into or errors,
            env=environ,
            start_new_session=True,
        )
        try:
            in_time = _ends_by_itself(child, began + limit, output, most, stopped)
        finally:  # also if the wait is interrupted
            status = _end(child, ladder)
        return DisposableRun(status, in_time, time.monotonic() - began, _tail(output, kept), _tail(errors, kept))


def _ends_by_itself(
    child: subprocess.Popen[bytes],
    deadline: float,
    output: IO[bytes],
    most: int | None,
    stopped: Callable[[], bool],
) -> bool:
    """Wait for a child. Return whether it has ended before the deadline, and before it has written too much."""
    # A limit of the kernel on files would be inherited by all that the program starts.
    while not linux.has_ended_before(child.pid, min(deadline, time.monotonic() + _LOOK), _PAUSE):
        size = 0 if most is None else os.fstat(output.fileno()).st_size
        if time.monotonic() >= deadline or stopped() or (most is not None and size > most):
            return False
    return True


def _end(child: subprocess.Popen[bytes], ladder: Ladder) -> int | None:
    """Kill the group of a child by the ladder, and then the rest of the group. Return the child's status, or None."""
    if end_groups([child.pid], ladder):
        child.returncode = 0  # without this, subprocess warns about a running process
        return None
    return child.wait()


def end_groups(leaders: Collection[int], ladder: Ladder = KILL) -> list[int]:
    """Kill the groups that these children lead, all at once, by the ladder, and what the leaders leave of them.

    Return the leaders that could not be killed. The others have ended and are not reaped yet, so that neither their
    numbers nor those of their groups are used again.
    """
    left = list(leaders)
    for number, grace in ladder:
        left = [pid for pid in left if not linux.has_ended_before(pid, 0.0, _PAUSE)]
        for pid in left:
            _signal_group(pid, number)
        deadline = time.monotonic() + grace
        left = [pid for pid in left if not linux.has_ended_before(pid, deadline, _PAUSE)]
    for pid in {*leaders} - {*left}:
        _signal_group(pid, signal.SIGKILL)
    return left


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # if SIGCHLD is ignored, the kernel has reaped it
        os.killpg(leader, number)


def _tail(file: IO[bytes], kept: int) -> bytes:
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), kept, max(0, size - kept))


def json_objects(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the lines that are JSON objects: a library may print anything, and a killed writer cuts a line off."""
    for line in lines:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(message, dict):
            yield message


#: Signals in order, each with the seconds to wait for the exit before the next signal. A process ends late after
#: SIGKILL if the driver of its device must clean up.
LADDER = ((signal.SIGTERM, 2.0), (signal.SIGKILL, 10.0))
