"""Graphs that share a pool, and graphs that do not: right results, and memory that is saved or kept apart."""

from __future__ import annotations

import itertools

import pytest
import torch

from .pools import Captured, PoolId, address, captured, live_blocks, new_stream, pool_of, reserved_in, segments_of

pytestmark = [
    pytest.mark.requires(any=[{"device": "cuda"}, {"accelerator": True, "torch": ">=2.13"}]),
    pytest.mark.usefixtures("nothing_left"),
]

#: Tensors of 1.25 MiB: the least that CUDA's allocator takes for large, so that they are in segments of 20 MiB.
ELEMENTS = 5 << 16


def numbers(device: torch.device) -> torch.Tensor:
    return torch.zeros(ELEMENTS, dtype=torch.int32, device=device)


def stepped(x: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """x -> 2 (x + 1), some times, by way of temporary tensors."""
    for _ in range(steps):
        left, right = x.clone() + 1, x.clone() + 1
        x = left + right
    return x


def expected(value: int, steps: int = 5) -> int:
    for _ in range(steps):
        value = 2 * (value + 1)
    return value


def chain(device: torch.device, source: torch.Tensor, length: int, share: bool) -> list[Captured]:
    """Graphs each of which goes on from where the one before it ends, in one pool or in a pool each.

    All are captured on one stream: memory is given again to the stream that had it only.
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
    """Contract: graphs captured one after the other, each reading what the one before it left, give the right result
    when they are replayed in that order, with work of the program's own between them, whether they share a pool or
    not."""
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
    """Contract: a graph that shares a pool uses what the one before it has freed on the same stream: together they have
    less memory than two that do not share, by at least what one of them needs for temporary tensors."""
    source = numbers(device)
    apart = chain(device, source, 2, share=False)
    shared = chain(device, source, 2, share=True)

    sizes = [reserved_in(device, *(graph.pool for graph in graphs)) for graphs in (apart, shared)]

    assert sizes[0] - sizes[1] >= 2 * source.nbytes


def test_graph_pools_are_apart_unless_they_are_shared(device: torch.device) -> None:
    """Contract: each graph has a pool of its own, which is not the one that everything else is in, and memory of its
    own in it; a graph that is given another's has that one, and puts what it makes into memory that the other has left
    free."""
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
    """Where the segments of a pool begin and end."""
    return [(each["address"], each["address"] + each["total_size"]) for each in segments_of(device, pool)]


def test_graph_pool_has_what_its_graph_allocates(device: torch.device) -> None:
    """Contract: outputs of a capture are live blocks of its pool, and no others are; what was there before, and what
    the program allocates afterwards, is in the ordinary pool."""
    source = numbers(device)
    graph = captured(device, lambda: [stepped(source), source + 1])
    later = [numbers(device) for _ in range(10)]

    assert {block.address for block in live_blocks(device, graph.pool)} == {address(each) for each in graph.outputs}
    assert {pool_of(device, address(each)) for each in graph.outputs} == {graph.pool}
    assert {pool_of(device, address(each)) for each in [source, *later]} == {(0, 0)}


def test_graph_pool_free_memory_is_not_given_to_the_program(device: torch.device) -> None:
    """Contract: memory that a capture freed is the graph's for its replays: tensors of the same size that the program
    makes, and fills, are elsewhere, and the replay is right and leaves them alone."""
    source = numbers(device)
    graph = captured(device, lambda: [stepped(source)])
    reserved = reserved_in(device, graph.pool)
    assert reserved > graph.outputs[0].nbytes  # there is free memory in the pool

    others = [torch.full_like(source, -1) for _ in range(30)]
    source.fill_(2)
    graph.replay()
    torch.accelerator.synchronize(device)

    assert (graph.outputs[0] == expected(2)).all()
    assert all((other == -1).all() for other in others)
    assert reserved_in(device, graph.pool) == reserved


def test_empty_cache_spares_graph_pools(device: torch.device) -> None:
    """Contract: `empty_cache` takes nothing from a pool whose graph may be replayed, not even what is free in it."""
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
    """Contract: two graphs that share nothing, replayed on two streams with nothing between them, are both right, each
    time."""
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
    """Where the segments of a pool begin."""
    return [segment["address"] for segment in segments_of(device, pool)]


@pytest.mark.covers("test_cuda::TestCuda::test_graph_concurrent_replay")
def test_graphs_of_one_pool_replay_on_two_streams_in_order(device: torch.device) -> None:
    """Contract: graphs that share a pool may be replayed on different streams, if each waits for the one before."""
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
    """Contract: what is allocated on a stream that has joined a capture is in the capture's pool, in segments of that
    stream, and the replay with both is right."""
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
