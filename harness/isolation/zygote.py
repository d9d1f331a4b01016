"""The zygote: a process that has imported and collected everything, and forks executors from that.

It never touches CUDA, has one thread, and runs no case. Each supervisor of the run connects to its socket; it may hold
executors for all of them. When a supervisor goes, its executors go; when the run's controller goes, so does the zygote.

Started as ``python -m harness.isolation.zygote LISTENING_FD`` with a `ZygoteSpec` as one line of JSON on standard
input, which stays open as long as the run lives.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import selectors
import signal
import socket
import sys
from dataclasses import dataclass, field
from typing import NoReturn

import pytest

from harness import _compat
from harness.checks.state import StateGuard
from harness.checks.state_fixtures import FixtureWatch
from harness.devices import guard
from harness.isolation import executor as executors
from harness.isolation import linux
from harness.isolation.spec import ZygoteSpec
from harness.isolation.wire import Channel, Message, ProtocolError, show_surrogates

#: Seconds to wait for a killed process to be gone before it is given up.
KILL_WAIT = 10.0


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


class ZygotePlugin:
    """Takes the place of pytest's run loop in the zygote: serves executors instead of running cases."""

    #: Tells the harness plugin whose process it is in.
    is_harness_zygote = True

    def __init__(self, spec: ZygoteSpec, listener: socket.socket) -> None:
        self._spec = spec
        self._listener = listener
        self._relay = executors.Relay()
        self._guard = StateGuard()

    def pytest_configure(self, config: pytest.Config) -> None:
        config.pluginmanager.register(self._relay)
        config.pluginmanager.register(FixtureWatch(self._guard))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        config = session.config
        if session.testsfailed and not config.option.continue_on_collection_errors:
            return True  # the supervisors collected the same and say so
        if not (config.option.setupshow or config.option.setuponly):
            config.pluginmanager.unregister(name="terminalreporter")
        case_modules = {
            module.__name__ for item in session.items if (module := getattr(item, "module", None)) is not None
        }
        nest = executors.Nest(
            session=session,
            items={str(show_surrogates(item.nodeid)): item for item in session.items},  # as they arrive
            modules=frozenset(sys.modules),
            case_modules=frozenset(case_modules),
            relay=self._relay,
            guard=self._guard,
        )
        Nursery(nest, self._listener, unfit=self._unfit()).serve()
        raise AssertionError("the zygote serves until it ends")

    def _unfit(self) -> str:
        """Why this process must not be forked, or an empty text."""
        reasons = []
        if touched := guard.cuda_touched():
            reasons.append(touched)
        if threads := guard.extra_threads():
            reasons.append(f"it has threads beside the main one: {', '.join(threads)}")
        if not reasons:
            if self._spec.skip_early_exit_handlers:
                linux.exit_before_earlier_handlers()
            self._guard.capture()  # copies what is there once for all executors
            # Frozen objects are not visited by the collector, so their pages stay shared after a fork.
            gc.collect()
            gc.freeze()
            if self._spec.many_forks:
                linux.collapse_memory()
        return "; ".join(reasons)


class Nursery:
    """The zygote's event loop."""

    def __init__(self, nest: executors.Nest, listener: socket.socket, *, unfit: str) -> None:
        self._nest = nest
        self._listener = listener
        self._unfit = unfit
        self._clients: list[_Client] = []
        self._by_pid: dict[int, _Child] = {}
        self._selector = selectors.DefaultSelector()
        self._pid = os.getpid()

    def serve(self) -> NoReturn:
        """Serve until the controller closes our standard input."""
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
        self._tell(client, {"op": "hello", "pid": self._pid, "cases": len(self._nest.items), "unfit": self._unfit})

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
            executors.become_executor(self._nest, order, descriptors[0], descriptors[1:], self._pid)
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
    """Import, collect, serve."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    spec = ZygoteSpec.from_json(_first_line(0))
    linux.die_with_parent(spec.parent)
    linux.adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:] = spec.sys_path
    for module in spec.preload:
        importlib.import_module(module)
    if spec.skip_early_exit_handlers:
        # As with C's exit handlers: those of torch's operator libraries take 20 ms in every process, to no end.
        for finalizer in _compat.finalizers():
            finalizer.atexit = False
    sys.exit(pytest.main([*spec.args, *spec.overrides], plugins=[ZygotePlugin(spec, listener)]))


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
