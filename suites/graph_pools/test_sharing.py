"""Graphs with shared and with separate pools: correct results, and the memory that they share."""

from __future__ import annotations

import itertools

import pytest
import torch

from .pools import Captured, PoolId, address, captured, live_blocks, new_stream, pool_of, reserved_in, segments_of

pytestmark = [
    pytest.mark.requires(any=[{"device": "cuda"}, {"accelerator_graphs": True}]),
    pytest.mark.usefixtures("nothing_left"),
]

#: Tensors of 1.25 MiB, the smallest that CUDA's allocator treats as large, so that they are in segments of 20 MiB.
ELEMENTS = 5 << 16


def numbers(device: torch.device) -> torch.Tensor:
    return torch.zeros(ELEMENTS, dtype=torch.int32, device=device)


def stepped(x: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Return x -> 2 (x + 1), applied repeatedly, with temporary tensors."""
    for _ in range(steps):
        left, right = x.clone() + 1, x.clone() + 1
        x = left + right
    return x


def expected(value: int, steps: int = 5) -> int:
    for _ in range(steps):
        value = 2 * (value + 1)
    return value


def chain(device: torch.device, source: torch.Tensor, length: int, share: bool) -> list[Captured]:
    """Return graphs that each continue from the result of the previous one, in one pool or in separate pools.

    All are captured on one stream, because memory is only reused on its own stream.
    """
    graphs: list[Captured] = []
    stream = new_stream(device)
    for _ in range(length):
        x = graphs[-1].outputs[0] if graphs else source
        pool = graphs[0].pool if share and graphs else None
        graphs.append(captured(device, lambda x=x: [stepped(x)], pool, stream))  # type: ignore[misc]
    return graphs


@pytest.mark.covers(
    "test_cuda::TestCuda::test_graph_two_successive", "test_cuda::TestCuda::test_graph_three_successive"
)
@pytest.mark.parametrize("share", [False, True], ids=["apart", "shared"])
@pytest.mark.parametrize("length", [2, 3])
def test_graphs_replayed_in_order_in_one_pool_are_right(device: torch.device, length: int, share: bool) -> None:
    """Dependent graphs replayed in capture order are correct with a shared pool and with separate pools."""
    source, mine = numbers(device), numbers(device)
    graphs = chain(device, source, length, share)
    assert (len({graph.pool for graph in graphs}) == 1) == share

    for value in (3, -7, 100):
        source.fill_(value)
        mine.fill_(value + 1)
        for graph in graphs:
            graph.replay()
            mine = stepped(mine, 1)
        torch.accelerator.synchronize(device)
        assert (graphs[-1].outputs[0] == expected(value, 5 * length)).all()
        assert (mine == expected(value + 1, length)).all()


@pytest.mark.covers("test_cuda::TestCuda::test_graph_two_successive")
def test_graph_pool_sharing_saves_memory(device: torch.device) -> None:
    """A graph in a shared pool reuses memory that the previous one freed on the same stream.

    Together they need less memory than with separate pools, by at least one graph's temporaries.
    """
    source = numbers(device)
    apart = chain(device, source, 2, share=False)
    shared = chain(device, source, 2, share=True)

    sizes = [reserved_in(device, *(graph.pool for graph in graphs)) for graphs in (apart, shared)]

    assert sizes[0] - sizes[1] >= 2 * source.nbytes


def test_graph_pools_are_separate_unless_shared(device: torch.device) -> None:
    """Each graph has its own pool with its own memory, distinct from the default pool.

    A graph that gets another graph's pool allocates from memory that the other has freed.
    """
    source, stream = numbers(device), new_stream(device)
    graphs = [captured(device, lambda: [stepped(source)], stream=stream) for _ in range(3)]
    torch.accelerator.empty_cache()
    before = torch.accelerator.memory_reserved(device)
    sharing = captured(device, lambda: [source + 1], graphs[1].pool, stream)
    torch.accelerator.empty_cache()

    ids = [graph.pool for graph in graphs]
    assert len(set(ids)) == 3
    assert (0, 0) not in ids
    owned = [spans(device, pool) for pool in ids]
    assert all(owned)
    assert len({start for starts in owned for start in starts}) == sum(map(len, owned))
    assert sharing.pool == ids[1]
    assert [address(sharing.outputs[0]) in range(*each) for each in extents(device, ids[1])].count(True) == 1
    assert torch.accelerator.memory_reserved(device) == before


def extents(device: torch.device, pool: PoolId) -> list[tuple[int, int]]:
    """Return the start and end addresses of a pool's segments."""
    return [(each["address"], each["address"] + each["total_size"]) for each in segments_of(device, pool)]


def test_graph_pool_has_what_its_graph_allocates(device: torch.device) -> None:
    """The live blocks of a pool are exactly the outputs of its capture; other tensors are in the default pool."""
    source = numbers(device)
    graph = captured(device, lambda: [stepped(source), source + 1])
    later = [numbers(device) for _ in range(10)]

    assert {block.address for block in live_blocks(device, graph.pool)} == {address(each) for each in graph.outputs}
    assert {pool_of(device, address(each)) for each in graph.outputs} == {graph.pool}
    assert {pool_of(device, address(each)) for each in [source, *later]} == {(0, 0)}


def test_graph_pool_free_memory_is_not_given_to_the_program(device: torch.device) -> None:
    """Memory freed in a capture is kept for replays: eager tensors of the same size do not overlap it."""
    source = numbers(device)
    graph = captured(device, lambda: [stepped(source)])
    reserved = reserved_in(device, graph.pool)
    assert reserved > graph.outputs[0].nbytes  # the pool has free memory

    others = [torch.full_like(source, -1) for _ in range(30)]
    source.fill_(2)
    graph.replay()
    torch.accelerator.synchronize(device)

    assert (graph.outputs[0] == expected(2)).all()
    assert all((other == -1).all() for other in others)
    assert reserved_in(device, graph.pool) == reserved


def test_empty_cache_keeps_graph_pools(device: torch.device) -> None:
    """`empty_cache` releases nothing from a live graph's pool, not even free blocks."""
    source = numbers(device)
    graph = captured(device, lambda: [stepped(source)])
    before = [(segment["address"], segment["total_size"]) for segment in segments_of(device, graph.pool)]

    torch.accelerator.empty_cache()

    assert [(segment["address"], segment["total_size"]) for segment in segments_of(device, graph.pool)] == before
    source.fill_(9)
    graph.replay()
    torch.accelerator.synchronize(device)
    assert (graph.outputs[0] == expected(9)).all()


@pytest.mark.covers("test_cuda::TestCuda::test_graph_concurrent_replay")
def test_graphs_of_different_pools_replay_at_once(device: torch.device) -> None:
    """Two independent graphs replayed concurrently on two streams are correct each time."""
    sources = [numbers(device) for _ in range(2)]
    graphs = [captured(device, lambda x=x: [stepped(x)]) for x in sources]  # type: ignore[misc]
    streams = [new_stream(device) for _ in range(2)]
    ours, theirs = (set(spans(device, graph.pool)) for graph in graphs)
    assert not ours & theirs

    for turn in range(5):
        for source, number in zip(sources, (turn, -turn), strict=True):
            source.fill_(number)
        torch.accelerator.synchronize(device)
        for _, (graph, stream) in itertools.product(range(3), list(zip(graphs, streams, strict=True))):
            with stream:
                graph.replay()
        torch.accelerator.synchronize(device)
        assert (graphs[0].outputs[0] == expected(turn)).all()
        assert (graphs[1].outputs[0] == expected(-turn)).all()


def spans(device: torch.device, pool: PoolId) -> list[int]:
    """Return the start addresses of a pool's segments."""
    return [segment["address"] for segment in segments_of(device, pool)]


@pytest.mark.covers("test_cuda::TestCuda::test_graph_concurrent_replay")
def test_graphs_of_one_pool_replay_on_two_streams_in_order(device: torch.device) -> None:
    """Graphs in one pool can be replayed on different streams if each waits for the previous one."""
    source = numbers(device)
    graphs = chain(device, source, 2, share=True)
    streams = [new_stream(device) for _ in range(2)]

    for value in range(5):
        source.fill_(value)
        waited = torch.accelerator.current_stream(device)
        for graph, stream in zip(graphs, streams, strict=True):
            stream.wait_stream(waited)
            with stream:
                graph.replay()
            waited = stream
        torch.accelerator.current_stream(device).wait_stream(waited)
        torch.accelerator.synchronize(device)
        assert (graphs[1].outputs[0] == expected(value, 10)).all()


@pytest.mark.covers("test_cuda::TestCuda::test_cuda_graph_allocator_propagates_stream")
def test_graph_pool_serves_streams_that_join_a_capture(device: torch.device) -> None:
    """Allocations on a stream that joined a capture are in the capture's pool, in segments of that stream."""
    source = numbers(device)
    side = new_stream(device)

    def work() -> list[torch.Tensor]:
        main = torch.accelerator.current_stream(device)
        first = source + 1
        side.wait_stream(main)
        with side:
            second = first * 3
        main.wait_stream(side)
        return [first, second]

    graph = captured(device, work)
    source.fill_(5)
    graph.replay()
    torch.accelerator.synchronize(device)

    assert [pool_of(device, address(each)) for each in graph.outputs] == [graph.pool] * 2
    by_stream: dict[int, set[int]] = {}
    for segment in segments_of(device, graph.pool):
        inside = range(segment["address"], segment["address"] + segment["total_size"])
        held = {place for place in map(address, graph.outputs) if place in inside}
        by_stream.setdefault(segment["stream"], set()).update(held)
    assert sorted(len(held) for held in by_stream.values() if held) == [1, 1]
    assert [each[0].item() for each in graph.outputs] == [6, 18]
