"""The common part of both schedulers of xdist's protocol: the workers, their collections, and their cases."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
from xdist.report import report_collection_diff
from xdist.workermanage import parse_tx_spec_config

from harness.core.text import truncate_middle
from harness.scheduling.handed_out import HandedOut

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
