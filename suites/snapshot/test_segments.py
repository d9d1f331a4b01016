"""`memory_snapshot` of an accelerator: its segments and blocks agree with tensors and statistics.

Each case looks only at its own device and empties the cache first, because earlier cases may have filled it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ..streams.busy import calibrate, ever, sleep_on
from . import _torch_private as private
from .reading import FREE, LIVE, PENDING, block_at, blocks, faults, of_device

pytestmark = pytest.mark.requires(accelerator=True, caching_allocator=True)

MIB = 1 << 20


def segments_of_all(device: torch.device) -> list[dict[str, Any]]:
    """Return the current segments of all devices of a type, for which `torch.accelerator` has no function."""
    tell: Any = getattr(torch.get_device_module(device), "memory_snapshot", None)
    if tell is None:
        pytest.skip(f"torch.{device.type} has no memory_snapshot")
    segments: list[dict[str, Any]] = tell()
    return segments


def segments_of(device: torch.device) -> list[dict[str, Any]]:
    """Return the device's current segments."""
    return of_device(segments_of_all(device), device.index)


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def made(size: int, device: torch.device) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=device)


@pytest.fixture(autouse=True)
def settled(device: torch.device) -> Iterator[None]:
    """Synchronize and empty the cache, before and after."""
    torch.accelerator.synchronize(device)
    torch.accelerator.empty_cache()
    yield
    torch.accelerator.synchronize(device)
    torch.accelerator.empty_cache()


@pytest.mark.covers("test_cuda::TestCudaAllocator::test_memory_snapshot")
@pytest.mark.parametrize("size", [1, 511, 512, 100_000, MIB, 3 * MIB + 5, 40 * MIB])
def test_memory_snapshot_has_a_block_for_a_tensor(device: torch.device, size: int) -> None:
    """A live tensor is one allocated block at its address, large enough and with the requested size.

    After the tensor is freed, there is no live block at the address.
    """
    tensor = made(size, device)
    place = address(tensor)

    block = block_at(segments_of(device), place)
    del tensor
    after = block_at(segments_of(device), place)

    assert block is not None
    assert (block.state, block.requested) == (LIVE, size)
    assert block.size >= size
    assert after is None or after.state == FREE


def test_memory_snapshot_segments_consist_of_their_blocks(device: torch.device) -> None:
    """In mixed allocations and frees, blocks fill their segments, sums are correct, and adjacent free blocks merge."""
    live: dict[int, torch.Tensor] = {}
    for step in range(120):
        if step % 3 == 2:
            live.pop(sorted(live)[step * 7 % len(live)])
        else:
            live[step] = made((step * 7919 * 131) % (3 * MIB) + 1, device)
        if step % 10 == 9:
            assert faults(segments_of(device)) == []
    here = segments_of(device)

    for tensor in live.values():
        block = block_at(here, address(tensor))
        assert block is not None
        assert (block.state, block.requested) == (LIVE, tensor.nbytes)


def test_memory_snapshot_agrees_with_memory_stats(device: torch.device) -> None:
    """The snapshot's bytes and counts equal those of `memory_stats`: reserved, allocated, active and requested."""
    before = torch.accelerator.memory_stats(device)  # from earlier cases; empty before the first allocation
    left = before.get("requested_bytes.all.current", 0)
    tensors = [made(size, device) for size in (10, 1000, 100_000, 3 * MIB, 30 * MIB)]
    del tensors[1::2]

    here, statistics = segments_of(device), torch.accelerator.memory_stats(device)

    def now(name: str) -> int:
        return int(statistics[f"{name}.all.current"])

    inside = list(blocks(here))
    assert sum(segment["total_size"] for segment in here) == now("reserved_bytes")
    assert len(here) == now("segment")
    assert sum(block.size for block in inside if block.state == LIVE) == now("allocated_bytes")
    assert sum(1 for block in inside if block.state == LIVE) == now("allocation")
    assert sum(block.size for block in inside if block.state != FREE) == now("active_bytes")
    assert sum(1 for block in inside if block.state != FREE) == now("active")
    assert sum(block.requested for block in inside) == now("requested_bytes")
    assert now("requested_bytes") - left == sum(tensor.nbytes for tensor in tensors)
    assert now("requested_bytes") < now("allocated_bytes")


def test_memory_snapshot_small_and_large_pools_agree_with_memory_stats(device: torch.device) -> None:
    """Each segment is marked small or large, and both kinds add up to their statistics."""
    tensors = [made(size, device) for size in (10, 100_000, 3 * MIB, 30 * MIB)]

    here, statistics = segments_of(device), torch.accelerator.memory_stats(device)

    for kind in ("small", "large"):
        held = sum(segment["total_size"] for segment in here if segment["segment_type"] == kind)
        assert held == statistics[f"reserved_bytes.{kind}_pool.current"]
    for tensor, kind in zip(tensors, ("small", "small", "large", "large"), strict=True):
        (home,) = [each for each in here if address(tensor) in {block.address for block in blocks([each])}]
        assert home["segment_type"] == kind


def test_memory_snapshot_after_empty_cache_has_only_segments_in_use(device: torch.device) -> None:
    """After `empty_cache`, every segment has a live block, and the live tensor is still there.

    Segments of graph pools are excluded, because torch may keep the pool of a deleted graph
    (`graphs/test_conditional.py`).
    """
    kept, scratch = made(1000, device), made(64 * MIB, device)
    place = address(scratch)
    del scratch
    before = {segment["address"] for segment in segments_of(device)}

    torch.accelerator.empty_cache()

    here = segments_of(device)
    assert any(place in range(each, each + 64 * MIB) for each in before)
    shared = [segment for segment in here if tuple(segment["segment_pool_id"]) == (0, 0)]
    assert all(any(block.state != FREE for block in blocks([segment])) for segment in shared)
    assert block_at(here, address(kept)) is not None
    assert block_at(here, place) is None


def test_memory_snapshot_does_not_change(device: torch.device) -> None:
    """A snapshot does not change with later allocations and frees."""
    first = made(1000, device)
    here = segments_of(device)
    place = address(first)
    second = made(30 * MIB, device)
    del first

    block = block_at(here, place)
    assert block is not None
    assert block.state == LIVE
    assert block_at(here, address(second)) is None


def test_memory_snapshot_segments_are_of_a_stream(device: torch.device) -> None:
    """Each segment has its stream: memory of different streams is in different segments."""
    side = torch.cuda.Stream(device) if device.type == "cuda" else torch.Stream(device)
    mine = [made(1000, device) for _ in range(2)]
    with side:
        theirs = [made(1000, device) for _ in range(2)]

    def streams(tensors: list[torch.Tensor]) -> set[int]:
        return {
            segment["stream"]
            for segment in segments_of(device)
            for block in blocks([segment])
            if block.state == LIVE and block.address in {address(tensor) for tensor in tensors}
        }

    assert len(streams(mine)) == len(streams(theirs)) == 1
    assert streams(mine) != streams(theirs)
    if isinstance(side, torch.cuda.Stream):
        assert streams(theirs) == {side.cuda_stream}


@pytest.mark.requires(asynchronous=True)
def test_memory_snapshot_record_stream_block_is_pending(device: torch.device) -> None:
    """A freed tensor that another stream still uses is a pending block: active, and not allocated.

    After the stream completes and the allocator has checked it, the block is free.
    """
    calibrate(device)
    side = torch.Stream(device)

    def seen_pending() -> bool:
        tensor = made(2 * MIB, device)
        place = address(tensor)
        side.wait_stream(torch.accelerator.current_stream(device))
        sleep_on(side)
        tensor.record_stream(side)
        del tensor
        here = segments_of(device)
        block = block_at(here, place)
        assert block is not None
        assert faults(here) == []  # a pending block counts as active in its segment, and not as allocated
        side.synchronize()
        made(512, device)  # the allocator checks for completed streams when memory is requested
        after = block_at(segments_of(device), place)
        assert after is None or after.state == FREE
        return block.state == PENDING

    assert ever(seen_pending)


def test_memory_snapshot_segsum_adds_up(device: torch.device) -> None:
    """The sums in torch's text summary of a device's snapshot equal the statistics."""
    tensors = [made(size, device) for size in (1000, 30 * MIB)]

    text = private.segsum({"segments": segments_of(device)})

    reserved = torch.accelerator.memory_reserved(device)
    asked = torch.accelerator.memory_stats(device)["requested_bytes.all.current"]
    assert f"total_reserved: {reserved / MIB:.1f}MiB\n" in text
    assert f"total_allocated: {asked / MIB:.1f}MiB\n" in text
    assert f"segments: {len(segments_of(device))}\n" in text
    assert tensors


@pytest.mark.requires(devices=2)
def test_memory_snapshot_distinguishes_segments_of_two_devices(device: torch.device) -> None:
    """Each segment has its device: a tensor on the second device is in a segment of the second."""
    second = torch.device(device.type, 1)
    tensors = {0: made(1000, device), 1: made(1000, second)}

    for index, tensor in tensors.items():
        everywhere = segments_of_all(device)
        held = [
            segment["device"]
            for segment in everywhere
            if any(block.address == address(tensor) and block.state == LIVE for block in blocks([segment]))
        ]
        assert index in held
    assert faults(segments_of_all(device)) == []
