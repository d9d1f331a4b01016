"""Counters of pinned memory: they change with each event in a block's life, and only then.

Each case compares with the values at its start, with an empty cache and no pending work.
"""

from __future__ import annotations

import pytest
import torch

from ..streams.busy import calibrate, ever, sleep_on
from ._torch_private import empty_host_cache, host_memory_stats, reset_host_memory_stats

# Before 2.13, torch counts a freed block as active. With a pending copy it subtracts the index of the block's size
# class instead of the size: https://github.com/pytorch/pytorch/pull/171662. The software device has its own counters.
pytestmark = pytest.mark.requires(
    pinned_memory=True, any=[{"device": "soft"}, {"accelerator": True, "torch": ">=2.13"}]
)

#: A power of two, so that rounding adds nothing.
SIZE = 1 << 22


def block(size: int = SIZE) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def settle(device: torch.device) -> None:
    torch.empty(1, device=device)  # torch has no counters for an unused device
    torch.accelerator.synchronize(device)
    empty_host_cache(device)


def moved(device: torch.device, before: dict[str, int]) -> dict[str, int]:
    """Return the change of each counter that has changed."""
    after = host_memory_stats(device)
    return {name: after[name] - before[name] for name in before if after[name] != before[name]}


@pytest.mark.covers("test_cuda::TestCuda::test_host_memory_stats")
def test_host_memory_stats_follow_a_block_through_its_life(device: torch.device) -> None:
    """A pinned block is one active request of its size.

    After its free it is inactive, and emptying the cache frees it.
    """
    settle(device)
    before = host_memory_stats(device)

    x = block()
    made = moved(device, before)
    del x
    freed = moved(device, before)
    empty_host_cache(device)
    emptied = moved(device, before)

    assert (made["active_requests.current"], made["active_bytes.current"]) == (1, SIZE)
    assert (made["active_requests.allocated"], made["active_bytes.allocated"]) == (1, SIZE)
    assert made["num_host_alloc"] == 1
    assert "num_host_free" not in made
    assert "active_bytes.current" not in freed
    assert "active_requests.current" not in freed
    assert (freed["active_requests.freed"], freed["active_bytes.freed"]) == (1, SIZE)
    assert (emptied["num_host_alloc"], emptied["num_host_free"]) == (1, 1)


@pytest.mark.covers("test_cuda::TestCuda::test_host_memory_stats")
def test_host_memory_stats_count_a_cached_block_once(device: torch.device) -> None:
    """Ten blocks pinned and freed in sequence need one allocation; ten blocks alive together need ten."""
    settle(device)
    before = host_memory_stats(device)

    for _ in range(10):
        block()
    one_at_a_time = moved(device, before)
    together = [block() for _ in range(10)]
    all_at_once = moved(device, before)

    assert one_at_a_time["num_host_alloc"] == 1
    assert one_at_a_time["active_requests.allocated"] == 10
    assert all_at_once["num_host_alloc"] == 10
    assert all_at_once["active_bytes.current"] == 10 * SIZE
    assert len({x.data_ptr() for x in together}) == 10


@pytest.mark.requires(asynchronous=True)
@pytest.mark.covers("test_cuda::TestCuda::test_host_memory_stats_active_after_free_no_events")
def test_host_memory_stats_unused_block_is_free_at_once(device: torch.device) -> None:
    """A block without a pending copy is inactive right after its free, even if the device is busy.

    The case must observe a busy device at least once.
    """
    stream = torch.Stream(device)
    calibrate(device)

    def at_work() -> bool:
        settle(device)
        before = host_memory_stats(device)
        sleep_on(stream)
        x = block()
        during = moved(device, before)["active_bytes.current"]
        del x
        after = moved(device, before)
        busy = not stream.query()
        stream.synchronize()
        assert during == SIZE
        assert "active_bytes.current" not in after
        return busy

    assert ever(at_work)


@pytest.mark.requires(asynchronous=True)
@pytest.mark.covers("test_cuda::TestCuda::test_host_memory_stats_active_after_event_drain")
def test_host_memory_stats_block_is_active_until_its_copy_is_done(device: torch.device) -> None:
    """A block freed behind a delayed copy counts as active, which must be observed once.

    It is inactive after the copy completes and the allocator gets the next such request.
    """
    stream = torch.Stream(device)
    there = torch.empty(SIZE, dtype=torch.uint8, device=device)
    calibrate(device)

    def seen() -> bool:
        settle(device)
        before = host_memory_stats(device)
        sleep_on(stream)
        x = block()
        with stream:
            there.copy_(x, non_blocking=True)
        del x
        held = moved(device, before).get("active_bytes.current", 0)
        stream.synchronize()
        block()
        assert "active_bytes.current" not in moved(device, before)
        return held == SIZE

    assert ever(seen)


@pytest.mark.covers("test_cuda::TestCuda::test_pinned_memory_empty_cache")
def test_empty_host_cache_frees_all_of_it(device: torch.device) -> None:
    """`empty_host_cache` frees all blocks that are not in use, whatever their sizes."""
    settle(device)
    before = host_memory_stats(device)
    kept = block()
    dropped = [block(512 << number) for number in range(12)]

    del dropped
    empty_host_cache(device)
    after = moved(device, before)

    assert (after["num_host_alloc"], after["num_host_free"]) == (13, 12)
    assert after["active_bytes.current"] == SIZE
    assert kept.is_pinned()


@pytest.mark.covers("test_cuda::TestCuda::test_host_memory_stats")
def test_reset_peak_host_memory_stats_resets_peaks(device: torch.device) -> None:
    """The peak of active bytes is the maximum since its reset, and the current value right after a reset."""
    settle(device)
    reset_host_memory_stats(device, "peak")
    base = host_memory_stats(device)["active_bytes.current"]

    several = [block() for _ in range(3)]
    del several
    reached = host_memory_stats(device)["active_bytes.peak"]
    reset_host_memory_stats(device, "peak")
    reset = host_memory_stats(device)["active_bytes.peak"]

    assert reached == base + 3 * SIZE
    assert reset == base


@pytest.mark.covers("test_cuda::TestCuda::test_host_memory_stats")
def test_reset_accumulated_host_memory_stats_resets_counts(device: torch.device) -> None:
    """The counts of allocated and freed requests accumulate until they are reset to zero."""
    settle(device)
    block()
    assert host_memory_stats(device)["active_requests.allocated"] >= 1

    reset_host_memory_stats(device, "accumulated")
    zero = host_memory_stats(device)
    block()
    one = host_memory_stats(device)

    for name, expected in (("active_requests", 1), ("active_bytes", SIZE)):
        assert (zero[f"{name}.allocated"], zero[f"{name}.freed"]) == (0, 0)
        assert (one[f"{name}.allocated"], one[f"{name}.freed"]) == (expected, expected)
