"""The scheduler of a cluster run's session: it takes cases as they arrive, and requests more for free workers."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from harness.scheduling.remote_queue import VARIABLE, GivenCase, RemoteQueue
from harness.scheduling.workers import HandedOut
from harness.scheduling.xdist_scheduling import LEAST, MOST, ClusterSession, PullScheduling, depth
from tests.scheduling.test_xdist_scheduling import FakeConfig, FakeNode

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController

CASES = 10


class Session(ClusterSession):
    """A scheduler with two fake workers, and the agent's end of its socket."""

    def __init__(
        self,
        folder: Path,
        *,
        failed: bool = False,
        devices: Callable[[str], str] = str,
        wide: frozenset[int] = frozenset(),
    ) -> None:
        self.agent, theirs = socket.socketpair()
        self.agent.setblocking(False)
        self.queue = RemoteQueue(theirs.detach(), "n")
        self.stops: list[tuple[str, float]] = []
        self._failed, self._devices, self._wide = failed, devices, wide
        self.scheduler = PullScheduling(cast("pytest.Config", FakeConfig()), self.queue, self, HandedOut(folder))
        self.nodes = [FakeNode("gw0"), FakeNode("gw1")]
        for node in self.nodes:
            self.add(node)
        self.scheduler.schedule()

    def described(self, ids: Sequence[str]) -> dict[str, Any]:
        return {"count": len(ids)}

    def widths(self, ids: Sequence[str]) -> list[int]:
        return [2 * (case in self._wide) for case in range(len(ids))]

    def device_of(self, worker: str) -> str:
        return self._devices(worker)

    def has_failed(self) -> bool:
        return self._failed

    def request_stop(self, reason: str, grace: float) -> None:
        self.stops.append((reason, grace))

    def add(self, node: FakeNode) -> None:
        worker = cast("WorkerController", node)
        self.scheduler.add_node(worker)
        self.scheduler.add_node_collection(worker, [f"case {number}" for number in range(CASES)])

    def close(self) -> None:
        self.agent.close()
        self.queue.close()

    def said(self) -> list[dict[str, Any]]:
        """Return the messages of the session since the last call."""
        try:
            data = self.agent.recv(1 << 16)
        except BlockingIOError:
            return []
        return [json.loads(line) for line in data.splitlines()]

    def finish(self, node: FakeNode, duration: float = 10.0) -> int:
        case = node.queue.pop(0)
        self.scheduler.mark_test_complete(cast("WorkerController", node), case, duration)
        return case


Start = Callable[..., Session]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start sessions, and close them at the end."""
    started: list[Session] = []

    def made(**options: Any) -> Session:
        started.append(Session(tmp_path, **options))
        return started[-1]

    yield made
    for session in started:
        session.close()


def give(session: Session, *cases: int, avoid: str = "") -> None:
    session.scheduler.give([GivenCase(case, avoid) for case in cases])


def test_it_says_what_it_has_and_asks(start: Start) -> None:
    session = start()
    assert session.said() == [
        {"say": "ready", "workers": 2, "count": CASES},
        {"say": "want", "cases": 2 * LEAST},
    ]


def test_cases_go_to_the_worker_with_the_fewest(start: Start) -> None:
    session = start()
    give(session, 0, 1, 2, 3)
    assert [node.sent for node in session.nodes] == [[0, 2], [1, 3]]
    session.said()
    assert session.finish(session.nodes[0]) == 0
    assert session.said() == [{"say": "done", "case": 0}, {"say": "want", "cases": 1}]


def test_workers_end_when_no_more_cases_come(start: Start) -> None:
    session = start()
    give(session, 0, 1)
    assert not session.scheduler.tests_finished
    assert not any(node.shutting_down for node in session.nodes)
    session.scheduler.end()
    assert all(node.shutting_down for node in session.nodes)
    assert session.scheduler.tests_finished


def test_a_second_look_avoids_the_first_device(start: Start) -> None:
    session = start(devices={"gw0": "GPU-0", "gw1": "GPU-1"}.__getitem__)
    give(session, 0, avoid="GPU-0")
    give(session, 1, avoid="GPU-0")
    assert [node.sent for node in session.nodes] == [[], [0, 1]]
    give(session, 2, avoid="GPU-9")
    assert session.nodes[0].sent == [2]


def test_a_second_look_that_a_dead_worker_had_avoids_the_first_device_still(start: Start) -> None:
    session = start(devices={"gw0": "GPU-0", "gw1": "GPU-1", "gw2": "GPU-1"}.__getitem__)
    other = FakeNode("gw2")
    session.add(other)
    session.scheduler.schedule()
    for case in range(3):
        give(session, case, avoid="GPU-0")
    nodes = [*session.nodes, other]
    assert [node.sent for node in nodes] == [[], [0, 2], [1]]
    assert session.scheduler.remove_node(cast("WorkerController", session.nodes[1])) == "case 0"
    assert [node.sent for node in nodes] == [[], [0, 2], [1, 2]]


def test_one_worker_runs_the_cases_for_several_devices(start: Start) -> None:
    """The others continue with cases for one device. The end comes when both kinds are done."""
    session = start(wide=frozenset({0, 1, 2, 3}))
    give(session, 0, 1, 2, 3, 4, 5)
    assert [node.sent for node in session.nodes] == [[0, 1], [4, 5]]
    session.finish(session.nodes[1])
    session.scheduler.end()
    assert [node.shutting_down for node in session.nodes] == [False, True]
    session.finish(session.nodes[0])
    session.finish(session.nodes[0])
    assert session.nodes[0].sent == [0, 1, 2, 3]
    assert all(node.shutting_down for node in session.nodes)


def test_another_worker_takes_up_the_cases_for_several_devices(start: Start) -> None:
    session = start(wide=frozenset({0, 1, 2}))
    give(session, 0, 1, 2)
    dead = session.nodes[0]
    assert session.scheduler.remove_node(cast("WorkerController", dead)) == "case 0"
    assert session.nodes[1].sent == [1, 2]


def test_the_cases_of_a_dead_worker_go_to_others(start: Start) -> None:
    session = start()
    give(session, 0, 1, 2, 3)
    session.said()
    dead = session.nodes[0]
    assert session.scheduler.remove_node(cast("WorkerController", dead)) == "case 0"
    assert session.said() == [{"say": "done", "case": 0}]  # the head detects that its end is missing
    new = FakeNode("gw2")
    session.add(new)
    session.scheduler.schedule()
    assert new.sent == [2]


def test_a_collection_that_failed_runs_nothing(start: Start) -> None:
    session = start(failed=True)
    assert session.said() == []
    assert all(node.shutting_down for node in session.nodes)


def test_a_stop(start: Start) -> None:
    session = start()
    session.scheduler.stop("stopped by SIGTERM", 3.0)
    assert session.stops == [("stopped by SIGTERM", 3.0)]
    assert all(node.shutting_down for node in session.nodes)


@pytest.mark.parametrize(("seconds", "cases"), [(0.0, MOST), (0.001, MOST), (0.1, 10), (0.4, 3), (60.0, LEAST)])
def test_short_cases_come_in_larger_numbers(seconds: float, cases: int) -> None:
    assert depth(seconds) == cases


def test_an_ordinary_session_has_no_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert RemoteQueue.of_this_process() is None
