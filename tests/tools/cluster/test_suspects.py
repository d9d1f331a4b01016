"""Cases that take their node down, in a simulated cluster: what the queue knows is what nodes sent before they died."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import pytest

from harness.core.outcome import Outcome
from harness.tools.cluster.jobs import (
    Action,
    GiveJobs,
    LostAttempt,
    NotRun,
    Suspected,
    Tell,
)
from harness.tools.cluster.link import End, Open, Quit
from harness.tools.cluster.queue import CaseQueue

WORKERS, SECONDS = 2, 0.3
#: Seconds between two looks of an agent at the journal of its session: it sends what is new.
LOOK = 0.2


@dataclass
class SimulatedNode:
    """A node with a session. `sent`: the messages that its agent has not sent yet."""

    name: str
    queues: list[list[int]] = field(default_factory=list)
    given: list[int] = field(default_factory=list)
    begun: set[int] = field(default_factory=set)
    sent: list[Callable[[], list[Action]]] = field(default_factory=list)
    ended: bool = False
    alive: bool = True


class Cluster:
    """A queue and its nodes. `deadly`: the seconds from the begin of a case to the death of its node."""

    def __init__(
        self,
        nodes: int,
        cases: int,
        deadly: Mapping[int, float],
        finished: frozenset[int] = frozenset(),
        suspects: Mapping[int, str] | None = None,
    ) -> None:
        names = [f"n{number}" for number in range(nodes)]
        self.queue = CaseQueue(names, silence=1e9, start_limit=1e9, now=0)
        self.queue.load([1.0] * cases, finished, suspects)
        self.deadly = deadly
        self.nodes = {name: SimulatedNode(name) for name in names}
        self.ends: dict[int, str] = {}
        self.messages: dict[int, str] = {}
        self.suspects: dict[int, str] = {}
        self.dead: list[str] = []
        self._numbers, self._now = count(), 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        for node in self.nodes.values():
            self._open(node, WORKERS)
            self._after(LOOK, lambda node=node: self._look(node))  # type: ignore[misc]

    def run(self, until: float = 1e6) -> None:
        while self._events and not self.queue.is_over and self._now < until:
            self.step()

    def step(self) -> None:
        self._now, _, happen = heapq.heappop(self._events)
        happen()

    def die(self, name: str) -> None:
        """Let a node die now."""
        self._die(self.nodes[name])

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._now + seconds, next(self._numbers), happen))

    def _open(self, node: SimulatedNode, workers: int) -> None:
        node.queues, node.ended = [[] for _ in range(workers)], False
        kinds = {f"{node.name}-0": "H200"}
        node.sent.append(lambda: self.queue.ready(node.name, self._now, workers=workers, gated={}, kinds=kinds))
        node.sent.append(lambda: self.queue.wants(node.name, 2 * workers))

    def _look(self, node: SimulatedNode) -> None:
        """Send what is new, as an agent does again and again."""
        if not node.alive:
            return
        sent, node.sent = node.sent, []
        for message in sent:
            self._act(message())
        self._act(self.queue.tick(self._now))
        self._after(LOOK, lambda: self._look(node))

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case GiveJobs(node=name, jobs=jobs):
                    self.nodes[name].given += jobs
                    self._go_on(self.nodes[name])
                case Tell(node=name, message=End()):
                    self.nodes[name].ended = True
                    self._go_on(self.nodes[name])
                case Tell(node=name, message=Open(alone=alone)):
                    self._open(self.nodes[name], 1 if alone else WORKERS)
                case Tell(node=name, message=Quit()):
                    self.nodes[name].sent.append(lambda name=name: self.queue.ended(name))  # type: ignore[misc]
                case NotRun(case=case, why=why):
                    self.ends[case], self.messages[case] = "not_run", why
                case LostAttempt(case=case, why=why, final=True):
                    self.ends[case], self.messages[case] = "lost", why
                case Suspected(case=case, node=name):
                    self.suspects[case] = name

    def _go_on(self, node: SimulatedNode) -> None:
        """Let the workers of a node begin what they can: a case whose next one is known, or the last one."""
        while node.given and min(map(len, node.queues)) < 2:
            min(node.queues, key=len).append(node.given.pop(0))
        for queue in node.queues:
            if queue and queue[0] not in node.begun and (len(queue) > 1 or (node.ended and not node.given)):
                self._begin(node, queue, queue[0])
        if node.ended and not node.given and not any(node.queues):
            node.ended = False
            node.sent.append(lambda: self.queue.session_over(node.name, "it ended", self._now))

    def _begin(self, node: SimulatedNode, queue: list[int], case: int) -> None:
        node.begun.add(case)
        node.sent.append(lambda: self._began(node.name, case))
        if case in self.deadly:
            self._after(self.deadly[case], lambda: self._die(node))
        else:
            self._after(SECONDS, lambda: self._finish(node, queue, case))

    def _began(self, name: str, case: int) -> list[Action]:
        self.queue.began(name, case)
        return []

    def _finish(self, node: SimulatedNode, queue: list[int], case: int) -> None:
        if node.alive:
            queue.remove(case)
            node.sent.append(lambda: self._done(node.name, case))
            self._go_on(node)

    def _done(self, name: str, case: int) -> list[Action]:
        self.queue.judged(case, Outcome.PASSED)
        self.ends[case] = "passed"
        return [*self.queue.done(name, case), *self.queue.wants(name, 1)]

    def _die(self, node: SimulatedNode) -> None:
        if node.alive:
            node.alive = False
            self.dead.append(node.name)
            self._act(self.queue.lost(node.name, "it is gone"))


def named(cluster: Cluster, case: int) -> bool:
    """Return whether the verdict on a case names two nodes that died."""
    found = re.fullmatch("node (n.+) was lost: .*; it was in flight when (n.+) ended", cluster.messages[case])
    return found is not None and {*found.groups()} <= {*cluster.dead} and found[1] != found[2]


@pytest.mark.parametrize("nodes", [2, 5, 16])
@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.5, 2.0])
@pytest.mark.parametrize("culprit", [0, 21, 59])
def test_a_case_that_takes_its_node_down_takes_two(culprit: int, seconds: float, nodes: int) -> None:
    cluster = Cluster(nodes, 60, {culprit: seconds})
    cluster.run()
    assert len(cluster.dead) == 2
    assert cluster.ends[culprit] == "lost"
    assert named(cluster, culprit)
    others = {case: end for case, end in cluster.ends.items() if case != culprit}
    assert len(others) == 59
    assert "lost" not in others.values()
    left = [case for case, end in others.items() if end == "not_run"]
    # The node had not reported which of its cases had begun, or ended, so the last node may meet the culprit first.
    assert len(left) <= (2 * WORKERS - 1 if nodes == 2 else 0)
    assert all("it was in flight when n" in cluster.messages[case] for case in left)


@pytest.mark.parametrize(("nodes", "dead"), [(5, 4), (16, 4)])
@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.5, 2.0])
@pytest.mark.parametrize("culprits", [(0, 1), (0, 30), (7, 59)])
def test_two_such_cases(culprits: tuple[int, int], seconds: float, nodes: int, dead: int) -> None:
    cluster = Cluster(nodes, 60, dict.fromkeys(culprits, seconds))
    cluster.run()
    assert len(cluster.dead) <= dead
    assert {case: end for case, end in cluster.ends.items() if end != "passed"} == dict.fromkeys(culprits, "lost")
    assert len(cluster.ends) == 60
    assert all(named(cluster, case) for case in culprits)


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.5, 2.0])
@pytest.mark.parametrize("until", [1e6, 4.0])
def test_a_resumed_run_knows_them(until: float, seconds: float) -> None:
    """Two such cases end a cluster of two nodes, or its head dies. The next part runs them alone."""
    culprits = (0, 30)
    first = Cluster(2, 60, dict.fromkeys(culprits, seconds))
    first.run(until)
    assert first.dead
    assert "lost" not in [end for case, end in first.ends.items() if case not in culprits]
    finished = frozenset(case for case, end in first.ends.items() if end == "passed")
    suspects = {case: name for case, name in first.suspects.items() if case not in finished}
    second = Cluster(5, 60, dict.fromkeys(culprits, seconds), finished, suspects)
    second.run()
    found = {case: end for case, end in second.ends.items() if end != "passed"}
    assert found == dict.fromkeys(culprits, "lost")
    assert len(second.dead) <= 2 + len({*culprits} - {*suspects})
    for case in set(culprits) & {*suspects}:
        assert f"when {first.suspects[case]} ended" in second.messages[case]


def test_a_node_that_dies_for_another_reason_costs_no_case() -> None:
    cluster = Cluster(3, 60, {})
    cluster.run(2.0)
    cluster.die("n1")
    cluster.run()
    assert cluster.suspects
    assert {*cluster.ends.values()} == {"passed"}
    assert len(cluster.ends) == 60


def test_suspects_run_one_after_the_other() -> None:
    """The second case of such a session has not begun, so only the first one is blamed for the end of its node."""
    cluster = Cluster(2, 4, {}, suspects=dict.fromkeys(range(4), "old"))
    while len(leased := [*cluster.queue.nodes["n0"].leased]) < 2:
        cluster.step()
    cluster.die("n0")
    assert [case for case, end in cluster.ends.items() if end == "lost"] == leased[:1]
    cluster.run()
    assert [end for case, end in sorted(cluster.ends.items()) if case != leased[0]] == ["passed"] * 3
