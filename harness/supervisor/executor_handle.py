"""One executor as its supervisor sees it: messages, deadline, exit, and the one kill ladder."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from harness.backends.backend import Kind
from harness.checks.process import describe_stuck
from harness.errors import writing
from harness.protocol.exit_status import EXIT_HARNESS_ERROR
from harness.protocol.reports import Failure, unpack_failure
from harness.protocol.wire import Channel, Message, ProtocolError
from harness.scheduling.stop_request import StoppedError
from harness.zygote.client import START_LIMIT, ZygoteClient, ZygoteError

#: The kill ladder: signals in order, each with the seconds to wait for the end before the next.
LADDER = ((signal.SIGTERM, 2.0), (signal.SIGKILL, 10.0))
#: Seconds that an executor may leave a request unread which does not fit into the socket: it waits for nothing else.
SEND_LIMIT = 30.0
_OUTPUT_KEPT = 1 << 20
#: Seconds that one look for messages may take: poll refuses a month, which is a fair limit for a case all the same.
_LONGEST_POLL = 3600.0


class NoMessage(Enum):
    """Why waiting for a message ended without one."""

    EXITED = "exited"
    DEADLINE = "deadline"
    GARBLED = "garbled"


class OutputFile:
    """A file that takes an executor's output. A file, since a pipe could fill up, or be held open by a grandchild.

    Opened for appending, so that it can be emptied between two cases whoever still writes to it.
    """

    def __init__(self) -> None:
        descriptor, name = tempfile.mkstemp(prefix="harness-output-")
        os.close(descriptor)
        self.descriptor = os.open(name, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        os.unlink(name)

    def size(self) -> int:
        """Bytes written so far."""
        return os.fstat(self.descriptor).st_size

    def read(self, start: int, end: int, limit: int) -> str:
        """The text from byte `start` to `end`; of more than `limit` bytes, head and tail."""
        length = max(0, end - start)
        if length <= limit:
            return _text(os.pread(self.descriptor, length, start))
        half = limit // 2
        head, tail = os.pread(self.descriptor, half, start), os.pread(self.descriptor, half, end - half)
        return f"{_text(head)}\n[… {length - 2 * half} bytes cut …]\n{_text(tail)}"

    def lines(self, start: int) -> list[bytes]:
        """All whole lines from byte `start`; a last one that a killed writer left unfinished is dropped."""
        return os.pread(self.descriptor, self.size() - start, start).split(b"\n")[:-1]

    def empty(self) -> None:
        """Drop all that was written."""
        os.ftruncate(self.descriptor, 0)

    def trimmed(self, limit: int) -> int:
        """The size, after emptying the file if it is larger than `limit` bytes."""
        size = self.size()
        if size > limit:
            self.empty()
            return 0
        return size

    def close(self) -> None:
        os.close(self.descriptor)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "backslashreplace")


class Outputs:
    """The files of an executor: standard output and error, the stacks that faulthandler writes, and the facts.

    Facts are messages about a case that is not over: nobody has to hear them at once, but they must survive a crash.
    """

    def __init__(self) -> None:
        self.out, self.err, self.stacks, self.facts = (OutputFile() for _ in range(4))

    @property
    def _all(self) -> tuple[OutputFile, ...]:
        return self.out, self.err, self.stacks, self.facts

    def descriptors(self) -> tuple[int, ...]:
        """What an executor is given, in this order."""
        return tuple(file.descriptor for file in self._all)

    def empty(self) -> None:
        """Empty all of them."""
        for file in self._all:
            file.empty()

    def close(self) -> None:
        for file in self._all:
            file.close()


@dataclass(frozen=True, slots=True)
class Binding:
    """What an executor is given: devices (by UUID), environment, and what to say of the xdist worker it serves.

    `kind` is that of the devices; for software devices `library` is the backend to load. `leak_check` is
    ``--leak-check``: off, fast or full.
    """

    devices: tuple[str, ...]
    kind: Kind
    environment: Mapping[str, str | None]
    workerinput: Mapping[str, object] | None
    leak_check: str
    library: str | None = None


class ExecutorHandle:
    """An executor that lives, until `exit` says how it ended."""

    def __init__(
        self, name: str, link: ZygoteClient, outputs: Outputs, binding: Binding, temp: Path, kept: Path
    ) -> None:
        """Have it forked; `temp` becomes its folder for temporary files, which may be moved to `kept` at its end.

        Raises ZygoteError.
        """
        self.name = name
        self.binding = binding
        self.outputs = outputs
        self.cases: list[str] = []
        self.exit_status: int | None = None
        self.swept: list[str] = []
        self.stuck: list[str] = []
        self.unkillable = False
        #: Why nothing is known of its end, where its zygote was lost.
        self.lost = ""
        self.garbled = ""
        #: What the harness's own code raised in it. It then ends.
        self.harness_error: Failure | None = None
        self.teardown_error = ""
        self.grown: dict[str, int] = {}
        self.temp = temp
        self.kept = kept
        self._link = link
        outputs.empty()
        self.marks = (0, 0)
        self._facts_start = 0
        self._spoke = False
        with writing(f"into {str(temp.parent)!r}"):
            temp.mkdir(mode=0o700, parents=True)
        ours, theirs = socket.socketpair()
        order: Message = {
            "executor": name,
            "env": dict(binding.environment),
            "temp": str(temp),
            "kind": binding.kind,
            "library": binding.library,
            "workerinput": binding.workerinput,
            "leak_check": binding.leak_check,
        }
        seconds, rest = divmod(SEND_LIMIT, 1.0)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), int(rest * 1e6)))
        self._channel = Channel(ours, f"executor {name}")
        with theirs:
            try:
                self.pid = link.spawn(order, [theirs.fileno(), *outputs.descriptors()])
            except ZygoteError:
                self.close()
                temp.rmdir()
                raise
        self._poll = select.poll()
        self._poll.register(ours, select.POLLIN)
        self._poll.register(link.channel, select.POLLIN)
        self._poll.register(link.stop, select.POLLIN)
        if link.cold:
            self._await_ready()

    def _await_ready(self) -> None:
        """Until a cold executor has collected; from then on the time is its cases'.

        Raises ZygoteError, StoppedError.
        """
        heard = self.receive(time.monotonic() + START_LIMIT)
        if heard == {"op": "ready"}:
            return
        if heard is NoMessage.DEADLINE:
            self.kill()
        how = f"was not ready after {START_LIMIT:g} s" if heard is NoMessage.DEADLINE else "ended before it was ready"
        said = f"the log ends with:\n{self._link.last_words()}"
        if self.harness_error is not None:
            said = f"the harness failed in it:\n{self.harness_error.traceback}"
        self.close()
        raise ZygoteError(f"executor {self.name}, started cold, {how}; {said}")

    def send(self, message: Message) -> None:
        """Send a request; when the executor is gone, or does not read, the next `receive` tells."""
        with contextlib.suppress(
            OSError
        ):  # `receive` sees the exit of a dead executor, and the deadline of a stuck one
            self._channel.send(message)

    def receive(self, deadline: float, *, heed_stop: bool = True) -> Message | NoMessage:
        """The next message, or why there is none by `deadline` (of `time.monotonic`). Raises ZygoteError.

        With `heed_stop`, raises StoppedError when the run is told to stop and the grace is over.
        """
        while True:
            stop = self._link.stop.heard() if heed_stop else None
            try:
                if (message := self._channel.pop()) is not None:
                    self._spoke = True
                    if message["op"] != "harness_error":
                        return message
                    self.harness_error = unpack_failure(message)
                    continue
                if self.exit_status is not None and self._channel.closed:
                    self._note_silent_end()
                    return NoMessage.EXITED
                now = time.monotonic()
                if stop is not None and stop.deadline <= now:
                    raise StoppedError(stop.text)
                remaining = (deadline if stop is None else min(deadline, stop.deadline)) - now
                if remaining <= 0:
                    return NoMessage.DEADLINE
                for descriptor, _ in self._poll.poll(min(remaining, _LONGEST_POLL) * 1000):
                    if descriptor == self._channel.fileno():
                        self._hear()
                    elif descriptor == self._link.channel.fileno():
                        self._link.pump()
                        self._note_exit()
                    else:
                        self._link.stop.heard()  # also where it is not heeded, so that the next poll waits
            except ProtocolError as error:
                self.garbled = str(error)
                return NoMessage.GARBLED

    def wait_exit(self, deadline: float) -> bool:
        """Wait for the end, whatever is said meanwhile. Raises ZygoteError."""
        while self.exit_status is None:
            happened = self.receive(deadline, heed_stop=False)
            if happened is NoMessage.DEADLINE:
                return False
        return True

    def kill(self) -> None:
        """The kill ladder, on the process group. Sets `unkillable` when nothing helps.

        A run that is to stop without grace begins with the last step. Raises ZygoteError, also where the zygote did not
        send the signals: that says nothing of the executor, and the zygote is killed.
        """
        stop = self._link.stop.heard()
        for number, grace in LADDER[-1:] if stop is not None and not stop.grace else LADDER:
            if self.exit_status is not None:
                return
            self._link.signal(self.name, number)
            if self.wait_exit(time.monotonic() + grace):
                return
        if not self._link.answers:
            raise self._link.give_up(f"kill executor {self.name}")
        self.unkillable = True
        self.stuck.append(f"executor {self.name} could not be killed: {describe_stuck(self.pid)}")

    def close(self) -> None:
        """Let go of the channel."""
        self._channel.close()

    def new_facts(self) -> list[bytes]:
        """The lines of facts about the case that runs, or ran last."""
        return self.outputs.facts.lines(self._facts_start)

    def trim_output(self) -> None:
        """Between two cases: forget what was about the last, and empty files that have grown big."""
        if self.outputs.stacks.size():
            self.outputs.stacks.empty()
        out, err, facts = (
            file.trimmed(_OUTPUT_KEPT) for file in (self.outputs.out, self.outputs.err, self.outputs.facts)
        )
        self.marks, self._facts_start = (out, err), facts

    def _hear(self) -> None:
        self._channel.receive()
        if self._channel.closed:
            self._poll.unregister(self._channel.socket)

    def _note_silent_end(self) -> None:
        """An executor that failed before it had a channel can tell by its exit status alone; a case may have any."""
        silent = not self._spoke and not self.outputs.facts.size()
        if self.exit_status == EXIT_HARNESS_ERROR and silent and self.harness_error is None:
            words = f"the zygote's log ends with:\n{self._link.last_words()}"
            self.harness_error = Failure("its executor ended before it could say why", words)

    def _note_exit(self) -> None:
        message = self._link.exit_of(self.name)
        if message is None:
            return
        self.exit_status = int(message["status"])
        self.swept = [str(command) for command in message["swept"]]
        left = f"executor {self.name} left what could not be killed"
        self.stuck += [f"{left}: {text}" for text in message["stuck"]]
        # All that it sent lies in the socket's buffer; a copy of its end that escaped the sweep must not keep us here.
        while not self._channel.closed and select.select([self._channel], [], [], 0)[0]:
            self._hear()
        self._channel.closed = True
