"""The supervisor's side of a zygote: starts the zygote, connects to it, and orders executors."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from harness.collection import description
from harness.core import clock, linux
from harness.core.errors import HarnessError, WriteError, convert_to_write_error
from harness.protocol.wire import Channel, Message, ProtocolError
from harness.scheduling.stop_request import StopListener, StoppedError
from harness.zygote.spec import COLLECTION_ENVIRONMENT, LOG_FOLLOWS, ZygoteSpec, openmp_wait_policy

#: Seconds for the start of a zygote, which imports torch and collects. This has been seen to take most of a minute on a
#: cold, busy machine.
START_LIMIT = 600.0
#: Seconds for the answer of a zygote that is ready. A fork takes milliseconds. Before a fork, the zygote waits at most
#: `harness.zygote.processes.KILL_PATIENCE` for the executors of a worker that died. The rest is for a busy machine.
ANSWER_LIMIT = 60.0
#: Seconds within which a killed zygote and its executors must be gone.
DEATH_LIMIT = 10.0
#: Seconds for which a failed fork is retried, if the machine or a limit allows no further process.
FORK_PATIENCE = 60.0
#: Seconds between two tries: the first pause, which then doubles each time, and the longest.
FORK_PAUSES = (0.05, 5.0)


class ZygoteError(HarnessError):
    """The zygote cannot be used: it did not start, must not be forked, or is gone."""


class NoZygoteError(ZygoteError):
    """No process listens: the zygote is gone, or never existed."""


class ZygoteUnfitError(ZygoteError):
    """The zygote collected, but must not be forked. Another zygote would have the same problem."""


class ForkRefusedError(ZygoteError):
    """The machine or a limit allows no further process. Another zygote would have the same problem."""


class ZygoteProcess:
    """A running zygote that this process started, and that ends on `close` or with this process."""

    def __init__(self, spec: ZygoteSpec, *, folder: Path, home: Path, log: Path) -> None:
        """Start the zygote in `folder` (the working folder of the run). Its output is appended to `log`.

        `home` is created for its socket; only this user may enter it.

        Return immediately: supervisors that connect early wait in the socket's queue. Raise WriteError, ZygoteError.
        """
        self.log = log
        self._home = home
        with convert_to_write_error(f"into {str(home.parent)!r}"):
            home.mkdir(mode=0o700)
        with convert_to_write_error(repr(str(log))):
            output = log.open("ab")
        self.address = str(self._home / "zygote")
        spec = replace(spec, description=str(description_file(self.address)))
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener, output:
            with _short(self.address) as address:
                listener.bind(address)
            listener.listen(128)
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "harness.zygote", str(listener.fileno())],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    pass_fds=(listener.fileno(),),
                    cwd=folder,
                    env={**os.environ, **openmp_wait_policy(os.environ), **COLLECTION_ENVIRONMENT, **spec.variables},
                    start_new_session=True,  # the supervisors handle a Ctrl-C at the terminal
                )
            except OSError as error:
                shutil.rmtree(self._home, ignore_errors=True)
                raise ZygoteError("no zygote can be started") from error
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(spec.to_json().encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise ZygoteError(f"the zygote ended at once, see {log}") from error

    def close(self) -> None:
        """End the zygote and all its executors.

        A zygote that still collects is killed immediately, with its child processes.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)  # ignored while serving; executors have other groups
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver blocks it; the run must end nevertheless
                self._process.wait(timeout=10)
        shutil.rmtree(self._home, ignore_errors=True)


def read_log_tail(log: Path) -> str:
    """Return the end of a zygote's log."""
    try:
        return log.read_text(errors="backslashreplace")[-2000:].strip()
    except OSError as error:
        return f"(its log cannot be read: {error.strerror})"


def early_end_text(log: Path) -> str:
    """Return the error text for a zygote that died before it was ready."""
    return f"the zygote is gone, see {log}; it ended before it was ready, and its log ends with:\n{read_log_tail(log)}"


def description_file(address: str) -> Path:
    """Return the file in which the zygote at `address` describes what it has collected."""
    return Path(address).with_name(description.DESCRIPTION_FILE)


@contextlib.contextmanager
def _short(address: str) -> Iterator[str]:
    """Yield a short path to the same socket.

    A socket path has at most 107 bytes, and temporary folders may be deeper.
    """
    folder = os.open(os.path.dirname(address), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(address)}"
    finally:
        os.close(folder)


class ZygoteClient:
    """A supervisor's connection to a zygote."""

    def __init__(
        self,
        address: str,
        log: Path,
        stop: StopListener,
        *,
        limit: float = START_LIMIT,
        on_wait: Callable[[str], None] | None = None,
    ) -> None:
        """Connect, and wait up to `limit` seconds until the zygote has collected.

        `stop` is the supervisor's listener, which all waits for the zygote or an executor watch. `on_wait` is called
        with a line of text when a fork fails and is retried. Raise ZygoteError, StoppedError, WriteError.
        """
        self.stop = stop
        self._log = log
        self._on_wait = on_wait
        self._inbox: deque[Message] = deque()
        self._ready = False
        self._unanswered = 0
        self._pidfd = -1
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.channel = Channel(connection, "the zygote")
        try:
            with _short(address) as short:
                connection.connect(short)
            hello = self._wait(("hello",), limit, watch_stop=True)
            if hello is None:
                raise ZygoteError(f"the zygote was not ready after {limit:g} s, see {log}")
            if hello["unwritten"]:
                raise WriteError(f"cannot write {str(log)!r}: {hello['unwritten']}")
            if hello["unfit"]:
                ending = f"\n{read_log_tail(self._log)}" if hello["unfit"].endswith(LOG_FOLLOWS) else ""
                raise ZygoteUnfitError(hello["unfit"] + ending)
            #: Why its executors start cold, or an empty string.
            self.cold = str(hello["cold"])
            seconds, rest = divmod(ANSWER_LIMIT, 1.0)
            connection.setsockopt(
                socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), int(rest * 1e6))
            )
            # The starter of the zygote reaps it at the end of the run. Until then its number cannot be reused.
            self._pidfd = os.pidfd_open(int(hello["pid"]))
        except OSError as error:
            connection.close()
            raise NoZygoteError(f"no zygote answers at {address!r}") from error
        except (ZygoteError, StoppedError, WriteError):
            connection.close()
            raise
        self._ready = True

    def spawn(self, order: Message, descriptors: Sequence[int]) -> int:
        """Fork an executor as `order` describes. Return its process id.

        A fork that fails for lack of processes, memory or descriptors is retried for `FORK_PATIENCE` seconds.
        Raise ForkRefusedError, ZygoteError, StoppedError.
        """
        begun, tries = clock.monotonic(), 0
        pause, longest = FORK_PAUSES
        while True:
            tries += 1
            self.order(order, descriptors)
            answer = self._answer(order["executor"])
            if answer["op"] == "spawned":
                return int(answer["pid"])
            waited = clock.monotonic() - begun
            why = f"could not {answer['what']} for executor {order['executor']}: {answer['error']} ({answer['text']})"
            if waited + pause > FORK_PATIENCE:
                raise ForkRefusedError(
                    f"the zygote {why}, tried {tries} times in {waited:.0f} s; look at the limits on processes and "
                    f"open files (`ulimit -u`, `ulimit -n`, pids.max of the control group) and at the free memory"
                )
            if tries == 1 and self._on_wait is not None:
                self._on_wait(f"the zygote {why}; it tries again for up to {FORK_PATIENCE:g} s")
            self._idle(pause)
            pause = min(2 * pause, longest)

    def order(self, order: Message, descriptors: Sequence[int]) -> None:
        """Request an executor without waiting for it; `spawned` waits. Raise ZygoteError."""
        self._send({"op": "spawn", **order}, descriptors)

    def spawned(self, executor: str) -> int:
        """Wait for a requested executor. Return its process id. Raise ForkRefusedError, ZygoteError."""
        answer = self._answer(executor)
        if answer["op"] == "refused":
            raise ForkRefusedError(f"the zygote could not {answer['what']} for executor {executor}: {answer['error']}")
        return int(answer["pid"])

    def signal(self, executor: str, number: int) -> None:
        """Signal an executor's process group. Raise ZygoteError."""
        self._send({"op": "kill", "executor": executor, "signal": number})
        self._unanswered += 1

    @property
    def answers(self) -> bool:
        """Whether the zygote has confirmed all requested signals, as of the last read."""
        return self._unanswered == 0

    def give_up(self, order: str) -> ZygoteError:
        """Kill the zygote, which has not answered an `order`. Return the error to raise.

        The zygote is stopped or hangs, and so cannot end its executors. The executors are killed too: one that
        continued would share its device with the next one.
        """
        with contextlib.suppress(ProcessLookupError):  # the zygote has just ended
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        select.select([self._pidfd], [], [], DEATH_LIMIT)
        return ZygoteError(f"the zygote did not answer the request to {order}, and was killed; see {self._log}")

    def pump(self) -> None:
        """Read the messages of the zygote; blocks until there is one. Raise ZygoteError if the zygote is gone."""
        try:
            self.channel.receive()
            while (message := self.channel.pop()) is not None:
                if message["op"] == "signalled":
                    self._unanswered -= 1
                else:
                    self._inbox.append(message)
        except ProtocolError as error:
            raise ZygoteError("the zygote sent an invalid message") from error
        if self.channel.closed:  # earlier messages have been read
            raise self._gone()

    def exit_of(self, executor: str) -> Message | None:
        """Return the message about an executor's exit, if it has arrived."""
        for message in self._inbox:
            if message["op"] == "exit" and message["executor"] == executor:
                self._inbox.remove(message)
                return message
        return None

    def close(self) -> None:
        """Disconnect. The zygote then ends this supervisor's executors."""
        self.channel.close()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def last_output(self) -> str:
        """Return the end of the zygote's log. Cold executors write to it too, until they are ready."""
        return read_log_tail(self._log)

    def _answer(self, executor: str) -> Message:
        """Return the answer to an order: the executor was spawned, or why it was refused. Raise ZygoteError."""
        answer = self._wait(("spawned", "refused"), ANSWER_LIMIT, executor=executor)
        if answer is None:
            raise self.give_up(f"fork executor {executor} within {ANSWER_LIMIT:g} s")
        return answer

    def _send(self, message: Message, descriptors: Sequence[int] = ()) -> None:
        try:
            self.channel.send(message, descriptors)
        except BlockingIOError as error:
            raise self.give_up(f"read an order to {message['op']} within {ANSWER_LIMIT:g} s") from error
        except OSError as error:
            raise self._gone() from error

    def _wait(
        self, kinds: Sequence[str], seconds: float, *, executor: str | None = None, watch_stop: bool = False
    ) -> Message | None:
        """Return the next message of one of these kinds, or None if none comes in time. Other messages are kept.

        With `executor`, only messages about that executor count. With `watch_stop`, raise StoppedError after a request
        to stop the run.
        """
        deadline = clock.monotonic() + seconds
        while True:
            for message in self._inbox:
                if message["op"] in kinds and (executor is None or message["executor"] == executor):
                    self._inbox.remove(message)
                    return message
            if not self._readable(deadline, watch_stop=watch_stop):
                return None
            self.pump()

    def _idle(self, seconds: float) -> None:
        """Wait, while reading messages of the zygote. Raise StoppedError."""
        deadline = clock.monotonic() + seconds
        while self._readable(deadline, watch_stop=True):
            self.pump()

    def _readable(self, deadline: float, *, watch_stop: bool) -> bool:
        """Wait for a message of the zygote. Return False if none came by `deadline`."""
        poll = select.poll()
        poll.register(self.channel, select.POLLIN)
        if watch_stop:
            poll.register(self.stop, select.POLLIN)
        while True:
            if watch_stop:
                self.stop.refuse()
            ready = [descriptor for descriptor, _ in poll.poll(max(0.0, deadline - clock.monotonic()) * 1000)]
            if self.channel.fileno() in ready or not ready:
                return bool(ready)

    def _gone(self) -> ZygoteError:
        linux.wait_for_dying_parent()  # the end of the run's controller ends the zygote, and is no fault of the zygote
        return ZygoteError(f"the zygote is gone, see {self._log}" if self._ready else early_end_text(self._log))
