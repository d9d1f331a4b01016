"""Pinned memory in captures: a graph reads it at each replay, so that it must not be given out meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from suites.cuda_warnings import of_empty_graphs

pytestmark = [pytest.mark.requires(device="cuda", cuda_graphs=True, torch=">=2.11"), pytest.mark.timeout(300)]

#: Of one block: above what is shared, and a power of two.
SIZE = 1 << 21
POISON = 255


@pytest.fixture(autouse=True)
def no_graph_stays(device: torch.device) -> Iterator[None]:
    """Nothing is at work when a case begins or ends."""
    torch.cuda.synchronize(device)
    yield
    gc.collect()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()


def pinned(value: int) -> torch.Tensor:
    return torch.full((SIZE,), value, dtype=torch.uint8).pin_memory()


def blocks(number: int = 8) -> list[torch.Tensor]:
    """Pinned blocks full of poison, which live at once: one of them would be in memory that is free."""
    return [torch.empty(SIZE, dtype=torch.uint8, pin_memory=True).fill_(POISON) for _ in range(number)]


@pytest.mark.covers("test_cuda::TestCachingHostAllocatorCudaGraph::test_pin_memory_no_use")
@pytest.mark.parametrize("times", [1, 3])
def test_pinned_block_made_in_a_capture_and_not_used_harms_nothing(device: torch.device, times: int) -> None:
    """Contract: pinned memory may be asked for and dropped in a capture that never uses it: the capture goes on, the
    graph runs, and later requests are met."""
    x = torch.zeros(100, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(times):
            block = torch.empty(SIZE, dtype=torch.uint8, pin_memory=True)
            assert block.is_pinned()
            del block
        x.add_(1)
    graph.replay()
    torch.cuda.synchronize(device)

    assert bool((x == 1).all())
    assert len({block.data_ptr() for block in blocks()}) == 8


@pytest.mark.covers("test_cuda::TestCachingHostAllocatorCudaGraph::test_pin_memory_no_use2")
def test_pinned_block_that_lives_through_a_capture_stays_its_owners(device: torch.device) -> None:
    """Contract: pinned memory made in a capture and kept holds what the host wrote, through replays and other requests,
    and is apart from them."""
    x = torch.zeros(100, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        block = torch.empty(SIZE, dtype=torch.uint8, pin_memory=True)
        x.add_(1)
    block.fill_(7)
    others = blocks()
    graph.replay()
    torch.cuda.synchronize(device)

    assert bool((block == 7).all())
    assert block.data_ptr() not in {other.data_ptr() for other in others}


#: Of a block from which a captured copy reads, torch cannot tell when no graph reads it any more.
KEPT_FOR_EVER = "torch never gives a pinned block out again that was made and read in a capture"


@pytest.mark.keeps(KEPT_FOR_EVER, pinned="2MiB")
@pytest.mark.covers("test_cuda::TestCachingHostAllocatorCudaGraph::test_pin_memory_use")
def test_pinned_block_that_a_graph_reads_is_not_given_out(device: torch.device) -> None:
    """Contract: a pinned block made in a capture, from which a captured copy reads, is dropped by the host and yet not
    given to others as long as the graph lives: each replay brings the block's values. (One that was made before is the
    program's to keep, like all that a graph reads.)"""
    there = torch.zeros(SIZE, dtype=torch.uint8, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        block = torch.empty(SIZE, dtype=torch.uint8, pin_memory=True)
        there.copy_(block, non_blocking=True)
    block.fill_(5)
    address = block.data_ptr()
    del block
    others = blocks()

    assert address not in {other.data_ptr() for other in others}
    for _ in range(3):
        there.zero_()
        graph.replay()
        torch.cuda.synchronize(device)
        assert bool((there == 5).all())


@pytest.mark.covers("test_cuda::TestCachingHostAllocatorCudaGraph::test_pin_memory_use")
def test_replay_reads_what_the_pinned_block_holds_then(device: torch.device) -> None:
    """Contract: a replay reads the block when it runs: what the host wrote since the capture is what arrives."""
    there = torch.zeros(SIZE, dtype=torch.uint8, device=device)
    block = pinned(1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        there.copy_(block, non_blocking=True)

    for value in (2, 3, 4):
        block.fill_(value)
        graph.replay()
        torch.cuda.synchronize(device)
        assert bool((there == value).all())


@pytest.mark.keeps(KEPT_FOR_EVER, pinned="4MiB")
@pytest.mark.covers("test_cuda::TestCachingHostAllocatorCudaGraph::test_two_graphs")
def test_two_graphs_keep_their_pinned_blocks(device: torch.device) -> None:
    """Contract: of two graphs, each reading a pinned block that was made in its capture and dropped by the host, each
    brings its own values, in any order of replays; and when one graph is gone the other's block is still kept."""
    there = [torch.zeros(SIZE, dtype=torch.uint8, device=device) for _ in range(2)]
    graphs = []
    for number in range(2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            block = torch.empty(SIZE, dtype=torch.uint8, pin_memory=True)
            there[number].copy_(block, non_blocking=True)
        block.fill_(10 + number)
        graphs.append(graph)
        del block, graph
    first = blocks()
    for number in (1, 0, 0, 1):
        there[number].zero_()
        graphs[number].replay()
        torch.cuda.synchronize(device)
        assert bool((there[number] == 10 + number).all())

    del graphs[0]
    gc.collect()
    second = blocks()
    there[1].zero_()
    graphs[0].replay()
    torch.cuda.synchronize(device)

    assert bool((there[1] == 11).all())
    assert len({block.data_ptr() for block in (*first, *second)}) == 16


@of_empty_graphs
@pytest.mark.covers("test_cuda::TestCachingHostAllocatorCudaGraph::test_unpinned_memory_use")
@pytest.mark.covers("test_cuda::TestCachingHostAllocatorCudaGraph::test_unpinned_memory_use_device_to_host")
@pytest.mark.parametrize("to_device", [True, False], ids=["to_device", "to_host"])
def test_pageable_memory_in_a_capture_is_right_or_refused(device: torch.device, to_device: bool) -> None:
    """Contract: a captured copy from or to memory that is not pinned either is refused, with an exception that ends the
    capture and speaks of it, or brings the right values at each replay; never others in silence. The process works
    afterwards."""
    host = torch.full((1000,), 3, dtype=torch.uint8)
    there = torch.full((1000,), 3 if not to_device else 0, dtype=torch.uint8, device=device)
    if not to_device:
        host.zero_()
    graph = torch.cuda.CUDAGraph()
    refused = False
    try:
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            if to_device:
                there.copy_(host, non_blocking=True)
            else:
                host.copy_(there, non_blocking=True)
    except RuntimeError as error:
        refused = True
        assert "captur" in str(error).lower()  # noqa: PT017
    if not refused:
        for _ in range(2):
            (there if to_device else host).zero_()
            graph.replay()
            torch.cuda.synchronize(device)
            assert bool(((there if to_device else host) == 3).all())

    assert not torch.cuda.is_current_stream_capturing()
    assert (torch.ones(10, device=device) + 1).sum().item() == 20
