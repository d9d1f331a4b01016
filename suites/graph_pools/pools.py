"""Graphs and their pools: captures, and snapshots of a pool."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..snapshot.reading import LIVE, Block, blocks, of_device, of_pool

PoolId = tuple[int, int]
Work = Callable[[], list[torch.Tensor]]

MIB = 1 << 20

#: CUDA's allocator rounds small blocks, small segments and large segments to these sizes.
SMALLEST = 512
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB


@dataclass
class Captured:
    """A graph that can be replayed, and the outputs of its capture."""

    graph: Any
    outputs: list[torch.Tensor]
    device: torch.device

    @property
    def pool(self) -> PoolId:
        """The pool of the graph's memory."""
        first, second = self.graph.pool()
        return first, second

    def replay(self) -> None:
        """Run the work again on the current stream, in its captured memory."""
        self.graph.replay()


def empty_graph(device: torch.device) -> Any:
    """Return a graph without a capture; on a GPU, one of CUDA's own, because older releases have no other."""
    return torch.cuda.CUDAGraph() if device.type == "cuda" else torch.accelerator.Graph()


@contextmanager
def capturing(graph: Any, stream: torch.Stream, pool: PoolId | None = None) -> Iterator[None]:
    """Capture the block's work on the stream, with memory from a new pool or the given one."""
    if isinstance(graph, torch.cuda.CUDAGraph):
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            yield
    else:
        graph.graph_pool = pool
        with stream, graph:
            yield


def captured(
    device: torch.device, work: Work, pool: PoolId | None = None, stream: torch.Stream | None = None
) -> Captured:
    """Return a graph of the work, after one run on the capture stream that completes first-use initialization."""
    torch.accelerator.synchronize(device)
    stream = stream or new_stream(device)
    stream.wait_stream(torch.accelerator.current_stream(device))
    with stream:
        work()
    torch.accelerator.synchronize(device)
    graph = empty_graph(device)
    with capturing(graph, stream, pool):
        outputs = work()
    torch.accelerator.synchronize(device)
    return Captured(graph, outputs, device)


def new_stream(device: torch.device) -> torch.Stream:
    """Return a side stream."""
    return torch.cuda.Stream(device) if device.type == "cuda" else torch.Stream(device)


def settle(device: torch.device) -> None:
    """Synchronize, collect garbage, and empty the cache."""
    torch.accelerator.synchronize(device)
    gc.collect()
    torch.accelerator.empty_cache()


# Snapshots


def segments_of(device: torch.device, pool: PoolId | None = None) -> list[dict[str, Any]]:
    """Return the segments of one of the device's pools, or of all graph pools."""
    here = of_device(torch.get_device_module(device).memory_snapshot(), device.index)
    if pool is None:
        return [segment for segment in here if tuple(segment["segment_pool_id"]) != (0, 0)]
    return of_pool(here, pool)


def reserved_in(device: torch.device, *pools: PoolId) -> int:
    """Return the bytes of the segments of pools, each pool counted once."""
    return sum(segment["total_size"] for pool in set(pools) for segment in segments_of(device, pool))


def live_blocks(device: torch.device, pool: PoolId) -> list[Block]:
    """Return the allocated blocks of a pool."""
    return [block for block in blocks(segments_of(device, pool)) if block.state == LIVE]


def pool_of(device: torch.device, address: int) -> PoolId | None:
    """Return the pool whose segment contains an address."""
    for segment in of_device(torch.get_device_module(device).memory_snapshot(), device.index):
        if segment["address"] <= address < segment["address"] + segment["total_size"]:
            first, second = segment["segment_pool_id"]
            return first, second
    return None


def address(tensor: torch.Tensor) -> int:
    """Return the address of a tensor's memory."""
    return tensor.untyped_storage().data_ptr()


#: The fields of a restored segment that must not change.
_FIELDS = ("device", "total_size", "allocated_size", "active_size", "segment_type", "segment_pool_id")


def changes(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
    """Return the differences between segments, one line each. New segments do not count."""
    found = []
    now = {segment["address"]: segment for segment in after}
    for old in before:
        name = f"segment at {old['address']:#x}"
        new = now.get(old["address"])
        if new is None:
            found.append(f"{name}: gone")
            continue
        found += [f"{name}: {f} was {old[f]}, is {new[f]}" for f in _FIELDS if old[f] != new[f]]
        was, has = ([(block["size"], block["state"]) for block in each["blocks"]] for each in (old, new))
        if was != has:
            found.append(f"{name}: blocks were {was}, are {has}")
    return found
