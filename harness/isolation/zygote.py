"""The zygote: a process that has imported and collected everything, and forks executors from that.

It never touches CUDA, has one thread, and runs no case. Where executors start cold it has collected nothing: what it
forks becomes a fresh interpreter that collects by itself (`harness.isolation.cold`). Each supervisor of the run
connects to its socket; it may hold executors for all of them. When a supervisor goes, its executors go; when the run's
controller goes, so does the zygote.

Started as ``python -m harness.isolation.zygote LISTENING_FD`` with a `ZygoteSpec` as one line of JSON on standard
input, which stays open as long as the run lives. One that starts over does so with two more arguments: a descriptor to
read the specification from, and the reason.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NoReturn

from harness import _compat
from harness.devices import guard
from harness.isolation import cold, linux
from harness.isolation import executor as executors
from harness.isolation.collecting import collect, prepare, settle
from harness.isolation.spec import ZygoteSpec
from harness.isolation.wire import Channel, Message, ProtocolError
from harness.under import WrapperError

#: Seconds to wait for a killed process to be gone before it is given up.
KILL_WAIT = 10.0

#: Makes an executor of this process, a fork, given the supervisor's order and descriptors: its socket, then its files.
Become = Callable[[Message, Sequence[int]], NoReturn]


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


class Nursery:
    """The zygote's event loop."""

    def __init__(self, become: Become, listener: socket.socket, *, unfit: str = "", cold: str = "") -> None:
        """`become` makes an executor of a fork of this process. `unfit`: why there are none; `cold`: why they start
        cold, each collecting by itself.
        """
        self._become = become
        self._listener = listener
        self._unfit = unfit
        self._cold = cold
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
                    self._hear(key.data)
                elif isinstance(key.data, _Child) and key.data.pid in self._by_pid:
                    self._bury(key.data)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        client = _Client(Channel(connection, "a supervisor"))
        self._clients.append(client)
        self._selector.register(connection, selectors.EVENT_READ, client)
        self._tell(client, {"op": "hello", "pid": self._pid, "unfit": self._unfit, "cold": self._cold})

    def _hear(self, client: _Client) -> None:
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
            self._bury(child)

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
        self._tell(client, {"op": "spawned", "executor": child.executor, "pid": pid})

    def _leave_to_executor(self, order: Message, descriptors: list[int]) -> NoReturn:
        """In the child: drop every descriptor of the zygote, then become the executor."""
        try:
            self._selector.close()
            self._listener.close()
            for client in self._clients:
                client.channel.socket.close()
            for child in self._by_pid.values():
                os.close(child.pidfd)
            executors.detach(self._pid)
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

    def _bury(self, child: _Child) -> None:
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
        self._tell(child.client, message)

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

    def _tell(self, client: _Client, message: Message) -> None:
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


def main() -> None:
    """Import, collect, serve; or only serve, where executors start cold."""
    number, *more = sys.argv[1:]
    listener = socket.socket(fileno=int(number))
    spec = ZygoteSpec.from_json(_first_line(int(more[0]) if more else 0))
    linux.die_with_parent(spec.parent)
    linux.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if spec.start == "cold":
        Nursery(partial(cold.execute, spec), listener, cold=more[1] if more else "--start=cold").serve()
    environment, folder = dict(os.environ), os.getcwd()
    try:
        around = prepare(spec)
    except WrapperError as error:
        Nursery(_refuse, listener, unfit=str(error)).serve()
    if spec.skip_early_exit_handlers:
        # As with C's exit handlers: those of torch's operator libraries take 20 ms in every process, to no end.
        for finalizer in _compat.finalizers():
            finalizer.atexit = False

    def serve(nest: executors.Nest) -> NoReturn:
        if not (reason := _unfit()):
            _get_ready(nest, spec)
            Nursery(partial(executors.become_executor, nest), listener).serve()
        if spec.start == "auto":
            os.chdir(folder)
            _start_over(spec, listener, reason, environment)
        told = (
            f"the process that collected the cases must not be forked: {reason}; look for a module or conftest that "
            f"does this when imported, or use --start=cold"
        )
        Nursery(_refuse, listener, unfit=told).serve()

    sys.exit(collect(spec, around, serve))


def _unfit() -> str:
    """Why this process must not be forked, or an empty text."""
    reasons = []
    if touched := guard.cuda_touched():
        reasons.append(touched)
    if threads := guard.extra_threads():
        reasons.append(f"it has threads beside the main one: {', '.join(threads)}")
    return "; ".join(reasons)


def _get_ready(nest: executors.Nest, spec: ZygoteSpec) -> None:
    """Do once what every executor would have to do."""
    if spec.skip_early_exit_handlers:
        linux.exit_before_earlier_handlers()
    settle(nest)
    if spec.many_forks:
        linux.collapse_memory()


def _start_over(spec: ZygoteSpec, listener: socket.socket, reason: str, environment: dict[str, str]) -> NoReturn:
    """Become a zygote that has collected nothing, in the `environment` that this one began in.

    The same process to whoever waits for it; what was imported goes with its threads, and with its hold on a device.
    """
    told = os.memfd_create("specification")
    os.write(told, replace(spec, start="cold").to_json().encode() + b"\n")
    os.lseek(told, 0, os.SEEK_SET)
    sys.stdout.flush()
    sys.stderr.flush()
    for descriptor in (told, listener.fileno()):
        os.set_inheritable(descriptor, True)
    words = [sys.executable, "-m", "harness.isolation.zygote", str(listener.fileno()), str(told), reason]
    os.execve(sys.executable, words, environment)


def _refuse(order: Message, descriptors: Sequence[int]) -> NoReturn:
    raise AssertionError(f"an executor was ordered of a zygote that had refused: {order}, {descriptors}")


def _first_line(descriptor: int) -> str:
    """Read up to the first newline, unbuffered: the rest of the stream is the zygote's life line."""
    data = bytearray()
    while not data.endswith(b"\n"):
        byte = os.read(descriptor, 1)
        if not byte:
            raise SystemExit("harness zygote: standard input ended before the specification")
        data += byte
    return data.decode()


if __name__ == "__main__":
    main()
