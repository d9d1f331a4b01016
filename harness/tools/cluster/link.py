"""The connection between the head and an agent: the messages, and the head's end, a child process with the streams."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from harness.core.errors import HarnessError
from harness.core.models import FiniteModel, first_problem
from harness.core.text import format_exit_code, last_error_line, single_line

# The protocol between the head of a cluster run and its agents: one JSON object per line, on the agent's own streams.
#
# Every message of an agent is validated here before use. Unknown kinds and fields are errors.

#: Maximum length of a line, in bytes. The ids of 100,000 cases fit.
LONGEST = 32 << 20
#: The version of this protocol. Head and agents must have the same version.
VERSION = 2
#: Seconds between two heartbeats, in both directions.
BEAT = 2.5

Text = Annotated[str, Field(max_length=4096)]
Number = Annotated[int, Field(ge=0, le=10_000_000)]
#: The position of a case, as a key.
Position = Annotated[str, Field(pattern="^[0-9]{1,8}$")]


class LinkProtocolError(HarnessError):
    """The other end sent a message that violates the protocol."""


# Messages of the head:


class Begin(FiniteModel):
    """The first message. The agent answers with `Hello` and the same token."""

    say: Literal["begin"] = "begin"
    version: int
    token: Text
    node: Text
    folder: str
    """The working folder of the pytest sessions."""
    run_dir: str
    """The head's run directory. The agent writes below it, if it has the same file system; see `proof`."""
    proof: str
    """The name of a file in the run directory: an agent that sees it has the head's file system."""
    arguments: tuple[str, ...]
    """Those of pytest."""
    variables: dict[str, str]
    grace: float = Field(ge=0)
    orphaned_after: float = Field(gt=0)
    """Seconds without a message from the head after which the agent stops its session."""


class Open(FiniteModel):
    """Start another session. `alone`: with one worker."""

    say: Literal["open"] = "open"
    alone: bool = False


class CaseMessage(FiniteModel):
    """A case to run. `avoid`: the UUID of a device on which it should not run."""

    case: Number
    avoid: Text = ""


class Give(FiniteModel):
    """Run these cases."""

    say: Literal["give"] = "give"
    cases: tuple[CaseMessage, ...]


class End(FiniteModel):
    """No more cases will come in this session."""

    say: Literal["end"] = "end"


class Quit(FiniteModel):
    """End. `stop`: running cases get the grace period; empty: the session runs to its end."""

    say: Literal["quit"] = "quit"
    stop: Text = ""
    now: bool = False


class Beat(FiniteModel):
    """A heartbeat, in both directions."""

    say: Literal["beat"] = "beat"


# Messages of an agent:


class Hello(FiniteModel):
    """The agent has started. `clock`: its time, in seconds since 1970."""

    say: Literal["hello"] = "hello"
    clock: Annotated[float, Field(ge=0, le=1e11)]
    version: Number
    token: Text
    host: Text
    pid: Number
    harness: Text


class Ready(FiniteModel):
    """A session has collected and accepts cases. `environment`: the text of its environment.json."""

    say: Literal["ready"] = "ready"
    session: Number
    folder: Text
    workers: Annotated[int, Field(ge=1, le=4096)]
    count: Number
    hash: Text
    seconds: tuple[Annotated[float, Field(ge=0, le=1e9)], ...]
    gated: dict[Position, Text]
    devices: Annotated[dict[Text, Text], Field(max_length=4096)]
    environment: Annotated[str, Field(max_length=4 << 20)]


class Want(FiniteModel):
    """The session can accept this many more cases."""

    say: Literal["want"] = "want"
    cases: Number


class Lines(FiniteModel):
    """New lines of the session's journal, unchanged."""

    say: Literal["lines"] = "lines"
    lines: tuple[str, ...]


class Done(FiniteModel):
    """The session has ended a case. All its lines have been sent."""

    say: Literal["done"] = "done"
    case: Number


class SessionOver(FiniteModel):
    """A session has ended. `output`: the end of its output, if it ended badly."""

    say: Literal["session_over"] = "session_over"
    status: Annotated[int, Field(ge=-255, le=255)]
    output: Annotated[str, Field(max_length=20_000)] = ""

    @property
    def last_line(self) -> str:
        """The most informative line of the output."""
        return last_error_line(self.output)


class Stopping(FiniteModel):
    """Another program, for example Slurm at the time limit, has asked the node to end."""

    say: Literal["stopping"] = "stopping"
    why: Text


class Bye(FiniteModel):
    """The last message: the agent has ended in order. An agent that is gone without this message was lost."""

    say: Literal["bye"] = "bye"
    sessions: Number
    cases: Number


ToAgent = Annotated[Begin | Open | Give | End | Quit | Beat, Field(discriminator="say")]
ToHead = Annotated[
    Hello | Ready | Want | Lines | Done | SessionOver | Stopping | Bye | Beat, Field(discriminator="say")
]
TO_AGENT: TypeAdapter[ToAgent] = TypeAdapter(ToAgent)
TO_HEAD: TypeAdapter[ToHead] = TypeAdapter(ToHead)


def encode_message(message: BaseModel) -> bytes:
    """Return the message as one line of ASCII."""
    data = message.model_dump_json(ensure_ascii=True).encode("ascii")
    return data + b"\n"


def to_head(line: bytes) -> ToHead:
    """Decode a message of an agent. Raise LinkProtocolError."""
    try:
        return TO_HEAD.validate_json(line)
    except ValidationError as error:
        raise LinkProtocolError(f"it sent {line[:80]!r}: {first_problem(error)}") from None


def to_agent(line: bytes) -> ToAgent:
    """Decode a message of the head. Raise LinkProtocolError."""
    try:
        return TO_AGENT.validate_json(line)
    except ValidationError as error:
        raise LinkProtocolError(f"the head sent {line[:80]!r}: {first_problem(error)}") from None


class LineBuffer:
    """Cuts a stream into lines. Raise LinkProtocolError for a line that is too long."""

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that are complete with this data, without their line feeds."""
        *lines, rest = data.split(b"\n")
        if lines:
            lines[0] = b"".join([*self._parts, lines[0]])
            self._parts, self._size = [], 0
        self._parts.append(rest)
        self._size += len(rest)
        if self._size > self._longest or any(len(line) > self._longest for line in lines):
            raise LinkProtocolError(f"it sent a line of over {self._longest >> 20} MiB")
        return lines


#: Maximum bytes before the first message of the agent: login banners.
_MOST_NOISE = 1 << 20
#: Maximum bytes that wait to be sent. An agent that leaves so much unread is lost.
_MOST_WAITING = 64 << 20
#: Seconds that the child has to end after it closed its output.
_END_LIMIT = 2.0
_BLOCK = 1 << 18
_TAIL = 4096


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
        self._waiting += encode_message(message)
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
                received.append(to_head(line))
            elif (hello := self._greeting(line)) is not None:
                self.greeted = True
                received.append(hello)
        return received

    def _greeting(self, line: bytes) -> Hello | None:
        self._noise += len(line)
        if self._noise > _MOST_NOISE:
            raise LinkProtocolError(f"it sent {self._noise >> 20} MiB before its first message")
        try:
            hello = to_head(line)
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
        return last_words(tail_of(self.log))

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


def tail_of(path: Path) -> str:
    """Return the end of a file."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL))
        return file.read().decode("utf-8", "backslashreplace")


def last_words(output: str) -> str:
    """Return the last line of an agent's standard error.

    srun adds that a task ``Exited with exit code 1``, whatever the reason was, so the last line of others comes first.
    """
    lines = [line for line in output.splitlines() if line.strip()]
    own = [line for line in lines if not line.startswith("srun: ")]
    return "; ".join(single_line(line, 300) for line in dict.fromkeys([*own[-1:], *lines[-1:]]))
