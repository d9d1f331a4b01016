"""Starts processes from a warm server, with an interface like that of `subprocess`."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

from tests.warm.launch import MARK, MARK_LENGTH, Launch, can_be_warm, early

ROOT = Path(__file__).parents[2]
#: The variable that makes all processes start cold, as a user starts them.
COLD = "TESTS_COLD"
#: The prefixes of variables that concern the session of these tests.
FOREIGN = ("HARNESS_", "PYTEST_", "COV_", "TORCH", "PYTHONUNBUFFERED")


class Process(Protocol):
    """The part of a process's interface that tests use. `subprocess.Popen` has it, too."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def send_signal(self, sig: int) -> None: ...
    def kill(self) -> None: ...


class WarmProcess:
    """A fork of the server. It stays a zombie until `poll` or `wait` has seen its end, as a child would."""

    def __init__(self, server: Server, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server
        self._end = os.pidfd_open(pid)

    def poll(self) -> int | None:
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        status = self._ended(timeout)
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        return status

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._end], [], [], timeout)[0]:
            self.returncode = self._server.ask(json.dumps({"reap": self.pid}).encode())
            os.close(self._end)
        return self.returncode


class Server:
    """A server of this process. It ends with this process."""

    def __init__(self, early_variables: Mapping[str, str]) -> None:
        """Start a server with `early_variables`, which its forks can no longer change. See `launch.early`."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
        others = {name: value for name, value in inherited.items() if name not in early(inherited)}
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm.server", str(theirs.fileno())],
                cwd=ROOT,
                env={**others, **early_variables, MARK: "0" * MARK_LENGTH},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                preexec_fn=restore_signals,
            )
        self.pid = self._process.pid

    def start(
        self,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        output: BinaryIO,
        errors: BinaryIO | None = None,
    ) -> int:
        """Start a Python with these arguments in its own session. Return the process id."""
        with open(os.devnull, "rb") as nothing:
            descriptors = [nothing.fileno(), output.fileno(), (errors or output).fileno()]
            launch = Launch(tuple(arguments), str(folder), dict(environment), (0, 1, 2), session=True)
            return self.ask(launch.to_json(), descriptors)

    def close(self) -> None:
        """End the server. Processes that it has started continue."""
        self._connection.close()
        self._process.wait()

    def ask(self, request: bytes, descriptors: Sequence[int] = ()) -> int:
        """Return the answer to a request."""
        socket.send_fds(self._connection, [request], descriptors)
        answer = self._connection.recv(1000)
        assert answer, "the warm server has ended: see its error output"
        return int(json.loads(answer))


class _Servers:
    """The servers of this process: one per set of early variables that occurred more than once."""

    def __init__(self) -> None:
        self._running: dict[frozenset[tuple[str, str]], Server] = {}
        self._seen = set[frozenset[tuple[str, str]]]()

    def find(self, environment: Mapping[str, str]) -> Server | None:
        """Return the server for processes with this environment; None if it occurs for the first time."""
        variables = early(environment)
        key = frozenset(variables.items())
        if key not in self._seen:
            self._seen.add(key)
            return None
        if key not in self._running:
            self._running[key] = Server(variables)
        return self._running[key]

    def all(self) -> list[Server]:
        return list(self._running.values())

    def close(self) -> None:
        """End all servers."""
        for server in self._running.values():
            server.close()
        self._running.clear()


SERVERS = _Servers()


def start(
    arguments: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    output: BinaryIO,
    errors: BinaryIO | None = None,
    *,
    cold: bool = False,
) -> Process:
    """Start a Python with these arguments in its own session. Without `errors`, both outputs go to `output`.

    It is a fork of a server, unless `cold`, or unless it is the first with such an environment.
    """
    if not cold and COLD not in os.environ and can_be_warm(arguments):
        server = SERVERS.find(environment)
        if server is not None:
            return WarmProcess(server, server.start(arguments, folder, environment, output, errors))
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors or subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=restore_signals,
    )


def run(
    arguments: Sequence[object],
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    timeout: float = 600.0,
) -> subprocess.CompletedProcess[str]:
    """Run a Python with these arguments to its end, as `subprocess.run` does with text, and keep both outputs.

    Kill the process and raise TimeoutExpired after `timeout` seconds.
    """
    words = [str(word) for word in arguments]
    variables = dict(os.environ if environment is None else environment)
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = start(words, folder or Path.cwd(), variables, output, errors)
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        texts = [_text(file) for file in (output, errors)]
    return subprocess.CompletedProcess([sys.executable, *words], status, *texts)


def _text(file: BinaryIO) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def restore_signals() -> None:
    """Restore the default actions. The parent may ignore signals, as nohup and a shell with background jobs do."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
