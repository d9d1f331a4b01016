"""The fork server: forks executors for the supervisors of a run, forwards signals, and reports exits.

The server never uses CUDA, has one thread, and runs no case. If executors start cold, it has collected nothing: each
fork becomes a fresh interpreter that collects the cases itself (`harness.zygote.cold`). Each supervisor of the run
connects to the zygote's socket, and one zygote serves all of them. When a supervisor ends, its executors are killed.
When the run's controller ends, the zygote ends.

No process and no client blocks the server: exits, messages and time limits are events. Their order matters in four
places:

1. An exit: signal the group, reap the leader, sweep its orphans, report, and only then fork what is due. Until the
   leader is reaped, its zombie keeps the number of the group, so the signal cannot reach a stranger. A supervisor that
   hears of an exit may give the devices to another worker, so nothing that used them may run by then.
2. The end of a supervisor: its executors are killed, and no fork happens for anyone until they are gone or
   `KILL_PATIENCE` is over, because another worker may already hold a lease of their devices. Orders wait in one queue
   in the order of their arrival; those of the supervisor that is gone are dropped.
3. A fork: flush first, or the child would write buffered text again. The child closes each descriptor of the zygote
   before all else: a pidfd or a socket that it kept would hide the end of a process or of a supervisor. It then ties
   its life to the zygote's, and checks that its parent is still the zygote. Its exceptions never unwind.
4. `spawned` is sent after the pidfd is watched, so that no exit comes before it. If there is no pidfd, the child is
   killed as an orphan, and the order refused.

A `kill` is always answered, also for an executor that has ended, because its exit may be under way to the supervisor.

Not handled here: a zygote that is stopped or killed (its supervisors notice, and the kernel ends the executors), and a
process that SIGKILL does not end: it is reported, and waited for no longer.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from harness.core.clock import monotonic
from harness.executor.become import detach_from_zygote
from harness.executor.session import EXIT_HANDLERS
from harness.protocol.endings import EXIT_HARNESS_ERROR
from harness.protocol.wire import Channel, Message, ProtocolError
from harness.zygote.processes import (
    KILL_PATIENCE,
    REAP_PAUSE,
    EventLoop,
    OrphanKiller,
    ParentWatch,
    ProcessOperations,
)

#: The descriptors in an order: the socket to the supervisor, then standard output and error, stacks, facts, and the
#: page of phases.
ORDER_DESCRIPTORS = 6
#: Seconds until the next accept, after one failed for lack of descriptors.
ACCEPT_PAUSE = 1.0
#: Seconds until a blocked send to a supervisor gives up. Its buffer is full because it is stopped or hangs.
SEND_LIMIT = 1

#: Turns this process, a fork, into an executor, given the supervisor's order and descriptors.
BecomeExecutor = Callable[[Message, Sequence[int]], NoReturn]


@dataclass(eq=False)
class _Client:
    channel: Channel
    children: dict[str, _Child] = field(default_factory=dict)


@dataclass(eq=False)
class _Child:
    executor: str
    pid: int
    pidfd: int
    client: _Client


@dataclass(eq=False)
class _Order:
    client: _Client
    message: Message
    descriptors: list[int]


class ForkServer:
    """The zygote when it is ready."""

    def __init__(
        self,
        become: BecomeExecutor,
        listener: socket.socket,
        *,
        unfit: str = "",
        cold: str = "",
        unwritten: str = "",
        life_line: int = 0,
        processes: ProcessOperations | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`become` turns a fork of this process into an executor. `unfit`: why no executor can be forked. `cold`: why
        executors start cold and collect by themselves. `unwritten`: why this process's log is incomplete. The server
        ends at the end of file of the descriptor `life_line`.
        """
        self._become = become
        self._listener = listener
        self._unfit = unfit
        self._cold = cold
        self._unwritten = unwritten
        self._life_line = life_line
        self._processes = processes or ProcessOperations()
        self._loop = EventLoop(clock)
        self._clients: list[_Client] = []
        self._by_pid: dict[int, _Child] = {}
        self._orphans = OrphanKiller(self._processes, self._loop, self._by_pid)
        #: Executors whose supervisor is gone, until they have ended or are given up.
        self._abandoned: set[_Child] = set()
        self._orders: deque[_Order] = deque()
        self._listening = False
        self._closing = False
        self._given_up = False
        self._pid = os.getpid()
        self._loop.watch(life_line, self._read_life_line)
        self._set_listening(True)
        if cold:
            self._orphans.sweep(_ignore)  # imports before the restart may have left processes

    def serve(self) -> NoReturn:
        """Serve until the controller closes the life line. SIGTERM ends this process only during the collection."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        ParentWatch(self._loop, os.getppid())
        while not self.over:
            self.turn()
        EXIT_HANDLERS.run()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def turn(self) -> None:
        """Wait for one event, and handle it."""
        self._loop.turn()

    def close(self) -> None:
        """Close every descriptor of the server except the listener, for code that continues in this process."""
        self._loop.close()
        for client in self._clients:
            client.channel.close()
        for child in self._by_pid.values():
            if child.pidfd >= 0:
                os.close(child.pidfd)
        for order in self._orders:
            _close_all(order.descriptors)
        self._orphans.close_descriptors()

    @property
    def over(self) -> bool:
        """Whether the life line has closed and all processes have ended, except those that could not be killed."""
        return self._closing and (self._given_up or not (self._by_pid or self._orphans.sweeping))

    # Supervisors

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            print(f"harness zygote: cannot accept a supervisor, will retry: {error}", file=sys.stderr)
            self._set_listening(False)
            self._loop.after(ACCEPT_PAUSE, lambda: self._set_listening(not self._closing))
            return
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_LIMIT, 0))
        client = _Client(Channel(connection, "a supervisor"))
        self._clients.append(client)
        self._loop.watch(connection.fileno(), lambda: self._read(client))
        hello = {"op": "hello", "pid": self._pid, "unfit": self._unfit, "cold": self._cold}
        self._send(client, {**hello, "unwritten": self._unwritten})

    def _set_listening(self, wanted: bool) -> None:
        if wanted and not self._listening:
            self._loop.watch(self._listener.fileno(), self._accept)
        elif self._listening and not wanted:
            self._loop.unwatch(self._listener.fileno())
        self._listening = wanted

    def _read(self, client: _Client) -> None:
        try:
            client.channel.receive(max_fds=ORDER_DESCRIPTORS)
            while (message := client.channel.pop()) is not None:
                self._handle(client, message)
        except ProtocolError as error:
            print(f"harness zygote: {error}", file=sys.stderr)
            client.channel.closed = True
        if client.channel.closed:
            self._drop(client)

    def _handle(self, client: _Client, message: Message) -> None:
        """Handle a message of a supervisor. Raise ProtocolError."""
        match message:
            case {"op": "spawn", "executor": str(name)}:
                try:
                    descriptors = client.channel.take_fds(ORDER_DESCRIPTORS)
                except OSError as error:
                    self._refuse(client, name, "receive the descriptors of an order", error)
                    return
                self._orders.append(_Order(client, message, descriptors))
                self._fork_due()
            case {"op": "kill", "executor": str(name), "signal": int(number)} if number in signal.valid_signals():
                self._signal(client.children.get(name), number)
                self._send(client, {"op": "signalled", "executor": name})
            case _:
                raise ProtocolError(f"a supervisor sent {repr(message)[:80]}, expected a spawn or kill message")

    def _drop(self, client: _Client) -> None:
        """Handle the end of a supervisor: kill its executors. There is no fork until they are gone or given up."""
        self._loop.unwatch(client.channel.fileno())
        client.channel.close()
        self._clients.remove(client)
        for order in [order for order in self._orders if order.client is client]:
            self._orders.remove(order)
            _close_all(order.descriptors)
        children = set(client.children.values())
        for child in children:
            self._signal(child, signal.SIGKILL)
        self._abandoned |= children
        if children:
            self._loop.after(KILL_PATIENCE, lambda: self._give_up(children))

    def _give_up(self, children: Iterable[_Child]) -> None:
        """Stop waiting for executors of a supervisor that is gone."""
        for child in self._abandoned.intersection(children):
            if child.pid in self._by_pid:  # otherwise only processes that the executor left still run
                stuck = self._processes.describe_stuck(child.pid)
                print(f"harness zygote: executor {child.executor} cannot be killed: {stuck}", file=sys.stderr)
            self._abandoned.discard(child)
        self._fork_due()

    def _send(self, client: _Client, message: Message) -> None:
        if client.channel.closed:
            return
        try:
            client.channel.send(message)
        except OSError:
            client.channel.closed = True
            # The loop then sees the end of the stream, even if the supervisor lives but does not read.
            with contextlib.suppress(OSError):
                client.channel.socket.shutdown(socket.SHUT_RDWR)

    # Executors

    def _fork_due(self) -> None:
        """Fork the ordered executors, unless executors of a supervisor that is gone have not ended yet."""
        while self._orders and not self._abandoned:
            self._fork(self._orders.popleft())

    def _fork(self, order: _Order) -> None:
        name = order.message["executor"]
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = self._processes.fork()
        except OSError as error:
            _close_all(order.descriptors)
            self._refuse(order.client, name, "fork", error)
            return
        if pid == 0:
            self._become_executor(order)
        _close_all(order.descriptors)
        try:
            pidfd = self._processes.open(pid)
        except OSError as error:
            self._processes.kill(pid)  # the next sweep finds it
            self._refuse(order.client, name, "open a descriptor of an executor", error)
            return
        child = _Child(name, pid, pidfd, order.client)
        order.client.children[name] = child
        self._by_pid[pid] = child
        self._loop.watch(pidfd, lambda: self._ended(child))
        self._send(order.client, {"op": "spawned", "executor": name, "pid": pid})

    def _refuse(self, client: _Client, executor: str, what: str, error: OSError) -> None:
        """Report that the machine or a limit allows no further process at the moment. A later try may succeed."""
        code = errno.errorcode.get(error.errno or 0, "unknown error")
        message = {"op": "refused", "executor": executor, "what": what, "error": code, "text": error.strerror}
        self._send(client, message)

    def _become_executor(self, order: _Order) -> NoReturn:
        """Close every descriptor of the zygote in the child, then become the executor."""
        try:
            self.close()
            self._listener.close()
            detach_from_zygote(self._pid)
            self._become(order.message, order.descriptors)
        except BaseException:  # noqa: BLE001
            # An exception must never unwind into this process's copy of the zygote's frames.
            sys.excepthook(*sys.exc_info())
            sys.stderr.flush()
        finally:
            os._exit(EXIT_HARNESS_ERROR)

    def _signal(self, child: _Child | None, number: int) -> None:
        """Signal the executor's process group, unless its leader has been reaped."""
        if child is not None and self._by_pid.get(child.pid) is child:
            self._processes.kill_group(child.pid, number)

    def _ended(self, child: _Child) -> None:
        self._loop.unwatch(child.pidfd)
        os.close(child.pidfd)
        child.pidfd = -1
        self._reap(child)

    def _reap(self, child: _Child) -> None:
        """Reap an executor that has ended, kill its leftover processes, then report the exit to its supervisor."""
        self._signal(child, signal.SIGKILL)
        status = self._processes.reap(child.pid)
        if status is None:
            self._loop.after(REAP_PAUSE, lambda: self._reap(child))
            return
        del self._by_pid[child.pid]
        self._orphans.sweep(lambda swept, stuck: self._report_exit(child, status, swept, stuck))

    def _report_exit(self, child: _Child, status: int, swept: list[str], stuck: list[str]) -> None:
        del child.client.children[child.executor]
        self._abandoned.discard(child)
        message = {"op": "exit", "executor": child.executor, "status": status, "swept": swept, "stuck": stuck}
        self._send(child.client, message)
        if child.client.channel.closed:
            for text in stuck:
                print(f"harness zygote: executor {child.executor} left {text}", file=sys.stderr)
        self._fork_due()

    # The end

    def _read_life_line(self) -> None:
        if os.read(self._life_line, 1024):
            return
        self._closing = True
        self._loop.unwatch(self._life_line)
        self._set_listening(False)
        for client in list(self._clients):
            self._drop(client)
        self._loop.after(2 * KILL_PATIENCE, self._stop)  # once for executors, once for their leftover processes

    def _stop(self) -> None:
        self._given_up = True


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _ignore(swept: list[str], stuck: list[str]) -> None:
    """Ignore the result of a sweep."""
