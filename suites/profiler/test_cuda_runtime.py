"""CUDA runtime calls in the tree: memory from the driver, copies, synchronization."""

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

# The calls by which the allocator gets memory from the driver, without and with expandable segments.
FROM_DRIVER = ("cudaMalloc", "cuMemCreate")


def calls(tree: Node, *wanted: str) -> list[str]:
    """Return the runtime and driver calls in a tree with one of these names."""
    return [name for name in names(tree.of_kind(Kind.RUNTIME)) if name in wanted]


def runtime(work: Callable[[], object]) -> Node:
    """Return the tree of some work with all its runtime calls."""
    return record(work, activities=HOST_AND_CUDA, all_runtime_calls=True)


@pytest.mark.requires(device="cuda", memory=">=1GiB")
def test_cudamalloc_is_below_the_operator_without_cached_memory(device: torch.device) -> None:
    """An operator that the allocator's cache cannot serve has a driver allocation below it; a cached one has none."""
    size = 64 << 20  # a separate segment

    def allocate() -> None:
        torch.empty(size, dtype=torch.uint8, device=device)

    allocate()
    torch.cuda.empty_cache()
    fresh = runtime(allocate)
    cached = runtime(allocate)

    assert calls(fresh.one("aten::empty"), *FROM_DRIVER), str(fresh)
    assert calls(fresh, *FROM_DRIVER) == calls(fresh.one("aten::empty"), *FROM_DRIVER), str(fresh)
    assert calls(cached, *FROM_DRIVER) == [], str(cached)


def test_item_is_a_copy_and_a_synchronize_below_its_operator(device: torch.device) -> None:
    """`item()` has a copy to the host and a synchronization below its operator, in this order.

    The device event of the copy is below its call.
    """
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
def test_synchronize_is_one_runtime_call(device: torch.device, what: str) -> None:
    """Synchronizing the device, a stream or an event adds one runtime call to the tree.

    The case compares counts, because the profiler itself synchronizes the device at its end.
    """
    stream, event = torch.cuda.Stream(device), torch.cuda.Event()
    x = torch.ones(8, device=device)
    stream.wait_stream(torch.cuda.current_stream(device))
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
