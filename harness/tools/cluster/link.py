"""The head's connection to one agent: a child process with the agent's standard streams."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from harness.core.text import format_exit_code, single_line
from harness.tools.cluster import messages
from harness.tools.cluster.messages import VERSION, Hello, LineBuffer, LinkProtocolError, ToHead

#: Maximum bytes before the first message of the agent: login banners.
_MOST_NOISE = 1 << 20
#: Maximum bytes that wait to be sent. An agent that leaves so much unread is lost.
_MOST_WAITING = 64 << 20
#: Seconds that the child has to end after it closed its output.
_END_LIMIT = 2.0
_BLOCK = 1 << 18


class Link:
    """A child process: srun, ssh, or the agent itself. `log`: the file for its standard error and that of the agent."""

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        """Start the child. Raise OSError."""
        self.name = name
        self.log = log
        self.token = secrets.token_hex(16)
        self.greeted = False
        self.got_bye = False
        self._program = command[0]
        self._noise = 0
        self._buffer = LineBuffer()
        self._waiting = bytearray()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True, bufsize=0
            )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.source, self.target = self.process.stdout.fileno(), self.process.stdin.fileno()
        os.set_blocking(self.source, False)
        os.set_blocking(self.target, False)

    def send(self, message: BaseModel) -> None:
        """Send a message, now or when the child reads again.

        Raise LinkProtocolError if the child does not read at all.
        """
        self._waiting += messages.encode_message(message)
        if len(self._waiting) > _MOST_WAITING:
            raise LinkProtocolError(f"it has not read {len(self._waiting) >> 20} MiB")
        self.flush()

    def flush(self) -> None:
        """Send waiting data, as far as the child reads it. If the child is gone, the end of its output shows it."""
        while self._waiting:
            try:
                sent = os.write(self.target, self._waiting[:_BLOCK])
            except BlockingIOError:
                return
            except OSError:
                self._waiting.clear()
                return
            del self._waiting[:sent]

    @property
    def waits(self) -> bool:
        """Whether data waits to be sent."""
        return bool(self._waiting)

    def receive(self) -> list[ToHead] | None:
        """Return the messages of the agent; None at the end of its stream. Raise LinkProtocolError.

        Output before the first message with the head's token is not from the agent, and is skipped.
        """
        try:
            data = os.read(self.source, _BLOCK)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            return None
        received: list[ToHead] = []
        for line in self._buffer.feed(data):
            if self.greeted:
                received.append(messages.to_head(line))
            elif (hello := self._greeting(line)) is not None:
                self.greeted = True
                received.append(hello)
        return received

    def _greeting(self, line: bytes) -> Hello | None:
        self._noise += len(line)
        if self._noise > _MOST_NOISE:
            raise LinkProtocolError(f"it sent {self._noise >> 20} MiB before its first message")
        try:
            hello = messages.to_head(line)
        except LinkProtocolError:
            return None
        if not isinstance(hello, Hello) or not secrets.compare_digest(hello.token.encode(), self.token.encode()):
            return None
        if hello.version != VERSION:
            raise LinkProtocolError(f"it uses version {hello.version} of the protocol, expected {VERSION}")
        return hello

    def end(self) -> str:
        """Wait for a child that has closed its output. Return how the child ended, with its last error line."""
        try:
            status = self.process.wait(_END_LIMIT)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"{self._program} closed the connection and did not end"
        words = self.last_output()
        return f"{self._program} ended with {format_exit_code(status)}{f': {words}' if words else ''}"

    def last_output(self) -> str:
        """Return the end of its standard error: the last line, and the one that srun's lines hide."""
        with self.log.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 4096))
            return last_words(file.read().decode("utf-8", "backslashreplace"))

    def kill(self) -> None:
        """Kill the child now. The agent notices that its connection is gone, and ends its session."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def close(self) -> None:
        """Close the streams. The agent then ends by itself; otherwise it is killed."""
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self.process.wait(_END_LIMIT)
        except subprocess.TimeoutExpired:
            self.kill()


def last_words(output: str) -> str:
    """Return the last line of an agent's standard error.

    srun adds that a task ``Exited with exit code 1``, whatever the reason was, so the last line of others comes first.
    """
    lines = [line for line in output.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith("srun: ")]
    return "; ".join(single_line(line, 300) for line in dict.fromkeys([*own[-1:], *lines[-1:]]))
