"""The zygote: a process that has imported and collected everything, and forks executors from that.

It never touches CUDA, has one thread, and runs no case. Where executors start cold it has collected nothing: what it
forks becomes a fresh interpreter that collects by itself (`harness.zygote.cold`). Each supervisor of the run
connects to its socket; it may hold executors for all of them. When a supervisor goes, its executors go; when the run's
controller goes, so does the zygote.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from harness import linux
from harness.executor.become import detach
from harness.protocol.wire import Channel, Message, ProtocolError

#: Seconds to wait for a killed process to be gone before it is given up.
KILL_WAIT = 10.0

#: Makes an executor of this process, a fork, given the supervisor's order and descriptors: its socket, then its files.
BecomeExecutor = Callable[[Message, Sequence[int]], NoReturn]


@dataclass
class _Client:
    channel: Channel
    children: dict[str, _Child] = field(default_factory=dict)


@dataclass
class _Child:
    executor: str
    pid: int
    pidfd: int
    client: _Client


class ForkServer:
    """The zygote's event loop."""

    def __init__(
        self, become: BecomeExecutor, listener: socket.socket, *, unfit: str = "", cold: str = "", unwritten: str = ""
    ) -> None:
        """`become` makes an executor of a fork of this process. `unfit`: why there are none; `cold`: why they start
        cold, each collecting by itself; `unwritten`: why this process's log is not whole.
        """
        self._become = become
        self._listener = listener
        self._unfit = unfit
        self._cold = cold
        self._unwritten = unwritten
        self._clients: list[_Client] = []
        self._by_pid: dict[int, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._pid = os.getpid()

    def serve(self) -> NoReturn:
        """Serve until the controller closes our standard input."""
        if self._cold:
            self._sweep()  # what was imported before this zygote started over may have left processes
        self._selector.register(0, selectors.EVENT_READ)
        self._selector.register(self._listener, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fd == 0:
                    if not os.read(0, 1024):
                        self._shut_down()
                elif key.fileobj is self._listener:
                    self._accept()
                elif isinstance(key.data, _Client):
                    self._read(key.data)
                elif isinstance(key.data, _Child) and key.data.pid in self._by_pid:
                    self._reap(key.data)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        client = _Client(Channel(connection, "a supervisor"))
        self._clients.append(client)
        self._selector.register(connection, selectors.EVENT_READ, client)
        hello = {"op": "hello", "pid": self._pid, "unfit": self._unfit, "cold": self._cold}
        self._send(client, {**hello, "unwritten": self._unwritten})

    def _read(self, client: _Client) -> None:
        try:
            client.channel.receive(max_fds=5)
            while (message := client.channel.pop()) is not None:
                if message["op"] == "spawn":
                    self._spawn(client, message)
                elif message["op"] == "kill":
                    self._signal(client.children.get(message["executor"]), message["signal"])
        except ProtocolError as error:
            print(f"harness zygote: {error}", file=sys.stderr)
            client.channel.closed = True
        if client.channel.closed:
            self._drop(client)

    def _drop(self, client: _Client) -> None:
        """A supervisor is gone: end its executors, and be sure of it before anything else is started."""
        self._selector.unregister(client.channel.socket)
        client.channel.close()
        self._clients.remove(client)
        for child in list(client.children.values()):
            self._signal(child, signal.SIGKILL)
            _wait_readable(child.pidfd, KILL_WAIT)
            self._reap(child)

    def _spawn(self, client: _Client, order: Message) -> None:
        descriptors = client.channel.take_fds(5)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._leave_to_executor(order, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        child = _Child(order["executor"], pid, os.pidfd_open(pid), client)
        client.children[child.executor] = child
        self._by_pid[pid] = child
        self._selector.register(child.pidfd, selectors.EVENT_READ, child)
        self._send(client, {"op": "spawned", "executor": child.executor, "pid": pid})

    def _leave_to_executor(self, order: Message, descriptors: list[int]) -> NoReturn:
        """In the child: drop every descriptor of the zygote, then become the executor."""
        try:
            self._selector.close()
            self._listener.close()
            for client in self._clients:
                client.channel.socket.close()
            for child in self._by_pid.values():
                os.close(child.pidfd)
            detach(self._pid)
            self._become(order, descriptors)
        except BaseException:  # noqa: BLE001
            # An exception must never unwind into the zygote's own frames, which this process has a copy of.
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
        finally:
            os._exit(1)

    def _signal(self, child: _Child | None, number: int) -> None:
        """Signal the executor's process group; it still exists, since we have not yet waited for its leader."""
        if child is None or child.pid not in self._by_pid:
            return
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            os.kill(child.pid, number)  # before its setsid

    def _reap(self, child: _Child) -> None:
        """An executor has ended, or cannot be ended: sweep what it left, wait for it, tell its supervisor."""
        if not _wait_readable(child.pidfd, 0):
            return  # it cannot be killed; its supervisor's own ladder says so
        self._selector.unregister(child.pidfd)
        os.close(child.pidfd)
        self._signal(child, signal.SIGKILL)  # the zombie still holds the group's number: nobody else can be hit
        _, status = os.waitpid(child.pid, 0)
        del self._by_pid[child.pid]
        del child.client.children[child.executor]
        swept = self._sweep()
        message = {
            "op": "exit",
            "executor": child.executor,
            "status": os.waitstatus_to_exitcode(status),
            "swept": swept,
        }
        self._send(child.client, message)

    def _sweep(self) -> list[str]:
        """Kill the orphans of dead executors: every child of ours that we did not fork. Returns their command lines."""
        swept: list[str] = []
        for _ in range(100):  # each round may orphan more
            orphans = [pid for pid in linux.children() if pid not in self._by_pid]
            if not orphans:
                break
            for pid in orphans:
                described = linux.describe_process(pid)
                if described is not None and described[0] != "Z":
                    swept.append(described[1])
                pidfd = os.pidfd_open(pid)
                os.kill(pid, signal.SIGKILL)
                if _wait_readable(pidfd, KILL_WAIT):
                    os.waitpid(pid, 0)
                os.close(pidfd)
        return swept

    def _send(self, client: _Client, message: Message) -> None:
        if client.channel.closed:
            return
        try:
            client.channel.send(message)
        except OSError:
            client.channel.closed = True  # its end of stream comes through the selector

    def _shut_down(self) -> NoReturn:
        for client in list(self._clients):
            self._drop(client)
        os._exit(0)


def _wait_readable(descriptor: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
