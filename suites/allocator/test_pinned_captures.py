"""Pinned memory in captures: a graph reads it at each replay, so it must not be reused before."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

from suites.cuda_warnings import of_empty_graphs
from suites.graphs.capturing import Api, apis, works

pytestmark = pytest.mark.timeout(300)

#: The size of a block: a power of two, above the sizes that share memory.
SIZE = 1 << 21
POISON = 255


@pytest.fixture(autouse=True)
def no_graph_stays(device: torch.device) -> Iterator[None]:
    """Start the case with no pending work, and free its graphs at the end."""
    torch.accelerator.synchronize(device)
    yield
    gc.collect()
    torch.accelerator.synchronize(device)
    torch.accelerator.empty_cache()


def pinned(value: int) -> torch.Tensor:
    return torch.full((SIZE,), value, dtype=torch.uint8).pin_memory()


def blocks(number: int = 8) -> list[torch.Tensor]:
    """Return pinned blocks filled with a poison value, alive together, so that they include any free memory."""
    return [torch.empty(SIZE, dtype=torch.uint8, pin_memory=True).fill_(POISON) for _ in range(number)]


@pytest.mark.covers("test_cuda::TestCachingHostAllocatorCudaGraph::test_pin_memory_no_use")
@pytest.mark.parametrize("times", [1, 3])
@apis
def test_pinned_block_unused_in_its_capture_does_no_harm(api: Api, device: torch.device, times: int) -> None:
    """Pinned memory may be allocated and dropped in a capture that does not use it.

    The graph and later requests work.
    """
    x = torch.zeros(100, device=device)
    graph = api.new()
    with api.capturing(graph, torch.Stream(device)):
        for _ in range(times):
            block = torch.empty(SIZE, dtype=torch.uint8, pin_memory=True)
            assert block.is_pinned()
            del block
        x.add_(1)
    graph.replay()
    torch.accelerator.synchronize(device)

    assert bool((x == 1).all())
    assert len({block.data_ptr() for block in blocks()}) == 8


@pytest.mark.covers("test_cuda::TestCachingHostAllocatorCudaGraph::test_pin_memory_no_use2")
@apis
def test_pinned_block_that_lives_through_a_capture_is_not_reused(api: Api, device: torch.device) -> None:
    """A live pinned block that was allocated in a capture keeps its contents in replays and overlaps nothing."""
    x = torch.zeros(100, device=device)
    graph = api.new()
    with api.capturing(graph, torch.Stream(device)):
        block = torch.empty(SIZE, dtype=torch.uint8, pin_memory=True)
        x.add_(1)
    block.fill_(7)
    others = blocks()
    graph.replay()
    torch.accelerator.synchronize(device)

    assert bool((block == 7).all())
    assert block.data_ptr() not in {other.data_ptr() for other in others}


#: If a captured copy reads a block, torch cannot determine when the last graph has read it.
KEPT_FOR_EVER = "torch never reuses a pinned block that was allocated and read in a capture"


@pytest.mark.keeps(KEPT_FOR_EVER, pinned="2MiB")
@pytest.mark.covers("test_cuda::TestCachingHostAllocatorCudaGraph::test_pin_memory_use")
@apis
def test_pinned_block_that_a_graph_reads_is_not_reused(api: Api, device: torch.device) -> None:
    """A pinned block that was allocated in a capture and is read by the graph is not reused while the graph lives.

    The host drops the block, and each replay still copies its values. The program must keep a block allocated before
    the capture, like all memory that a graph reads.
    """
    there = torch.zeros(SIZE, dtype=torch.uint8, device=device)
    graph = api.new()
    with api.capturing(graph, torch.Stream(device)):
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
        torch.accelerator.synchronize(device)
        assert bool((there == 5).all())


@pytest.mark.covers("test_cuda::TestCachingHostAllocatorCudaGraph::test_pin_memory_use")
@apis
def test_replay_reads_the_current_contents_of_a_pinned_block(api: Api, device: torch.device) -> None:
    """A replay copies the current contents of the pinned block, including writes of the host after the capture."""
    there = torch.zeros(SIZE, dtype=torch.uint8, device=device)
    block = pinned(1)
    graph = api.new()
    with api.capturing(graph, torch.Stream(device)):
        there.copy_(block, non_blocking=True)

    for value in (2, 3, 4):
        block.fill_(value)
        graph.replay()
        torch.accelerator.synchronize(device)
        assert bool((there == value).all())


@pytest.mark.keeps(KEPT_FOR_EVER, pinned="4MiB")
@pytest.mark.covers("test_cuda::TestCachingHostAllocatorCudaGraph::test_two_graphs")
@apis
def test_two_graphs_keep_their_pinned_blocks(api: Api, device: torch.device) -> None:
    """Two graphs, each with its own dropped pinned block, copy their own values in any order of replays.

    After one graph is destroyed, the other's block is still kept.
    """
    there = [torch.zeros(SIZE, dtype=torch.uint8, device=device) for _ in range(2)]
    graphs = []
    for number in range(2):
        graph = api.new()
        with api.capturing(graph, torch.Stream(device)):
            block = torch.empty(SIZE, dtype=torch.uint8, pin_memory=True)
            there[number].copy_(block, non_blocking=True)
        block.fill_(10 + number)
        graphs.append(graph)
        del block, graph
    first = blocks()
    for number in (1, 0, 0, 1):
        there[number].zero_()
        graphs[number].replay()
        torch.accelerator.synchronize(device)
        assert bool((there[number] == 10 + number).all())

    del graphs[0]
    gc.collect()
    second = blocks()
    there[1].zero_()
    graphs[0].replay()
    torch.accelerator.synchronize(device)

    assert bool((there[1] == 11).all())
    assert len({block.data_ptr() for block in (*first, *second)}) == 16


@of_empty_graphs
@pytest.mark.covers("test_cuda::TestCachingHostAllocatorCudaGraph::test_unpinned_memory_use")
@pytest.mark.covers("test_cuda::TestCachingHostAllocatorCudaGraph::test_unpinned_memory_use_device_to_host")
@pytest.mark.parametrize("to_device", [True, False], ids=["to_device", "to_host"])
@apis
def test_pageable_memory_in_a_capture_is_correct_or_raises(api: Api, device: torch.device, to_device: bool) -> None:
    """A captured copy from or to pageable memory raises and ends the capture, or copies correct values at each replay.

    The copy never gives wrong values silently, and the process works afterwards.
    """
    host = torch.full((1000,), 3, dtype=torch.uint8)
    there = torch.full((1000,), 3 if not to_device else 0, dtype=torch.uint8, device=device)
    if not to_device:
        host.zero_()
    graph = api.new()
    refused = False
    try:
        with api.capturing(graph, torch.Stream(device)):
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
            torch.accelerator.synchronize(device)
            assert bool(((there if to_device else host) == 3).all())

    assert works(device)
