"""Calls into the CUDA runtime in the tree: memory from the driver, copies, synchronisation."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from .node import Kind, Node, names
from .trees import HOST_AND_CUDA, record

pytestmark = [
    pytest.mark.requires(device="cuda"),
    pytest.mark.covers("test_profiler_tree::TestProfilerTree::test_profiler_experimental_tree_cuda_detailed"),
]

# What the allocator asks the driver for memory with, in its ordinary form and with expandable segments.
FROM_DRIVER = ("cudaMalloc", "cuMemCreate")


def calls(tree: Node, *wanted: str) -> list[str]:
    """The calls of the runtime and driver in a tree that have one of these names."""
    return [name for name in names(tree.of_kind(Kind.RUNTIME)) if name in wanted]


def runtime(work: Callable[[], object]) -> Node:
    """The tree of some work with all its calls of the runtime."""
    return record(work, activities=HOST_AND_CUDA, all_runtime_calls=True)


@pytest.mark.requires(device="cuda", memory=">=1GiB")
def test_cudamalloc_is_below_the_operator_that_ran_out(device: torch.device) -> None:
    """Contract: an operator whose memory is not in the allocator's cache has a call for more below it, and the same
    operator served from the cache has none."""
    size = 64 << 20  # a segment of its own

    def allocate() -> None:
        torch.empty(size, dtype=torch.uint8, device=device)

    allocate()
    torch.cuda.empty_cache()
    fresh = runtime(allocate)
    cached = runtime(allocate)

    assert calls(fresh.one("aten::empty"), *FROM_DRIVER), str(fresh)
    assert calls(fresh, *FROM_DRIVER) == calls(fresh.one("aten::empty"), *FROM_DRIVER), str(fresh)
    assert calls(cached, *FROM_DRIVER) == [], str(cached)


def test_item_is_a_copy_and_a_wait_below_its_operator(device: torch.device) -> None:
    """Contract: `item()` copies to the host and waits for it: both calls are below the operator, the copy first, and
    the copy's transfer is below its call."""
    value = torch.ones((), device=device)
    value.item()

    tree = runtime(value.item)

    operator = tree.one("aten::_local_scalar_dense")
    order = calls(operator, "cudaMemcpyAsync", "cudaStreamSynchronize")
    assert order == ["cudaMemcpyAsync", "cudaStreamSynchronize"], str(tree)
    (transfer,) = operator.one("cudaMemcpyAsync").children
    assert transfer.kind is Kind.DEVICE
    assert transfer.name.startswith("Memcpy DtoH")


@pytest.mark.parametrize("what", ["device", "stream", "event"])
def test_synchronize_is_a_runtime_call_of_its_own(device: torch.device, what: str) -> None:
    """Contract: a wait for the device, a stream or an event is one call more in the tree than without it.

    More, since the profiler waits for the device at its own end.
    """
    stream, event = torch.cuda.Stream(device), torch.cuda.Event()
    x = torch.ones(8, device=device)
    wait, name = {
        "device": (lambda: torch.cuda.synchronize(device), "cudaDeviceSynchronize"),
        "stream": (stream.synchronize, "cudaStreamSynchronize"),
        "event": (event.synchronize, "cudaEventSynchronize"),
    }[what]

    def queue() -> None:
        with torch.cuda.stream(stream):
            x.neg()
            event.record(stream)

    def queue_and_wait() -> None:
        queue()
        wait()

    queue_and_wait()
    without, with_wait = runtime(queue), runtime(queue_and_wait)

    assert len(calls(with_wait, name)) == len(calls(without, name)) + 1, f"without:\n{without}\nwith:\n{with_wait}"
