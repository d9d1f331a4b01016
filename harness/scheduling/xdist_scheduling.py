"""The schedulers of xdist's protocol: what they share, the longest case first, and the cases of a `RemoteQueue`.

`WorkerScheduling` has the workers, their collections, and their cases.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pytest
from xdist.report import report_collection_diff
from xdist.workermanage import parse_tx_spec_config

from harness.core.text import truncate_middle
from harness.scheduling.backlog import Backlog
from harness.scheduling.remote_queue import GivenCase, RemoteQueue
from harness.scheduling.workers import HandedOut

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController


#: Maximum characters of a list of differences between collections, which may differ in each of 23,000 ids.
_MOST_DIFFERENCES = 4000


class WorkerScheduling:
    """A part of a scheduler of xdist's protocol (`xdist.scheduler.Scheduling`).

    Cases are positions in the list that all workers have collected. `_lock` guards the queues if several threads use a
    scheduler.
    """

    def __init__(self, config: pytest.Config, handed_out: HandedOut) -> None:
        self._config = config
        self._handed_out = handed_out
        self._workers = len(parse_tx_spec_config(config))
        self._queues: dict[WorkerController, list[int]] = {}
        self._collections: dict[WorkerController, list[str]] = {}
        self._ids: list[str] | None = None
        self._lock = threading.RLock()

    @property
    def nodes(self) -> list[WorkerController]:
        with self._lock:
            return list(self._queues)

    @property
    def collection_is_completed(self) -> bool:
        return len(self._collections) >= self._workers

    def add_node(self, node: WorkerController) -> None:
        with self._lock:
            self._queues[node] = []

    def add_node_collection(self, node: WorkerController, collection: Sequence[str]) -> None:
        if self._ids is not None and list(collection) != self._ids:
            return  # the replacement of a dead worker has collected other cases, so it gets none
        self._collections[node] = list(collection)

    def remove_pending_tests_from_node(self, node: WorkerController, indices: Sequence[int]) -> None:
        raise NotImplementedError("this scheduler cannot take cases back from a live worker")

    def _collected(self) -> list[str] | None:
        """Return what all workers have collected. None if they differ, which is then an error of the collection."""
        (first, wanted), *others = self._collections.items()
        differences = [
            (node, report_collection_diff(wanted, ids, first.gateway.id, node.gateway.id)) for node, ids in others
        ]
        for _, text in differences:
            if text:
                text = truncate_middle(text, _MOST_DIFFERENCES)
                report = pytest.CollectReport(nodeid="", outcome="failed", longrepr=text, result=[])
                self._config.hook.pytest_collectreport(report=report)
        return None if any(text for _, text in differences) else wanted


def number(node: WorkerController) -> tuple[int, str]:
    """Return the key that sorts workers by their numbers."""
    name = node.gateway.id
    return len(name), name


# Hand out cases to xdist's workers, the longest first, as a `Backlog` decides.


class ScheduledRun(Protocol):
    """What is known about the cases of a run, by id."""

    def expected(self, ids: Sequence[str]) -> Sequence[float]:
        """Return the expected seconds of each of these cases."""

    def widths(self, ids: Sequence[str]) -> Sequence[int]:
        """Return the number of devices of each case, see `Backlog`."""

    def apart(self, ids: Sequence[str]) -> Sequence[int]:
        """Return the positions of the cases that run in their own process."""


class LongestFirstScheduling(WorkerScheduling):
    """A scheduler of xdist's protocol (`xdist.scheduler.Scheduling`). Only the controller's main thread uses it."""

    def __init__(self, config: pytest.Config, run: ScheduledRun, handed_out: HandedOut, *, devices: int) -> None:
        """`devices`: see `Backlog`."""
        super().__init__(config, handed_out)
        self._run = run
        self._devices = devices
        #: Expected seconds of the cases after the first one of each queue. Adding them up again per case would be
        #: quadratic.
        self._waiting: dict[WorkerController, float] = {}
        self._backlog = Backlog((), 1)

    @property
    def tests_finished(self) -> bool:
        """Whether no worker waits for more cases: each has at most the case that it runs."""
        if not self.collection_is_completed or self._backlog:
            return False
        return all(len(queue) < 2 for queue in self._queues.values())

    @property
    def has_pending(self) -> bool:
        return bool(self._backlog) or any(self._queues.values())

    def schedule(self) -> None:
        """Begin, once all workers have collected. Later, give cases to a worker that has joined since."""
        if self._ids is None:
            self._ids = self._collected()
            if self._ids is None:
                return
            self._backlog = Backlog(
                self._run.expected(self._ids),
                len(self._queues),
                self._run.widths(self._ids),
                self._devices,
                self._run.apart(self._ids),
            )
            for place, node in enumerate(self._by_number()):
                self._send(node, self._backlog.first(place))
        self._fill_all()

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        del duration
        self._remove(node, item_index)
        if self._backlog.finish(item_index):
            self._fill_all()
        else:
            self._fill(node)

    def mark_test_pending(self, item: str) -> None:
        assert self._ids is not None
        self._give_back([self._ids.index(item)])

    def remove_node(self, node: WorkerController) -> str | None:
        """Forget a worker. Return the case that it was running when it died."""
        queue = self._queues.pop(node)
        self._waiting.pop(node, None)
        if not queue:
            return None
        assert self._ids is not None
        running, *others = queue
        self._backlog.finish(running)
        self._give_back(others)
        return self._ids[running]

    def _give_back(self, positions: Sequence[int]) -> None:
        self._backlog.put_back(positions)
        self._fill_all()

    def _by_number(self) -> list[WorkerController]:
        """Return the workers in the order of their numbers, which is the order of their devices.

        They join in any order.
        """
        return sorted(self._queues, key=number)

    def _fill_all(self) -> None:
        for node in self._queues:
            self._fill(node)

    def _fill(self, node: WorkerController) -> None:
        """Give a worker the cases that it needs.

        A worker that gets no more cases must be notified, otherwise its last case waits forever.
        """
        if node.shutting_down or node not in self._collections:
            return
        place = self._by_number().index(node)
        waits = self._waiting.get(node)
        self._send(node, self._backlog.more(place, self._queues[node], len(self._queues), waits))
        if not self._backlog:
            self._handed_out.end(node.gateway.id)
            node.shutdown()

    def _send(self, node: WorkerController, positions: Sequence[int]) -> None:
        if positions:
            self._queues[node].extend(positions)
            self._waiting[node] = self._backlog.waiting(self._queues[node])
            self._handed_out.add(node.gateway.id, positions)
            with contextlib.suppress(OSError):  # xdist reports its end, and its cases come back
                node.send_runtest_some(list(positions))

    def _remove(self, node: WorkerController, position: int) -> None:
        """Remove the first case of a worker's queue. The next case no longer waits."""
        queue = self._queues[node]
        place = queue.index(position)
        del queue[place]
        if place or not queue:
            self._waiting[node] = self._backlog.waiting(queue)
        else:
            self._waiting[node] -= self._backlog.seconds(queue[0])


# Hand the cases from a `RemoteQueue` to xdist's workers. The agent decides which cases it sends.

#: A worker needs to know its next case before it begins one.
LEAST = 2
#: A worker gets cases for about this many seconds, but no more than this many cases.
AHEAD_SECONDS, MOST = 1.0, 64


def depth(mean_seconds: float) -> int:
    """Return how many cases each worker should have, if a case takes `mean_seconds`."""
    if mean_seconds <= 0:
        return MOST
    return min(MOST, max(LEAST, math.ceil(AHEAD_SECONDS / mean_seconds)))


class ClusterSession(Protocol):
    """The session of a cluster run whose cases are handed out."""

    def widths(self, ids: Sequence[str]) -> Sequence[int]:
        """Return the number of devices of each case that takes more than a worker's slot; 0 for all others."""

    def described(self, ids: Sequence[str]) -> dict[str, Any]:
        """Return the facts about cases for the head."""

    def device_of(self, worker: str) -> str:
        """Return the UUID of the device of a worker."""

    def has_failed(self) -> bool:
        """Return whether the collection has failed, so that no case runs."""

    def request_stop(self, reason: str, grace: float) -> None:
        """Stop the workers after `grace` seconds."""


class PullScheduling(WorkerScheduling):
    """A scheduler of xdist's protocol (`xdist.scheduler.Scheduling`).

    xdist calls the methods in the main thread, and the queue in another thread, so a lock guards each method.
    """

    def __init__(self, config: pytest.Config, source: RemoteQueue, run: ClusterSession, handed_out: HandedOut) -> None:
        super().__init__(config, handed_out)
        self._source = source
        self._run = run
        self._buffer: deque[GivenCase] = deque()
        #: Cases that take several devices wait here. One worker runs all of them: several workers would wait for each
        #: other's devices again and again, with a new executor per case.
        self._wide: deque[GivenCase] = deque()
        self._is_wide: frozenset[int] = frozenset()
        #: The cases that workers have, as the agent got them.
        self._given: dict[int, GivenCase] = {}
        self._requested = 0
        self._ended = False
        self._mean = math.inf

    @property
    def tests_finished(self) -> bool:
        with self._lock:
            return self._ended and not self._waiting and all(len(queue) < LEAST for queue in self._queues.values())

    @property
    def has_pending(self) -> bool:
        with self._lock:
            return bool(self._waiting) or any(self._queues.values())

    def schedule(self) -> None:
        """Begin, once all workers have collected. Later, give cases to a worker that has joined since."""
        with self._lock:
            if self._ids is None:
                collected = self._collected()
                if collected is None or self._run.has_failed():
                    self.end()
                    return
                self._ids = collected
                widths = self._run.widths(self._ids)
                self._is_wide = frozenset(case for case, width in enumerate(widths) if width)
                self._source.send("ready", workers=len(self._queues), **self._run.described(self._ids))
                self._source.listen(self)
            self._fill()

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        with self._lock:
            self._queues[node].remove(item_index)
            self._given.pop(item_index, None)
            self._mean = duration if math.isinf(self._mean) else 0.8 * self._mean + 0.2 * duration
            self._source.send("done", case=item_index)
            self._fill()

    def mark_test_pending(self, item: str) -> None:
        raise NotImplementedError("the head decides which cases run again")

    def remove_node(self, node: WorkerController) -> str | None:
        """Forget a worker. Return the case that it was running when it died."""
        with self._lock:
            queue = self._queues.pop(node)
            self._collections.pop(node, None)
            if not queue:
                return None
            assert self._ids is not None
            running, *others = queue
            self._given.pop(running, None)
            for case in reversed(others):
                self._buffer_of(case).appendleft(self._given.pop(case))
            self._source.send("done", case=running)
            self._fill()
            return self._ids[running]

    def give(self, cases: Sequence[GivenCase]) -> None:
        with self._lock:
            self._requested = max(0, self._requested - len(cases))
            for case in cases:
                self._buffer_of(case.case).append(case)
            self._fill()

    def end(self) -> None:
        with self._lock:
            self._ended = True
            self._fill()

    def stop(self, reason: str, grace: float) -> None:
        self._run.request_stop(reason, grace)
        self.end()

    @property
    def _waiting(self) -> int:
        """The number of cases that no worker has."""
        return len(self._buffer) + len(self._wide)

    def _buffer_of(self, case: int) -> deque[GivenCase]:
        return self._wide if case in self._is_wide else self._buffer

    def _fill(self) -> None:
        """Give workers the cases that they need.

        A worker that gets no more cases must be notified, otherwise its last case waits forever.
        """
        ready = [node for node in self._queues if node in self._collections and not node.shutting_down]
        deep = depth(self._mean)
        leader = min(ready, key=number, default=None)
        while self._wide and leader is not None and len(self._queues[leader]) < LEAST:
            self._send(leader, self._wide.popleft())
        while self._buffer and ready:
            node = min(ready, key=lambda candidate: len(self._queues[candidate]))
            if len(self._queues[node]) >= max(deep, LEAST):
                break
            given = self._buffer.popleft()
            if given.avoid and (others := [n for n in ready if self._run.device_of(n.gateway.id) != given.avoid]):
                node = min(others, key=lambda candidate: len(self._queues[candidate]))
            self._send(node, given)
        if self._ended:
            for node in ready if not self._buffer else ():
                if not (self._wide and node is leader):
                    self._handed_out.end(node.gateway.id)
                    node.shutdown()
            return
        self._request(len(ready) * deep)

    def _request(self, capacity: int) -> None:
        outstanding = sum(map(len, self._queues.values())) + self._waiting + self._requested
        free = capacity - outstanding
        if free >= max(1, capacity // 4):
            self._requested += free
            self._source.send("want", cases=free)

    def _send(self, node: WorkerController, given: GivenCase) -> None:
        self._given[given.case] = given
        self._queues[node].append(given.case)
        self._handed_out.add(node.gateway.id, [given.case])
        node.send_runtest_some([given.case])
