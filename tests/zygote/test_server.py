"""The fork server with fake processes: its messages to each supervisor, and that none waits for another."""

from __future__ import annotations

import errno
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import pytest

from harness.checks.process import FORK_OF_CASE
from harness.protocol.wire import Channel, Message
from harness.zygote.processes import CLEANER_PATIENCE, KILL_PATIENCE, REAP_PAUSE
from harness.zygote.server import ACCEPT_PAUSE, ORDER_DESCRIPTORS, ForkServer
from tests.zygote.fakes import FakeProcesses, no_room


class FullSocket(socket.socket):
    """A listening socket of a process that runs out of descriptors as often as `refusals` says."""

    refusals = 0

    def accept(self) -> tuple[socket.socket, object]:
        if self.refusals:
            self.refusals -= 1
            raise no_room(errno.EMFILE)
        return super().accept()


def _become(order: Message, descriptors: Sequence[int]) -> NoReturn:
    raise AssertionError(f"a fake fork has no child: {order}, {descriptors}")


class Bench:
    """A fork server, its clock and its processes, and supervisors that talk to it."""

    def __init__(self, folder: Path, **words: str) -> None:
        self.now = 1000.0
        self.processes = FakeProcesses()
        self.listener = FullSocket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._address = str(folder / "zygote")
        self.listener.bind(self._address)
        self.listener.listen()
        life_line, self.life_line = os.pipe()
        self._life_line = life_line
        self.server = ForkServer(
            _become, self.listener, life_line=life_line, processes=self.processes, clock=lambda: self.now, **words
        )
        self._channels: list[Channel] = []

    def knock(self) -> Channel:
        """Connect without being accepted."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(60)
        connection.connect(self._address)
        self._channels.append(Channel(connection, "the zygote"))
        return self._channels[-1]

    def connect(self) -> Channel:
        """Return a supervisor's channel that has received the greeting."""
        channel = self.knock()
        self.server.turn()
        assert self.receive(channel)["op"] == "hello"
        return channel

    def order(self, channel: Channel, name: str, descriptors: int = ORDER_DESCRIPTORS) -> int:
        """Order an executor; return a descriptor that reports when all descriptors of the order are closed."""
        reader, writer = os.pipe()
        channel.send({"op": "spawn", "executor": name}, [writer] * descriptors)
        os.close(writer)
        self.server.turn()
        return reader

    def spawn(self, channel: Channel, name: str) -> int:
        """Start an executor; return its process id."""
        os.close(self.order(channel, name))
        answer = self.receive(channel)
        assert (answer["op"], answer["executor"]) == ("spawned", name)
        return int(answer["pid"])

    def end(self, pid: int, code: int = 0) -> None:
        """End a process, and let the server see it."""
        self.processes.end(pid, code)
        self.server.turn()

    def wait(self, seconds: float) -> None:
        """Advance the time by this many seconds."""
        self.now += seconds
        self.server.turn()

    def receive(self, channel: Channel) -> Message:
        """Return the next message, which must have been sent."""
        while (message := channel.pop()) is None:
            channel.receive()
            assert not channel.closed, "the server has hung up"
        return message

    def silent(self, channel: Channel) -> bool:
        """Return whether nothing was sent, and the connection is open."""
        channel.socket.setblocking(False)
        try:
            channel.receive()
        except BlockingIOError:
            return channel.pop() is None
        finally:
            channel.socket.settimeout(60)
        return False

    def hung_up(self, channel: Channel) -> bool:
        channel.receive()
        return channel.closed

    def close(self) -> None:
        for channel in self._channels:
            channel.close()
        self.processes.close()
        os.close(self.life_line)
        self.server.close()
        self.listener.close()
        os.close(self._life_line)


Make = Callable[..., Bench]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Bench] = []

    def make(**words: str) -> Bench:
        made.append(Bench(tmp_path, **words))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def bench(make: Make) -> Bench:
    return make()


def test_it_greets_with_what_hinders_it(make: Make) -> None:
    bench = make(unfit="it has threads", cold="--start=cold")
    channel = bench.knock()
    bench.server.turn()
    assert bench.receive(channel) == {
        "op": "hello",
        "pid": os.getpid(),
        "unfit": "it has threads",
        "cold": "--start=cold",
        "unwritten": "",
    }


def test_each_supervisor_hears_of_its_own_executors(bench: Bench) -> None:
    first, second = bench.connect(), bench.connect()
    mine, other = bench.spawn(first, "a"), bench.spawn(second, "b")
    bench.end(other, -11)
    assert bench.receive(second) == {"op": "exit", "executor": "b", "status": -11, "swept": [], "stuck": []}
    bench.end(mine)
    assert bench.receive(first)["status"] == 0
    assert bench.silent(first)
    assert bench.silent(second)


def test_signals_go_to_the_group_and_are_answered(bench: Bench) -> None:
    channel = bench.connect()
    pid = bench.spawn(channel, "a")
    for name in ("a", "unknown"):
        channel.send({"op": "kill", "executor": name, "signal": signal.SIGTERM})
        bench.server.turn()
        assert bench.receive(channel) == {"op": "signalled", "executor": name}
    assert bench.processes.signals == [(pid, signal.SIGTERM)]


def test_an_executor_of_another_supervisor_cannot_be_killed(bench: Bench) -> None:
    first, second = bench.connect(), bench.connect()
    bench.spawn(first, "a")
    second.send({"op": "kill", "executor": "a", "signal": signal.SIGKILL})
    bench.server.turn()
    assert bench.receive(second)["op"] == "signalled"
    assert bench.processes.signals == []


@pytest.mark.parametrize(
    "data",
    [
        b"garbage\n",
        b'{"op":"dance"}\n',
        b'{"op":"kill"}\n',
        b'{"op":"kill","executor":3,"signal":9}\n',
        b'{"op":"kill","executor":"a","signal":-1}\n',
        b'{"op":"spawn"}\n',
        b'{"op":"spawn","executor":"b"}\n',
    ],
)
def test_only_a_client_with_an_invalid_message_is_dropped(
    bench: Bench, data: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = bench.connect(), bench.connect()
    mine, its = bench.spawn(good, "a"), bench.spawn(bad, "a")
    bad.socket.sendall(data)
    bench.server.turn()
    assert bench.hung_up(bad)
    assert "a supervisor sent" in capsys.readouterr().err
    bench.server.turn()  # the end of its executor
    assert bench.processes.reaped == [its]
    bench.end(mine)
    assert bench.receive(good)["op"] == "exit"


def test_too_few_descriptors_are_closed(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    channel = bench.connect()
    reader = bench.order(channel, "a", descriptors=2)
    assert bench.hung_up(channel)
    assert os.read(reader, 1) == b""
    os.close(reader)
    assert "sent 2 descriptors, expected 6" in capsys.readouterr().err


# No room for another process


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.ENOMEM])
def test_a_fork_that_fails_is_answered(bench: Bench, code: int) -> None:
    channel = bench.connect()
    bench.processes.fork_errors.append(no_room(code))
    reader = bench.order(channel, "a")
    assert bench.receive(channel) == {
        "op": "refused",
        "executor": "a",
        "what": "fork",
        "error": errno.errorcode[code],
        "text": os.strerror(code),
    }
    assert os.read(reader, 1) == b"", "a descriptor that came with the order is still open"
    os.close(reader)
    assert bench.spawn(channel, "a") in bench.processes.commands


def test_an_executor_that_cannot_be_watched_is_killed(bench: Bench) -> None:
    channel = bench.connect()
    bench.processes.open_errors.append(no_room(errno.EMFILE))
    os.close(bench.order(channel, "a"))
    assert bench.receive(channel)["error"] == "EMFILE"
    ((killed, number),) = bench.processes.signals
    assert number == signal.SIGKILL
    bench.end(bench.spawn(channel, "b"))
    assert bench.receive(channel)["swept"] == []
    assert killed in bench.processes.reaped


def test_a_supervisor_that_cannot_be_let_in_is_let_in_later(bench: Bench) -> None:
    bench.listener.refusals = 1
    channel = bench.knock()
    bench.server.turn()
    assert bench.silent(channel)
    bench.wait(ACCEPT_PAUSE)
    bench.server.turn()
    assert bench.receive(channel)["op"] == "hello"


# Processes that executors leave running


def test_processes_that_an_executor_leaves_are_killed_and_reported(bench: Bench) -> None:
    channel = bench.connect()
    pid = bench.spawn(channel, "a")
    child = bench.processes.add("sleep 1000", left_by=pid)
    grandchild = bench.processes.add(f"{sys.executable} -m harness.zygote 12", left_by=child)
    zombie = bench.processes.add("true", left_by=pid)
    bench.processes.end(zombie)
    ending = bench.processes.add("addr2line", left_by=pid)
    bench.processes.ending.add(ending)
    bench.end(pid, 3)
    assert bench.receive(channel) == {
        "op": "exit",
        "executor": "a",
        "status": 3,
        "swept": ["sleep 1000", FORK_OF_CASE],
        "stuck": [],
    }
    assert sorted(bench.processes.reaped) == [pid, child, grandchild, zombie, ending]


def test_an_orphan_is_held_against_the_executor_in_whose_session_it_is(bench: Bench) -> None:
    """Two executors have died. The one that left nothing is reaped first."""
    channel = bench.connect()
    leaves, innocent = bench.spawn(channel, "leaves"), bench.spawn(channel, "innocent")
    orphan = bench.processes.add("sleep 1000", left_by=leaves)
    bench.processes.sessions[orphan] = leaves
    bench.processes.held.add(leaves)
    bench.end(leaves)
    bench.end(innocent)
    assert bench.receive(channel) == {"op": "exit", "executor": "innocent", "status": 0, "swept": [], "stuck": []}
    assert orphan not in bench.processes.reaped
    bench.processes.held.discard(leaves)
    bench.wait(REAP_PAUSE)
    reported = bench.receive(channel)
    assert (reported["executor"], reported["swept"]) == ("leaves", ["sleep 1000"])
    assert orphan in bench.processes.reaped


def test_a_fork_of_a_case_in_a_cold_executor_is_called_so(bench: Bench) -> None:
    channel = bench.connect()
    pid = bench.spawn(channel, "a")
    bench.processes.add(f"{sys.executable} -m harness.zygote.cold 7 8 9 10 11 12", left_by=pid)
    bench.end(pid)
    assert bench.receive(channel)["swept"] == [FORK_OF_CASE]


def test_a_helper_that_clears_up_is_left_the_time_to(bench: Bench) -> None:
    """It is not reported as a leftover of the case."""
    channel = bench.connect()
    quick, slow = bench.spawn(channel, "a"), bench.spawn(channel, "b")
    helper = bench.processes.add("/usr/lib/torch/bin/torch_shm_manager", left_by=quick)
    bench.end(quick)
    assert bench.silent(channel)
    bench.end(helper)
    assert bench.receive(channel)["swept"] == []
    helper = bench.processes.add("/usr/lib/torch/bin/torch_shm_manager", left_by=slow)
    bench.end(slow)
    assert (helper, signal.SIGKILL) not in bench.processes.signals
    bench.wait(CLEANER_PATIENCE)
    assert (helper, signal.SIGKILL) in bench.processes.signals
    bench.server.turn()
    assert bench.receive(channel)["swept"] == []


def test_an_orphan_that_cannot_be_killed_blocks_no_client(bench: Bench) -> None:
    first, second = bench.connect(), bench.connect()
    pid = bench.spawn(first, "a")
    bench.processes.add("sleep 1000", left_by=pid)
    stuck = bench.processes.add("nvidia-smi", left_by=pid)
    bench.processes.immortal.add(stuck)
    bench.end(pid)
    bench.server.turn()
    assert bench.silent(first), "what was killed has time to end"
    # Meanwhile others are served.
    other = bench.spawn(second, "b")
    second.send({"op": "kill", "executor": "b", "signal": signal.SIGKILL})
    bench.server.turn()
    assert bench.receive(second)["op"] == "signalled"
    bench.server.turn()
    assert bench.receive(second) == {"op": "exit", "executor": "b", "status": -9, "swept": [], "stuck": []}
    assert other in bench.processes.reaped
    bench.wait(KILL_PATIENCE)
    reported = bench.receive(first)
    assert reported["swept"] == ["sleep 1000"]
    assert reported["stuck"] == [f"process {stuck} 'nvidia-smi': state D, uninterruptible sleep in nv_wait"]


def test_a_stuck_orphan_is_remembered_and_waited_for_once_it_ends(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    channel = bench.connect()
    pid = bench.spawn(channel, "a")
    stuck = bench.processes.add("nvidia-smi", left_by=pid)
    bench.processes.immortal.add(stuck)
    bench.end(pid)
    bench.wait(KILL_PATIENCE)
    assert bench.receive(channel)["op"] == "exit"
    bench.end(bench.spawn(channel, "b"))
    assert bench.receive(channel) == {"op": "exit", "executor": "b", "status": 0, "swept": [], "stuck": []}
    assert bench.processes.signals.count((stuck, signal.SIGKILL)) == 1
    late = bench.processes.add("its child", left_by=stuck)
    bench.end(stuck, -9)
    assert stuck in bench.processes.reaped
    assert late in bench.processes.reaped
    assert f"process {stuck} has ended, after it could not be killed" in capsys.readouterr().err
    assert bench.silent(channel)


def test_an_orphan_that_cannot_be_watched_is_killed_all_the_same(bench: Bench) -> None:
    channel = bench.connect()
    pid = bench.spawn(channel, "a")
    left = bench.processes.add("sleep 1000", left_by=pid)
    bench.processes.immortal.add(left)
    bench.processes.open_errors.append(no_room(errno.EMFILE))
    bench.end(pid)
    assert bench.receive(channel)["op"] == "exit"
    assert (left, signal.SIGKILL) in bench.processes.signals


def test_an_end_that_a_debugger_holds_back_is_waited_for_without_blocking(bench: Bench) -> None:
    channel = bench.connect()
    pid = bench.spawn(channel, "a")
    left = bench.processes.add("sleep 1000", left_by=pid)
    bench.processes.held |= {pid, left}
    bench.end(pid)
    assert bench.silent(channel)
    bench.processes.held.discard(pid)
    bench.wait(REAP_PAUSE)
    bench.server.turn()  # the end of the process that it left
    assert bench.silent(channel)
    bench.processes.held.discard(left)
    bench.wait(REAP_PAUSE)
    assert bench.receive(channel)["swept"] == ["sleep 1000"]


# Supervisors that leave


def test_a_supervisor_that_goes_takes_its_executors_with_it(bench: Bench) -> None:
    first, second = bench.connect(), bench.connect()
    pids = {bench.spawn(first, name) for name in ("a", "b")}
    first.close()
    bench.server.turn()
    bench.server.turn()
    assert set(bench.processes.reaped) == pids
    bench.spawn(second, "c")


def test_nothing_is_forked_until_the_executors_of_one_that_went_have_ended(bench: Bench) -> None:
    first, second = bench.connect(), bench.connect()
    pid = bench.spawn(first, "a")
    left = bench.processes.add("sleep 1000", left_by=pid)
    bench.processes.immortal |= {pid, left}
    first.close()
    bench.server.turn()
    os.close(bench.order(second, "b"))
    assert bench.silent(second)
    bench.end(pid, -9)
    assert bench.silent(second), "what it left may hold the device as well"
    bench.end(left, -9)
    assert bench.receive(second)["op"] == "spawned"


def test_an_executor_that_cannot_be_killed_blocks_others_only_briefly(
    bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, third = bench.connect(), bench.connect(), bench.connect()
    pid = bench.spawn(first, "a")
    bench.processes.immortal.add(pid)
    first.close()
    bench.server.turn()
    os.close(bench.order(second, "b"))
    reader = bench.order(third, "c")
    third.close()
    bench.server.turn()
    assert os.read(reader, 1) == b"", "the order of one that went is dropped, with its descriptors"
    os.close(reader)
    bench.wait(KILL_PATIENCE)
    assert bench.receive(second)["op"] == "spawned"
    assert f"executor a cannot be killed: process {pid}" in capsys.readouterr().err
    assert len(bench.processes.commands) == 2
    bench.spawn(second, "d")


# The end


def test_the_end_of_the_life_line_ends_all(bench: Bench) -> None:
    channel = bench.connect()
    pid = bench.spawn(channel, "a")
    left = bench.processes.add("sleep 1000", left_by=pid)
    os.write(bench.life_line, b"still there")
    bench.server.turn()
    assert not bench.server.over
    os.close(bench.life_line)
    bench.life_line = os.dup(0)
    bench.server.turn()
    assert bench.hung_up(channel)
    while not bench.server.over:
        bench.server.turn()
    assert bench.processes.reaped == [pid, left]


def test_it_ends_without_what_cannot_be_killed(bench: Bench) -> None:
    channel = bench.connect()
    pid = bench.spawn(channel, "a")
    bench.processes.immortal.add(pid)
    os.close(bench.life_line)
    bench.life_line = os.dup(0)
    bench.server.turn()
    assert not bench.server.over
    bench.wait(2 * KILL_PATIENCE)
    assert bench.server.over
