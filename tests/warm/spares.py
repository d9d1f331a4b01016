"""Children that a warm controller forks before it begins, for the processes that it will start.

They are its own children, as its workers and its zygote must be, and know nothing of its session. The next of them
serves each request to `subprocess`. If none is left, or for another program, the process is started as usual.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.warm.launch import Launch, can_be_warm, early

#: The maximum number of bytes and descriptors of a request.
REQUEST_LIMIT, MOST_DESCRIPTORS = 1 << 20, 253
_WORKERS = re.compile(r"(?:-n|--numprocesses=)(\d+)")
#: What requests a worker per device, and the most devices in these tests. A spare that is not used costs little.
_AUTO, _DEVICES = {"auto", "-nauto"}, 8
_NODES = re.compile(r"--nodes=(\d+)")
#: Command lines that start pytest, or agents of a cluster.
_AGENT, _CLUSTER = ("-m", "harness.tools.cluster.agent"), ("-m", "harness", "cluster", "run")
#: It starts pytest several times in sequence, so this many spares are prepared. Further processes start as usual.
_BISECT, _RUNS = ("-m", "harness", "bisect"), 12
#: Signals that Python ignores or handles itself when it starts.
_PYTHONS_OWN = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT)


def needed(arguments: Sequence[str]) -> int:
    """Return the number of processes that a Python with these arguments starts: pytest's are a zygote, and workers."""
    began = tuple(arguments[:4])
    if began == _CLUSTER and "--engine=local" in arguments:
        return next((int(found[1]) for word in arguments if (found := _NODES.fullmatch(word))), 0)
    if began[:2] == _AGENT:
        return 1
    if began[:3] == _BISECT:
        return _RUNS
    if began[:2] != ("-m", "pytest") or "--collect-only" in arguments:
        return 0
    zygotes = 0 if {"--isolation=none", "no:harness"} & {*arguments} else 1
    if _AUTO & {*arguments}:
        return zygotes + _DEVICES
    return zygotes + sum(int(found[1]) for argument in arguments if (found := _WORKERS.fullmatch(argument)))


def prepare(count: int) -> tuple[Launch, list[int]] | None:
    """Fork `count` spares, and make `subprocess` use them.

    Return None in this process. In a spare, return the launch to become, and the descriptors.
    """
    waiting = deque[Spare]()
    for _ in range(count):
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if not pid:
            # Only the end of this connection, when its parent ends, stops a spare.
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            for connection in (ours, *(spare.connection for spare in waiting)):
                connection.close()
            data, descriptors, _, _ = socket.recv_fds(theirs, REQUEST_LIMIT, MOST_DESCRIPTORS)
            if not data:
                os._exit(0)
            return Launch.from_json(data), descriptors
        theirs.close()
        waiting.append(Spare(pid, ours))
    if waiting:
        # There is no public hook through which all programs of a process are started.
        module: Any = subprocess
        module._USE_POSIX_SPAWN = False
        module._fork_exec = _Starter(waiting, module._fork_exec)
    return None


@dataclass(frozen=True, slots=True)
class Spare:
    """A waiting process."""

    pid: int
    connection: socket.socket

    def use(self, launch: Launch, descriptors: Sequence[int]) -> bool:
        """Make it become that process. Return whether it still lives."""
        try:
            socket.send_fds(self.connection, [launch.to_json()], descriptors)
        except (BrokenPipeError, ConnectionResetError):
            os.waitpid(self.pid, 0)
            return False
        finally:
            self.connection.close()
        return True


class _Starter:
    """Replaces ``subprocess._fork_exec``."""

    def __init__(self, waiting: deque[Spare], start: Callable[..., int]) -> None:
        self._waiting = waiting
        self._start = start
        self._early = early(os.environ)

    def __call__(self, *arguments: Any) -> int:
        command, _, close_fds, kept, folder, environment, *pipes_and_more = arguments
        stdin, _, _, stdout, _, stderr, _, error_pipe = pipes_and_more[:8]
        _, session, group, *identity = pipes_and_more[8:15]
        variables = dict(os.environ) if environment is None else _variables(environment)
        words = without_env([os.fsdecode(word) for word in command], variables)
        usual = close_fds and group == -1 and identity == [None, None, None, -1]
        if usual and words[0] == sys.executable and can_be_warm(words[1:]) and early(variables) == self._early:
            # Without a pipe, subprocess passes -1, and the child keeps its parent's descriptor.
            standard = {number: number if made == -1 else made for number, made in enumerate((stdin, stdout, stderr))}
            passed = standard | {number: number for number in kept if number != error_pipe}
            launch = Launch(
                arguments=tuple(words[1:]),
                folder=os.getcwd() if folder is None else os.fsdecode(folder),
                environment=variables,
                descriptors=tuple(passed),
                session=bool(session),
                blocked=tuple(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
                ignored=tuple(
                    number
                    for number in signal.valid_signals()
                    if number not in _PYTHONS_OWN and signal.getsignal(number) is signal.SIG_IGN
                ),
            )
            while self._waiting:
                spare = self._waiting.popleft()
                if spare.use(launch, list(passed.values())):
                    return spare.pid
        return self._start(*arguments)


def without_env(words: list[str], variables: dict[str, str]) -> list[str]:
    """Return the command after ``env NAME=VALUE...``, and add these variables to `variables`."""
    if words[0] != "env":
        return words
    for position, word in enumerate(words[1:], 1):
        name, given, value = word.partition("=")
        if not given:
            return words[position:]
        variables[name] = value
    return words


def _variables(environment: Sequence[bytes]) -> dict[str, str]:
    return dict(os.fsdecode(entry).split("=", 1) for entry in environment)
