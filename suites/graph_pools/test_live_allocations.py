"""The check of a pool's live allocations, and allocations of threads from a pool."""

from __future__ import annotations

import threading

import pytest
import torch

from ..threads import together
from . import _torch_private as private
from .pools import LARGE_SEGMENT, PoolId, address, captured, live_blocks, pool_of

pytestmark = [
    pytest.mark.requires(device="cuda", cuda_graphs=True, not_={"rocm": True}),
    pytest.mark.usefixtures("nothing_left"),
]

ROW = "test_cuda::TestBlockStateAbsorption::"


@pytest.mark.covers(f"{ROW}test_check_pool_live_allocations")
def test_check_pool_live_allocations_holds_for_just_the_live_blocks(device: torch.device) -> None:
    """The check is True for exactly the addresses of the live outputs, as outputs are deleted one after another."""
    index = device.index or 0
    graph = captured(device, lambda: [torch.ones(4, device=device) for _ in range(3)])
    places = list(map(address, graph.outputs))

    while True:
        assert private.holds_exactly(index, graph.pool, places)
        assert not private.holds_exactly(index, graph.pool, [*places, 0])
        assert not private.holds_exactly(index, graph.pool, [*places[1:], 512]) or not places
        if not places:
            break
        assert not private.holds_exactly(index, graph.pool, places[1:])
        assert not private.holds_exactly(index, graph.pool, [])
        graph.outputs.pop()
        places.pop()


def test_check_pool_live_allocations_checks_one_pool(device: torch.device) -> None:
    """Live blocks of other pools do not affect the check."""
    index = device.index or 0
    one, two = (captured(device, lambda: [torch.ones(4, device=device)]) for _ in range(2))
    mine = torch.ones(4, device=device)

    for graph, other in ((one, two), (two, one)):
        assert private.holds_exactly(index, graph.pool, [address(graph.outputs[0])])
        assert not private.holds_exactly(index, graph.pool, [address(graph.outputs[0]), address(other.outputs[0])])
        assert not private.holds_exactly(index, graph.pool, [address(mine)])


# Threads


def block(device: torch.device) -> torch.Tensor:
    return torch.ones(LARGE_SEGMENT, dtype=torch.uint8, device=device)


@pytest.mark.covers(f"{ROW}test_allocate_in_thread_to_pool")
def test_begin_allocate_current_thread_to_pool_serves_that_thread_only(device: torch.device) -> None:
    """Within the block, the thread's allocations are in the pool; before, after, and in other threads they are not."""
    index = device.index or 0
    graph = captured(device, lambda: [torch.rand(4, device=device)])
    graph.outputs.clear()
    where: dict[str, set[PoolId | None]] = {"before": set(), "within": set(), "after": set(), "other": set()}
    inside, outside = threading.Event(), threading.Event()

    def three(when: str) -> None:
        first, second = block(device), block(device)
        where[when].update(pool_of(device, address(each)) for each in (first, second, first + second))

    def to_the_pool() -> None:
        stream = torch.cuda.Stream(device)
        three("before")
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            with private.this_threads_allocations(index, graph.pool):
                inside.set()
                for _ in range(10):
                    three("within")
                assert outside.wait(60)
            three("after")
        stream.synchronize()

    def elsewhere() -> None:
        try:
            assert inside.wait(60)
            for _ in range(10):
                three("other")
        finally:
            outside.set()

    works = to_the_pool, elsewhere
    together.run(2, lambda number: works[number]())

    ordinary: set[PoolId | None] = {(0, 0)}
    assert where == {"before": ordinary, "within": {graph.pool}, "after": ordinary, "other": ordinary}
    assert live_blocks(device, graph.pool) == []


def test_begin_allocate_current_thread_to_pool_in_two_threads(device: torch.device) -> None:
    """Concurrent threads with different pools each allocate from their own."""
    index = device.index or 0
    graphs = [captured(device, lambda: [torch.rand(4, device=device)]) for _ in range(2)]
    where: list[set[PoolId | None]] = [set(), set()]

    def work(number: int) -> None:
        stream = torch.cuda.Stream(device)
        with torch.cuda.stream(stream), private.this_threads_allocations(index, graphs[number].pool):
            for _ in range(20):
                where[number].add(pool_of(device, address(block(device))))
        stream.synchronize()

    together.run(2, work)

    assert where == [{graphs[0].pool}, {graphs[1].pool}]


def test_begin_allocate_current_thread_to_pool_ends_by_an_exception(device: torch.device) -> None:
    """After an exception leaves the block, allocations are from the default pool again."""
    index = device.index or 0
    graph = captured(device, lambda: [torch.rand(4, device=device)])

    def failing() -> None:
        with private.this_threads_allocations(index, graph.pool):
            assert pool_of(device, address(block(device))) == graph.pool
            raise LookupError("of the program's own")

    with pytest.raises(LookupError):
        failing()

    assert pool_of(device, address(block(device))) == (0, 0)
