"""The supervisor's side of a zygote: start one, connect to one, have executors forked by it."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.errors import HarnessError, WriteError, writing
from harness.protocol.wire import Channel, Message, ProtocolError
from harness.scheduling.stop_request import StopListener, StoppedError
from harness.zygote.spec import COLLECTION_ENVIRONMENT, ZygoteSpec, waiting

#: A zygote imports torch and collects; on a cold, busy machine that has been seen to take most of a minute.
START_LIMIT = 600.0


class ZygoteError(HarnessError):
    """The zygote cannot be used: it did not start, must not be forked, or is gone."""


class ZygoteUnfitError(ZygoteError):
    """The zygote collected, but must not serve; another one would be the same."""


class ZygoteProcess:
    """A running zygote that this process started. It ends when `close` is called, or when this process does."""

    def __init__(self, spec: ZygoteSpec, *, folder: Path, home: Path, log: Path) -> None:
        """Start it in `folder` (the working folder of the run), its output appended to `log`.

        `home` becomes a folder for its socket that only this user may enter.

        Returns at once: supervisors that connect early wait in the socket's queue. Raises WriteError.
        """
        self.log = log
        self._home = home
        with writing(f"into {str(home.parent)!r}"):
            home.mkdir(mode=0o700)
        with writing(repr(str(log))):
            output = log.open("ab")
        self.address = str(self._home / "zygote")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, output:
            with _short(self.address) as address:
                listener.bind(address)
            listener.listen(128)
            self._process = subprocess.Popen(
                [sys.executable, "-m", "harness.zygote", str(listener.fileno())],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=(listener.fileno(),),
                cwd=folder,
                env={**os.environ, **waiting(os.environ), **COLLECTION_ENVIRONMENT},
                start_new_session=True,  # a Ctrl-C at the terminal is the supervisors' to handle
            )
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(spec.to_json().encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise ZygoteError(f"the zygote ended at once, see {log}") from error

    def close(self) -> None:
        """End it and all its executors."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._home, ignore_errors=True)


@contextlib.contextmanager
def _short(address: str) -> Iterator[str]:
    """Another path to the same socket: one has at most 107 bytes, and folders for temporary files may be deeper."""
    folder = os.open(os.path.dirname(address), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(address)}"
    finally:
        os.close(folder)


class ZygoteClient:
    """A supervisor's connection to a zygote."""

    def __init__(self, address: str, log: Path, stop: StopListener) -> None:
        """Connect, and wait until the zygote has collected. Raises ZygoteError, StoppedError, WriteError.

        `stop` is the supervisor's, for whoever waits for the zygote or for what it has forked.
        """
        self.stop = stop
        self._log = log
        self._inbox: deque[Message] = deque()
        self._ready = False
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.channel = Channel(connection, "the zygote")
        try:
            with _short(address) as short:
                connection.connect(short)
            hello = self._await_hello()
            if hello["unwritten"]:
                raise WriteError(f"cannot write {str(log)!r}: {hello['unwritten']}")
            if hello["unfit"]:
                raise ZygoteUnfitError(hello["unfit"])
            #: Why its executors start cold, or an empty text.
            self.cold = str(hello["cold"])
        except TimeoutError as error:
            connection.close()
            raise ZygoteError(f"the zygote was not ready after {START_LIMIT:g} s, see {log}") from error
        except OSError as error:
            connection.close()
            raise ZygoteError(f"no zygote answers at {address!r}") from error
        except (ZygoteError, StoppedError, WriteError):
            connection.close()
            raise
        self._ready = True

    def _await_hello(self) -> Message:
        """What the zygote says when it is ready. Raises TimeoutError, ZygoteError, StoppedError."""
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        poll.register(self.stop, select.POLLIN)
        deadline = time.monotonic() + START_LIMIT
        while not self._inbox:
            self.stop.refuse()
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError
            if any(descriptor == self.channel.fileno() for descriptor, _ in poll.poll(remaining * 1000)):
                self.pump()
        return self.wait("hello")

    def spawn(self, order: Message, descriptors: Sequence[int]) -> int:
        """Fork an executor as `order` describes; returns its process id. Raises ZygoteError."""
        try:
            self.channel.send({"op": "spawn", **order}, descriptors)
        except OSError as error:
            raise self._gone() from error
        return int(self.wait("spawned")["pid"])

    def signal(self, executor: str, number: int) -> None:
        """Signal an executor's process group. Raises ZygoteError."""
        try:
            self.channel.send({"op": "kill", "executor": executor, "signal": number})
        except OSError as error:
            raise self._gone() from error

    def wait(self, op: str) -> Message:
        """Block until a message of this kind comes; others are kept. Raises ZygoteError when the zygote goes."""
        while True:
            for message in self._inbox:
                if message["op"] == op:
                    self._inbox.remove(message)
                    return message
            self.pump()

    def pump(self) -> None:
        """Read what the zygote has said into the inbox, blocking for something. Raises ZygoteError when it is gone."""
        try:
            self.channel.receive()
            while (message := self.channel.pop()) is not None:
                self._inbox.append(message)
        except ProtocolError as error:
            raise ZygoteError("the zygote cannot be understood") from error
        if self.channel.closed and not self._inbox:
            raise self._gone()

    def exit_of(self, executor: str) -> Message | None:
        """The message that tells of an executor's end, if it has come."""
        for message in self._inbox:
            if message["op"] == "exit" and message["executor"] == executor:
                self._inbox.remove(message)
                return message
        return None

    def close(self) -> None:
        """Disconnect; the zygote then ends our executors."""
        self.channel.close()

    def last_words(self) -> str:
        """The end of the zygote's log, where cold executors write too until they are ready."""
        try:
            return self._log.read_text(errors="backslashreplace")[-2000:].strip()
        except OSError as error:
            return f"(its log cannot be read: {error.strerror})"

    def _gone(self) -> ZygoteError:
        text = f"the zygote is gone, see {self._log}"
        if self._ready:
            return ZygoteError(text)
        return ZygoteError(f"{text}; before it was ready it said:\n{self.last_words()}")
