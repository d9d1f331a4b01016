"""The scheduler of xdist's workers: the work per case does not grow with their number, and workers may leave."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from harness.scheduling.workers import HandedOut, HandedOutList
from harness.scheduling.xdist_scheduling import LongestFirstScheduling

if TYPE_CHECKING:
    from xdist.workermanage import WorkerController


class FakeNode:
    """A fake worker that records what it was sent."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.shutting_down = False
        self.queue: list[int] = []
        self.sent: list[int] = []
        self.gone = False

    def send_runtest_some(self, positions: Sequence[int]) -> None:
        if self.gone:
            raise OSError("cannot send to <Channel id=3 closed>")
        self.queue += positions
        self.sent += positions

    def shutdown(self) -> None:
        self.shutting_down = True


class CountedSeconds(list[float]):
    """Expected durations that count the reads of their items."""

    reads = 0

    def __getitem__(self, position: object) -> float:  # type: ignore[override]
        type(self).reads += 1
        return super().__getitem__(position)  # type: ignore[call-overload, no-any-return]


class FakeConfig:
    """The fake configuration of a run with two workers."""

    option = SimpleNamespace(tx=["2*popen"])

    def getvalue(self, name: str) -> object:
        return getattr(self.option, name)


class FakeRun:
    """A run whose cases need one device each, in any process."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self._seconds = seconds

    def expected(self, ids: Sequence[str]) -> Sequence[float]:
        assert len(ids) == len(self._seconds)
        return self._seconds

    def widths(self, ids: Sequence[str]) -> Sequence[int]:
        return [0] * len(ids)

    def apart(self, _: Sequence[str]) -> Sequence[int]:
        return []


def begun(folder: Path, seconds: Sequence[float]) -> tuple[LongestFirstScheduling, list[FakeNode]]:
    """Return a run with one case per duration, and two workers that have their first cases."""
    config = cast("pytest.Config", FakeConfig())
    scheduler = LongestFirstScheduling(config, FakeRun(seconds), HandedOut(folder), devices=2)
    nodes = [FakeNode("gw0"), FakeNode("gw1")]
    for node in nodes:
        worker = cast("WorkerController", node)
        scheduler.add_node(worker)
        scheduler.add_node_collection(worker, [f"case {number}" for number in range(len(seconds))])
    folder.mkdir(exist_ok=True)
    scheduler.schedule()
    return scheduler, nodes


def reads_a_case(folder: Path, cases: int) -> float:
    """Return the number of reads of expected durations per case of a run with two workers."""
    scheduler, nodes = begun(folder, CountedSeconds([1.0] * cases))
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
        reported = HandedOutList(folder, node.gateway.id)
        reported.refresh()
        assert (reported.positions, reported.ended) == (node.sent, True)
        reported.close()
    return CountedSeconds.reads / cases


def test_the_work_for_a_case_does_not_grow_with_their_number(tmp_path: Path) -> None:
    few, many = reads_a_case(tmp_path / "few", 200), reads_a_case(tmp_path / "many", 5000)
    assert many <= 1.5 * few


def test_cases_of_a_worker_that_has_gone_are_given_to_another(tmp_path: Path) -> None:
    """Its connection is closed before xdist handles its last messages, as after a request to stop."""
    scheduler, (gone, left) = begun(tmp_path, [1.0] * 40)
    gone.gone = True
    while gone.queue:
        scheduler.mark_test_complete(cast("WorkerController", gone), gone.queue.pop(0))
    running = scheduler.remove_node(cast("WorkerController", gone))
    assert running is not None
    while left.queue:
        scheduler.mark_test_complete(cast("WorkerController", left), left.queue.pop(0))
    assert sorted([*gone.sent, *left.sent, int(running.removeprefix("case "))]) == [*range(40)]
    assert not scheduler.has_pending
