"""The scheduler of xdist's workers: what it does for each case does not grow with the number of cases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from harness.scheduling.handed_out import HandedOut, HandedOutList
from harness.scheduling.xdist_scheduler import LongestFirstScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController


class FakeNode:
    """A fake worker: it remembers what it was sent."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.queue: list[int] = []
        self.sent: list[int] = []

    def send_runtest_some(self, positions: Sequence[int]) -> None:
        self.queue += positions
        self.sent += positions

    def shutdown(self) -> None:
        self.shutting_down = True


class CountedSeconds(list[float]):
    """Expected durations that count how often one of them was read."""

    reads = 0

    def __getitem__(self, position: object) -> float:  # type: ignore[override]
        type(self).reads += 1
        return super().__getitem__(position)  # type: ignore[call-overload, no-any-return]


class FakeConfig:
    """The fake configuration of a run with two workers."""

    option = SimpleNamespace(tx=["2*popen"])

    def getvalue(self, name: str) -> object:
        return getattr(self.option, name)


def reads_a_case(folder: Path, cases: int) -> float:
    """How often an expected duration is read, for each case of a run with two workers."""
    seconds = CountedSeconds([1.0] * cases)
    config = cast("pytest.Config", FakeConfig())
    scheduler = LongestFirstScheduling(
        config, lambda _: seconds, lambda ids: [0] * len(ids), HandedOut(folder), devices=2
    )
    nodes = [FakeNode("gw0"), FakeNode("gw1")]
    for node in nodes:
        worker = cast("WorkerController", node)
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, [f"case {number}" for number in range(cases)])
    folder.mkdir()
    scheduler.schedule()
    CountedSeconds.reads = 0
    done = 0
    while any(node.queue for node in nodes):
        for node in nodes:
            if node.queue:
                scheduler.mark_test_complete(cast("WorkerController", node), node.queue.pop(0))
                done += 1
    assert done == cases
    assert all(node.shutting_down for node in nodes)
    assert not scheduler.has_pending
    for node in nodes:
        told = HandedOutList(folder, node.gateway.id)
        told.refresh()
        assert (told.positions, told.ended) == (node.sent, True)
        told.close()
    return CountedSeconds.reads / cases


def test_the_work_for_a_case_does_not_grow_with_their_number(tmp_path: Path) -> None:
    few, many = reads_a_case(tmp_path / "few", 200), reads_a_case(tmp_path / "many", 5000)
    assert many <= 1.5 * few
