"""A supervisor's side of a zygote, with a fake zygote that answers as a test wants, or not at all."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from harness.protocol.wire import Channel, Message, encode_message
from harness.scheduling.stop_request import StopListener
from harness.zygote import client as clients
from harness.zygote.client import (
    ForkRefusedError,
    NoZygoteError,
    ZygoteClient,
    ZygoteError,
    ZygoteUnfitError,
    early_end_text,
)
from harness.zygote.server import ORDER_DESCRIPTORS

HELLO = {"op": "hello", "pid": 0, "unfit": "", "cold": "", "unwritten": ""}
SPAWNED = {"op": "spawned", "executor": "a", "pid": 7}
REFUSED = {"op": "refused", "executor": "a", "what": "fork", "error": "EAGAIN", "text": os.strerror(errno.EAGAIN)}
EXIT = {"op": "exit", "executor": "old", "status": 0, "swept": [], "stuck": []}


class FakeZygote:
    """Sends a greeting, then an answer to each message, and hangs up when it has no more answers.

    An answer is a list of messages or of bytes; an empty one is silence.
    """

    def __init__(self, folder: Path, greeting: Sequence[Message], answers: Sequence[Sequence[Message | bytes]]) -> None:
        self.received: list[Message] = []
        self.address = str(folder / "zygote")
        self.log = folder / "zygote.log"
        self.log.write_text("its last words\n")
        self._greeting = greeting
        self._answers = list(answers)
        #: While cleared, it does not read.
        self.reading = threading.Event()
        self.reading.set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.address)
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        channel = Channel(connection, "a supervisor")
        for message in self._greeting:
            channel.send(message)
        while self._greeting and self._answers:
            while (received := channel.pop()) is None:
                self.reading.wait()
                channel.receive(max_fds=ORDER_DESCRIPTORS)
                if channel.closed:
                    break
            if received is None:
                break
            self.received.append(received)
            for answer in self._answers.pop(0):
                connection.sendall(answer if isinstance(answer, bytes) else encode_message(answer))
        if not self._greeting:  # it never gets ready: wait until the other end gives up
            channel.receive()
        channel.close()

    def close(self) -> None:
        """Wait for its end: the test must have closed the client."""
        self.reading.set()
        self._thread.join()
        self._listener.close()


Connect = Callable[..., tuple[FakeZygote, ZygoteClient]]


@pytest.fixture
def stop(tmp_path: Path) -> Iterator[StopListener]:
    listener = StopListener(tmp_path / "stop", "gw0")
    yield listener
    listener.close()


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Yield the process that a fake zygote presents as its own. It is stopped, as one that does not answer may be."""
    with subprocess.Popen(["sleep", "600"]) as started:
        started.send_signal(signal.SIGSTOP)
        yield started
        started.kill()


@pytest.fixture
def connect(tmp_path: Path, stop: StopListener, process: subprocess.Popen[bytes]) -> Iterator[Connect]:
    made: list[tuple[FakeZygote, ZygoteClient]] = []

    def connect(
        *answers: Sequence[Message | bytes], on_wait: Callable[[str], None] | None = None
    ) -> tuple[FakeZygote, ZygoteClient]:
        zygote = FakeZygote(tmp_path, [{**HELLO, "pid": process.pid}], answers)
        made.append((zygote, ZygoteClient(zygote.address, zygote.log, stop, on_wait=on_wait)))
        return made[-1]

    yield connect
    for zygote, client in made:
        client.close()
        zygote.close()


def _spawn(client: ZygoteClient) -> int:
    with open(os.devnull) as file:
        return client.spawn({"executor": "a"}, [file.fileno()] * ORDER_DESCRIPTORS)


def test_an_executor_is_ordered(connect: Connect) -> None:
    zygote, client = connect([EXIT, SPAWNED], [])
    assert _spawn(client) == 7
    assert zygote.received == [{"op": "spawn", "executor": "a"}]
    assert client.exit_of("a") is None
    assert client.exit_of("old") == EXIT
    assert client.exit_of("old") is None


def test_executors_that_are_not_waited_for_are_distinguished(connect: Connect) -> None:
    first, second = {**SPAWNED, "executor": "b", "pid": 8}, {**REFUSED, "executor": "c"}
    _, client = connect([], [], [second, first, SPAWNED], [])
    with open(os.devnull) as file:
        for name in "bc":
            client.order({"executor": name}, [file.fileno()] * ORDER_DESCRIPTORS)
    assert _spawn(client) == 7
    assert client.spawned("b") == 8
    with pytest.raises(ForkRefusedError, match="the zygote could not fork for executor c: EAGAIN"):
        client.spawned("c")


def test_one_that_must_not_be_forked_is_refused(tmp_path: Path, stop: StopListener) -> None:
    zygote = FakeZygote(tmp_path, [{**HELLO, "unfit": "it has threads"}], [])
    with pytest.raises(ZygoteUnfitError, match="it has threads"):
        ZygoteClient(zygote.address, zygote.log, stop)
    zygote.close()


def test_one_that_does_not_get_ready_is_given_up(tmp_path: Path, stop: StopListener) -> None:
    zygote = FakeZygote(tmp_path, [], [])
    with pytest.raises(ZygoteError, match=r"was not ready after 0\.01 s, see .*zygote\.log"):
        ZygoteClient(zygote.address, zygote.log, stop, limit=0.01)
    zygote.close()


def test_nobody_listens(tmp_path: Path, stop: StopListener) -> None:
    with pytest.raises(NoZygoteError, match="no zygote answers at"):
        ZygoteClient(str(tmp_path / "zygote"), tmp_path / "log", stop)


def test_one_that_goes_before_it_is_ready_has_last_words(tmp_path: Path, stop: StopListener) -> None:
    zygote = FakeZygote(tmp_path, [EXIT], [])
    with pytest.raises(
        ZygoteError, match="it ended before it was ready, and its log ends with:\nits last words"
    ) as found:
        ZygoteClient(zygote.address, zygote.log, stop)
    assert str(found.value) == early_end_text(zygote.log)
    zygote.close()


def test_a_refused_fork_is_tried_again(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "FORK_PAUSES", (0.001, 0.002))
    reported: list[str] = []
    zygote, client = connect([REFUSED], [REFUSED, EXIT], [REFUSED], [SPAWNED], [], on_wait=reported.append)
    assert _spawn(client) == 7
    assert len(zygote.received) == 4
    assert reported == [
        "the zygote could not fork for executor a: EAGAIN (Resource temporarily unavailable); it tries again for up "
        "to 60 s"
    ]
    assert client.exit_of("old") == EXIT


def test_a_fork_that_is_refused_for_too_long(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "FORK_PAUSES", (0.001, 0.001))
    monkeypatch.setattr(clients, "FORK_PATIENCE", 0.0)
    _, client = connect([REFUSED], [])
    with pytest.raises(ForkRefusedError) as caught:
        _spawn(client)
    text = str(caught.value)
    assert text.startswith("the zygote could not fork for executor a: EAGAIN (Resource temporarily unavailable)")
    assert "tried 1 times in 0 s" in text
    for clue in ("`ulimit -u`", "pids.max", "memory"):
        assert clue in text


def test_a_zygote_that_goes_while_a_fork_is_to_be_tried_again(connect: Connect) -> None:
    _, client = connect([REFUSED])
    with pytest.raises(ZygoteError, match="the zygote is gone"):
        _spawn(client)


def test_a_zygote_that_does_not_answer_is_killed(
    connect: Connect, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "ANSWER_LIMIT", 0.01)
    _, client = connect([], [])
    text = r"did not answer the request to fork executor a within 0\.01 s, and was killed; see .*zygote\.log"
    with pytest.raises(ZygoteError, match=text):
        _spawn(client)
    assert process.wait() == -signal.SIGKILL


def test_a_zygote_that_reads_nothing_is_killed(
    connect: Connect, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clients, "ANSWER_LIMIT", 0.2)
    zygote, client = connect([], [])
    zygote.reading.clear()
    order = {"executor": "a", "env": {"LONG": "x" * (4 << 20)}}
    with open(os.devnull) as file, pytest.raises(ZygoteError, match="request to read an order to spawn"):
        client.spawn(order, [file.fileno()] * ORDER_DESCRIPTORS)
    assert process.wait() == -signal.SIGKILL


def test_a_zygote_that_has_ended_when_it_is_given_up(connect: Connect, process: subprocess.Popen[bytes]) -> None:
    _, client = connect([])
    process.kill()
    process.wait()
    assert "request to kill executor a" in str(client.give_up("kill executor a"))


@pytest.mark.parametrize(
    ("answer", "text"), [([b"garbage\n"], "sent an invalid message"), ([EXIT], "the zygote is gone"), ([], "is gone")]
)
def test_an_order_that_is_answered_with_something_else(
    connect: Connect, answer: list[Message | bytes], text: str
) -> None:
    _, client = connect(answer)
    with pytest.raises(ZygoteError, match=text):
        _spawn(client)


def test_a_signal_is_answered(connect: Connect) -> None:
    zygote, client = connect([{"op": "signalled", "executor": "a"}, EXIT], [])
    assert client.answers
    client.signal("a", 9)
    assert not client.answers
    while client.exit_of("old") is None:
        client.pump()
    assert client.answers
    assert zygote.received == [{"op": "kill", "executor": "a", "signal": 9}]
