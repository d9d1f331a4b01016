"""Hand out cases to xdist's workers, the longest first, as a `Backlog` decides."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import pytest

from harness.scheduling.backlog import Backlog
from harness.scheduling.handed_out import HandedOut
from harness.scheduling.worker_scheduling import WorkerScheduling, number

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController


class LongestFirstScheduling(WorkerScheduling):
    """A scheduler of xdist's protocol (`xdist.scheduler.Scheduling`). Only the controller's main thread uses it."""

    def __init__(
        self,
        config: pytest.Config,
        expected: Callable[[Sequence[str]], Sequence[float]],
        widths: Callable[[Sequence[str]], Sequence[int]],
        apart: Callable[[Sequence[str]], Sequence[int]],
        handed_out: HandedOut,
        *,
        devices: int,
    ) -> None:
        """`expected` returns the expected seconds of each of the given cases. `widths`, `apart`, `devices`: see
        `Backlog`.
        """
        super().__init__(config, handed_out)
        self._expected = expected
        self._widths = widths
        self._apart = apart
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
                self._expected(self._ids),
                len(self._queues),
                self._widths(self._ids),
                self._devices,
                self._apart(self._ids),
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
