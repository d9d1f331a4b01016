"""Fakes of a supervisor's peers: a zygote, and executors that a test scripts."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from harness.core.outcome import Outcome
from harness.devices.device import CPU
from harness.journal.events import Event
from harness.journal.journal import Journal, WorkerJournal
from harness.protocol.phase_page import PHASES, PassedPhase, PhasePage
from harness.protocol.wire import Channel, Message, encode_message
from harness.scheduling.stop_request import StopListener, StopRequest, send_stop
from harness.supervisor.attempt import Attempt, CaseRequest
from harness.supervisor.case import Case
from harness.supervisor.device_pool import DevicePool
from harness.supervisor.executor_handle import Binding, ExecutorHandle, Outputs
from harness.supervisor.executor_slot import ZygoteLinks
from harness.supervisor.judgement import Evidence, Judgement
from harness.zygote.client import ForkRefusedError, ZygoteClient, ZygoteError
from tests.reporting import build

BINDING = Binding(devices=("cpu",), kind="cpu", environment={}, workerinput=None, leak_check="fast")
#: An executor's exit status by the signal that ends it.
DIES = {int(signal.SIGTERM): -15}
#: A fake executor's reaction to a request.
Script = Callable[["FakeExecutor"], None]


class Clock:
    """A clock that tests advance."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class KeptLines:
    """Replaces the file of a journal: keeps the lines as dictionaries."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def append(self, *events: Event) -> None:
        self.lines += [build.whole_line(event) for event in events]


class FakeJournal(WorkerJournal):
    """A worker's journal without a file."""

    def __init__(self, worker: str = "gw0", kept: KeptLines | None = None) -> None:
        self._kept = KeptLines() if kept is None else kept
        super().__init__(cast(Journal, self._kept), worker)

    @property
    def lines(self) -> list[dict[str, Any]]:
        """All lines that were appended."""
        return self._kept.lines

    @property
    def findings(self) -> list[tuple[str, str, list[str]]]:
        """Kind, text and cases of each finding."""
        return [
            (line["kind"], line["message"], [*line.get("cases", ())])
            for line in self.lines
            if line["event"] == "finding"
        ]


class FakeZygotes(ZygoteLinks):
    """Replaces a worker's connections to zygotes."""

    def __init__(self, connect: Callable[[], ZygoteClient]) -> None:
        self._connect = connect

    def connect(self) -> ZygoteClient:
        return self._connect()


def cpu_pool(folder: Path) -> DevicePool:
    """Return the pool of a worker that uses the CPU."""
    return DevicePool(CPU, [CPU], FakeJournal(), folder=folder / "drained", examine=False)


class FakeItem:
    """The part of an item that is needed to unpack a plain report."""

    nodeid = "suites/a/test_a.py::test_a"
    location = ("a", 1, "b")
    keywords: Mapping[str, object] = {}


def attempt(outcome: Outcome, number: int = 1, text: str = "") -> Attempt:
    return Attempt(
        number=number,
        alone=True,
        executor=f"e{number}",
        devices=(),
        environment={},
        reports=(),
        warnings=(),
        evidence=Evidence(),
        judgement=Judgement(outcome, text),
        duration=0.5,
        ended=1.5,
        stdout="",
        stderr="",
        temp=Path(),
        kept=Path(),
        notes=(),
        spent=False,
        memory={},
    )


def case(name: str = "a::b", *, limit: float = 60.0, devices: int = 1) -> Case:
    return Case(item=cast(pytest.Item, FakeItem()), id=name, seed=7, limit=limit, devices=devices, unmet=None)


def request(*, limit: float = 60.0, leave: bool = False) -> CaseRequest:
    return CaseRequest(case(limit=limit), leave=leave)


class FakeExecutor:
    """The other end of an executor's channel and files, which a thread serves as `script` says."""

    def __init__(self, zygote: FakeZygote, name: str, descriptors: Sequence[int], script: Script) -> None:
        self.name = name
        self.requests: list[str] = []
        self.script = script
        self._zygote = zygote
        control, self._out, _, self._stacks, self._facts, page = (os.dup(number) for number in descriptors)
        self.page = PhasePage(page)
        os.close(page)
        self._channel = Channel(socket.socket(fileno=control), "the supervisor")
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def last_request(self) -> str:
        """The request that it has to answer."""
        return self.requests[-1]

    def send(self, op: str, **more: Any) -> None:
        self._channel.send({"op": op, **more})

    def send_raw(self, data: bytes) -> None:
        self._channel.socket.sendall(data)

    def report(self, *phases: str) -> None:
        """Write to the files that these phases have passed."""
        for when in phases:
            line = {"op": "pass", "when": when, "duration": 0.1, "start": 1.0, "stop": 1.1, "location": ["a", 1, "b"]}
            os.write(self._facts, encode_message({**line, "out": [os.fstat(self._out).st_size, 0]}))

    def pass_phases(self, *phases: str) -> None:
        """Write to the page that these phases have passed."""
        for when in phases:
            passed = PassedPhase(PHASES.index(when), 0.1, 1.0, 1.1, os.fstat(self._out).st_size, 0)
            assert self.page.add(passed)

    def write_fact(self, data: bytes) -> None:
        os.write(self._facts, data)

    def print(self, text: str) -> None:
        os.write(self._out, text.encode())

    def pass_case(self, **more: Any) -> None:
        """Do what an executor does for a passing case."""
        self.report("setup", "call", "teardown")
        self.send("done", suspicions={}, **more)

    def exit(self, status: int, swept: Sequence[str] = ()) -> None:
        """End; the zygote reports it to the supervisor."""
        self._zygote.tell_exit(self.name, status, swept)

    def close(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()
        self._channel.close()
        self.page.close()
        for number in (self._out, self._stacks, self._facts):
            os.close(number)

    def _serve(self) -> None:
        while True:
            while (message := self._channel.pop()) is None:
                self._channel.receive()
                if self._channel.closed:
                    return
            self.requests.append(message["op"])
            self.script(self)


#: The process ids of executors are above this: the kernel assigns none so high, so no real process has one.
NO_PID = 1 << 22


class FakeZygote:
    """Replaces the connection to a zygote. `deaths`: the exit status that a signal causes, if it ends its executors."""

    cold = ""
    #: Whether it answers orders.
    answers = True

    def __init__(self, script: Script, deaths: Mapping[int, int] | None = None) -> None:
        self._stops = tempfile.TemporaryDirectory()
        self.stop = StopListener(Path(self._stops.name), "gw0")
        self.executors: list[FakeExecutor] = []
        self.signals: list[int] = []
        self.closed = False
        #: Whether it refuses to fork, as a dead zygote does.
        self.gone = False
        #: Whether it refuses to fork executors that were only ordered.
        self.refuses = False
        #: The process ids of executors that were only ordered.
        self.ordered: dict[str, int] = {}
        self._script = script
        self.deaths = {} if deaths is None else {**deaths}
        self._inbox: deque[Message] = deque()
        self._ours, self._theirs = socket.socketpair()
        self.channel = Channel(self._theirs, "the zygote")

    @property
    def client(self) -> ZygoteClient:
        return cast(ZygoteClient, self)

    def spawn(self, order: Message, descriptors: Sequence[int]) -> int:
        if self.gone:
            raise ZygoteError("the zygote is gone, see its log\nand more")
        self.executors.append(FakeExecutor(self, order["executor"], descriptors, self._script))
        return NO_PID + len(self.executors)

    def order(self, order: Message, descriptors: Sequence[int]) -> None:
        self.ordered[order["executor"]] = self.spawn(order, descriptors)

    def spawned(self, executor: str) -> int:
        if self.gone:
            raise ZygoteError("the zygote is gone, see its log\nand more")
        if self.refuses:
            raise ForkRefusedError("the zygote could not fork")
        return self.ordered[executor]

    def signal(self, executor: str, number: int) -> None:
        if self.gone:
            raise ZygoteError("the zygote is gone, see its log\nand more")
        self.signals.append(number)
        if number in self.deaths:
            self.tell_exit(executor, self.deaths[number])

    def tell_exit(self, executor: str, status: int, swept: Sequence[str] = ()) -> None:
        self._inbox.append({"op": "exit", "executor": executor, "status": status, "swept": [*swept], "stuck": []})
        self._ours.send(b"x")

    def request_stop(self, grace: float) -> None:
        """Send a request to stop, as the controller does when the run stops."""
        send_stop(Path(self._stops.name), StopRequest.after(grace, "stopped by SIGTERM"))

    def die(self) -> None:
        """End, together with its executors."""
        self.gone = True
        self._ours.shutdown(socket.SHUT_WR)

    def pump(self) -> None:
        if not self._theirs.recv(1):
            raise ZygoteError("the zygote is gone, see its log\nand more")

    def exit_of(self, executor: str) -> Message | None:
        for message in self._inbox:
            if message["executor"] == executor:
                self._inbox.remove(message)
                return message
        return None

    def last_output(self) -> str:
        return "what the log ends with"

    def close(self) -> None:
        self.closed = True

    def end(self) -> None:
        """Release everything after the test, once all handles are closed."""
        for executor in self.executors:
            executor.close()
        self._ours.close()
        self._theirs.close()
        self.stop.close()
        self._stops.cleanup()


@contextmanager
def handle_on(
    folder: Path, script: Script, deaths: Mapping[int, int] | None = None, binding: Binding = BINDING
) -> Iterator[tuple[ExecutorHandle, FakeZygote]]:
    """Yield an executor that acts as `script` says, and its zygote."""
    zygote, outputs = FakeZygote(script, deaths), Outputs()
    handle = ExecutorHandle("gw0-e1", zygote.client, outputs, binding, folder / "gw0-e1", folder / "kept")
    try:
        yield handle, zygote
    finally:
        handle.close()
        zygote.end()
        outputs.close()
