"""The lifetime of a pool's memory: it lives until the last graph and output of the pool is deleted."""

from __future__ import annotations

import pytest
import torch

from .pools import (
    address,
    captured,
    capturing,
    empty_graph,
    live_blocks,
    new_stream,
    pool_of,
    reserved_in,
    segments_of,
    settle,
)

pytestmark = [
    pytest.mark.requires(any=[{"device": "cuda"}, {"accelerator_graphs": True}]),
    pytest.mark.usefixtures("nothing_left"),
]

ELEMENTS = 5 << 16


def numbers(device: torch.device, value: int = 0) -> torch.Tensor:
    return torch.full((ELEMENTS,), value, dtype=torch.int32, device=device)


def test_graph_pool_ends_with_its_graph(device: torch.device) -> None:
    """After graph and outputs are deleted, the pool's segments are released.

    Reserved memory is as before the capture.
    """
    source = numbers(device)
    captured(device, lambda: [source + 1])  # completes first-capture initialization
    settle(device)
    before = torch.accelerator.memory_reserved(device)

    graph = captured(device, lambda: [source * 2 + 1])
    assert reserved_in(device, graph.pool) > 0
    assert torch.accelerator.memory_reserved(device) > before
    pool = graph.pool
    del graph
    settle(device)

    assert segments_of(device, pool) == []
    assert torch.accelerator.memory_reserved(device) == before


@pytest.mark.covers("test_cuda::TestCuda::test_graph_memory_stats_and_use_result_after_destroy_graph")
def test_graph_pool_outputs_outlive_their_graph(device: torch.device) -> None:
    """An output outlives its graph with its values, is not overwritten, and its memory is released with it."""
    source = numbers(device, 4)
    settle(device)
    allocated = torch.accelerator.memory_allocated(device)
    graph = captured(device, lambda: [source + 1])
    graph.replay()
    torch.accelerator.synchronize(device)
    (output,), pool = graph.outputs, graph.pool
    del graph
    settle(device)

    assert pool_of(device, address(output)) == pool
    assert torch.accelerator.memory_allocated(device) - allocated == output.nbytes
    others = [numbers(device, -1) for _ in range(20)]
    assert (output == 5).all()
    assert (output * 2 == 10).all()
    assert address(output) not in {address(other) for other in others}

    del output, others
    settle(device)
    assert segments_of(device, pool) == []
    assert torch.accelerator.memory_allocated(device) == allocated


def test_graph_pool_lasts_as_long_as_one_of_its_graphs(device: torch.device) -> None:
    """Either of two graphs in one pool may be deleted first, and replays of the other are correct."""
    source = numbers(device)
    for survivor in (0, 1):
        graphs = [captured(device, lambda: [source + 1])]
        graphs.append(captured(device, lambda: [source * 3], graphs[0].pool))
        kept = graphs[survivor]
        del graphs
        settle(device)
        others = [numbers(device, -1) for _ in range(10)]

        source.fill_(survivor + 7)
        kept.replay()
        torch.accelerator.synchronize(device)

        assert (kept.outputs[0] == ((8, 24)[survivor])).all()
        assert all((other == -1).all() for other in others)
        del kept


def test_graph_reset_frees_the_pool(device: torch.device) -> None:
    """After `reset` and the deletion of its outputs, a graph's pool is empty."""
    source = numbers(device)
    graph = captured(device, lambda: [source + 1])
    pool = graph.pool
    graph.outputs.clear()

    graph.graph.reset()
    settle(device)

    assert segments_of(device, pool) == []


def test_capture_that_fails_keeps_no_memory(device: torch.device) -> None:
    """After a failed capture, its memory is released with the graph, and the next capture is correct."""
    source = numbers(device)
    settle(device)
    before = torch.accelerator.memory_reserved(device)

    def failing() -> None:
        graph = empty_graph(device)
        with capturing(graph, new_stream(device)):
            kept = source + 1
            raise LookupError(f"of the program's own, with {kept.numel()} elements")

    with pytest.raises(LookupError):
        failing()
    settle(device)

    assert torch.accelerator.memory_reserved(device) == before
    graph = captured(device, lambda: [source + 2])
    graph.replay()
    torch.accelerator.synchronize(device)
    assert (graph.outputs[0] == 2).all()


@pytest.mark.covers("test_cuda::TestCuda::test_graph_record_stream")
def test_record_stream_in_a_capture_is_safe(device: torch.device) -> None:
    """In each replay, a joined stream can read a tensor that was recorded on it and dropped in the capture.

    No other allocation of the capture reuses its block too early, and the block is free afterwards.
    """
    source = numbers(device)
    side = new_stream(device)

    def work() -> list[torch.Tensor]:
        main = torch.accelerator.current_stream(device)
        passing = source + 1
        side.wait_stream(main)
        with side:
            result = passing * 2
            for _ in range(20):
                result = result + passing
        passing.record_stream(side)
        del passing
        over = [source * 0 - 1000 for _ in range(4)]  # would reuse its address
        main.wait_stream(side)
        return [result, *over]

    graph = captured(device, work)
    for value in (0, 5, -3):
        source.fill_(value)
        graph.replay()
        torch.accelerator.synchronize(device)
        assert (graph.outputs[0] == 22 * (value + 1)).all()
        assert all((each == -1000).all() for each in graph.outputs[1:])

    # an allocation first records the streams' pending work, and the next one checks whether it is complete
    for _ in range(2):
        numbers(device)
        torch.accelerator.synchronize(device)
    assert {block.address for block in live_blocks(device, graph.pool)} == {address(each) for each in graph.outputs}
