"""Memory statistics of `torch.accelerator`, and their consistency.

Each case compares with the values at its start, because earlier cases may have filled the cache.
"""

from __future__ import annotations

import itertools

import pytest
import torch

from .limits import MIB, settle

pytestmark = pytest.mark.requires(accelerator=True, caching_allocator=True, torch=">=2.11")


@pytest.mark.parametrize("size", [1, 512, 100_000, MIB, 3 * MIB, 30 * MIB], ids=lambda size: f"{size}_bytes")
def test_memory_allocated_follows_tensors(device: torch.device, size: int) -> None:
    """Allocated bytes grow by a tensor's size, plus at most 2 MiB for rounding, while it lives.

    The value returns to the previous one once the tensor is freed.
    """
    settle(device)
    before = torch.accelerator.memory_allocated(device)

    tensor = torch.empty(size, dtype=torch.uint8, device=device)
    grown = torch.accelerator.memory_allocated(device) - before
    del tensor

    assert size <= grown <= size + 2 * MIB
    assert torch.accelerator.memory_allocated(device) == before


def test_memory_allocated_adds_up(device: torch.device) -> None:
    """After each of a series of allocations and frees, the allocated bytes are the sum over live tensors."""
    settle(device)
    before = torch.accelerator.memory_allocated(device)
    live: dict[int, tuple[torch.Tensor, int]] = {}

    for step in range(200):
        if step % 3 == 2:
            live.pop(min(live))
        else:
            already = torch.accelerator.memory_allocated(device)
            tensor = torch.empty((step * 7919) % 300_000 + 1, dtype=torch.uint8, device=device)
            live[step] = tensor, torch.accelerator.memory_allocated(device) - already
            del tensor
        assert torch.accelerator.memory_allocated(device) - before == sum(cost for _, cost in live.values())

    live.clear()
    assert torch.accelerator.memory_allocated(device) == before


def test_memory_reserved_keeps_freed_memory_until_empty_cache(device: torch.device) -> None:
    """Freed memory stays reserved until `empty_cache` returns it to the device."""
    settle(device)
    before = torch.accelerator.memory_reserved(device)

    tensor = torch.empty(64 * MIB, dtype=torch.uint8, device=device)
    assert torch.accelerator.memory_reserved(device) >= before + 64 * MIB
    del tensor
    assert torch.accelerator.memory_reserved(device) >= before + 64 * MIB
    settle(device)

    assert torch.accelerator.memory_reserved(device) == before


def test_empty_cache_keeps_memory_in_use(device: torch.device) -> None:
    """`empty_cache` does not affect live tensors: their values stay, and their bytes stay reserved."""
    kept = torch.arange(1 << 20, device=device)
    scratch = torch.empty(32 * MIB, dtype=torch.uint8, device=device)
    del scratch
    settle(device)

    fresh = torch.full((16 * MIB,), 255, dtype=torch.uint8, device=device)

    assert torch.equal(kept.cpu(), torch.arange(1 << 20))
    assert torch.accelerator.memory_reserved(device) >= kept.nbytes + fresh.nbytes


@pytest.mark.covers("test_cuda::TestCuda::test_memory_stats")
def test_max_memory_allocated_is_kept_until_reset_peak_memory_stats(device: torch.device) -> None:
    """The peak of allocated bytes outlives simultaneous tensors; a reset sets it to the current value."""
    settle(device)
    torch.empty(1, device=device)  # devices/test_first_use.py tests the state before the first use of a device
    torch.accelerator.reset_peak_memory_stats(device)
    before = torch.accelerator.memory_allocated(device)

    tensor = torch.empty(16 * MIB, dtype=torch.uint8, device=device)
    del tensor
    assert torch.accelerator.max_memory_allocated(device) >= before + 16 * MIB
    torch.accelerator.reset_peak_memory_stats(device)

    assert torch.accelerator.max_memory_allocated(device) == torch.accelerator.memory_allocated(device)


@pytest.mark.parametrize("what", ["allocated", "reserved"])
@pytest.mark.parametrize("api", ["accelerator", "device_module"])
def test_max_memory_is_the_highest_value_since_the_reset(device: torch.device, what: str, api: str) -> None:
    """`max_memory_allocated` and `max_memory_reserved` are the highest values since the reset, not the current ones.

    They do not change when memory is freed and returned, grow only beyond the previous maximum, and are the current
    values after `reset_peak_memory_stats`. `memory_stats` has the same numbers.
    """
    module = torch.accelerator if api == "accelerator" else torch.get_device_module(device)
    for name in (f"memory_{what}", f"max_memory_{what}", "reset_peak_memory_stats", "memory_stats"):
        if not hasattr(module, name):
            pytest.skip(f"{module.__name__} has no {name}")
    now, peak = getattr(module, f"memory_{what}"), getattr(module, f"max_memory_{what}")
    settle(device)
    torch.empty(1, device=device)
    module.reset_peak_memory_stats(device)
    base = now(device)
    assert peak(device) == base

    highest = base
    for size in (48 * MIB, 16 * MIB, 64 * MIB, 32 * MIB):
        tensor = torch.empty(size, dtype=torch.uint8, device=device)
        assert now(device) >= size
        highest = max(highest, now(device))
        assert peak(device) == highest
        del tensor
        settle(device)
        assert now(device) < highest
        assert peak(device) == highest
        assert module.memory_stats(device)[f"{what}_bytes.all.peak"] == highest
        assert module.memory_stats(device)[f"{what}_bytes.all.current"] == now(device)
    module.reset_peak_memory_stats(device)
    assert peak(device) == now(device) < highest


@pytest.mark.requires(device="cuda")
@pytest.mark.covers("test_cuda::TestCuda::test_memory_stats")
def test_cuda_reset_peak_memory_stats_resets_the_peak(device: torch.device) -> None:
    """`torch.cuda.reset_peak_memory_stats` resets the peak that `torch.cuda.max_memory_allocated` returns."""
    settle(device)
    torch.empty(16 * MIB, dtype=torch.uint8, device=device)
    assert torch.cuda.max_memory_allocated(device) >= torch.cuda.memory_allocated(device) + 16 * MIB

    torch.cuda.reset_peak_memory_stats(device)

    assert torch.cuda.max_memory_allocated(device) == torch.cuda.memory_allocated(device)


@pytest.mark.covers("test_cuda::TestCuda::test_memory_stats")
@pytest.mark.parametrize("api", ["accelerator", "device_module"])
def test_reset_peak_memory_stats_resets_each_peak(device: torch.device, api: str) -> None:
    """After `reset_peak_memory_stats`, each peak of counts and bytes is the current value, in each pool."""
    module = torch.accelerator if api == "accelerator" else torch.get_device_module(device)
    for name in ("memory_stats", "reset_peak_memory_stats"):
        if not hasattr(module, name):
            pytest.skip(f"{module.__name__} has no {name}")
    settle(device)
    for size in (512, MIB // 2, 3 * MIB, 40 * MIB):  # blocks and segments of each pool
        torch.empty(size - 24, dtype=torch.uint8, device=device)
    stats = module.memory_stats(device)
    raised = {name for name in stats if name.endswith(".peak") and stats[name] > stats[f"{name[:-5]}.current"]}
    assert {"allocated_bytes.all.peak", "requested_bytes.all.peak"} & stats.keys() <= raised

    module.reset_peak_memory_stats(device)

    stats = module.memory_stats(device)
    assert {name: stats[name] for name in raised} == {name: stats[f"{name[:-5]}.current"] for name in raised}


@pytest.mark.covers("test_cuda::TestCuda::test_memory_stats")
def test_reset_accumulated_memory_stats_resets_totals_only(device: torch.device) -> None:
    """`reset_accumulated_memory_stats` sets the totals to zero and leaves current values and peaks unchanged."""
    kept = torch.empty(MIB, dtype=torch.uint8, device=device)
    torch.empty(16 * MIB, dtype=torch.uint8, device=device)
    settle(device)
    before = torch.accelerator.memory_stats(device)
    assert before["allocated_bytes.all.allocated"] >= MIB
    for name in ("allocation", "allocated_bytes", "active_bytes", "reserved_bytes", "segment"):
        assert before[f"{name}.all.peak"] > before[f"{name}.all.current"], (
            "the peak does not differ from the current value"
        )

    torch.accelerator.reset_accumulated_memory_stats(device)
    zero = torch.accelerator.memory_stats(device)
    for _ in range(3):
        torch.empty(MIB, dtype=torch.uint8, device=device)
    after = torch.accelerator.memory_stats(device)

    for name in ("allocation", "allocated_bytes", "active_bytes", "reserved_bytes", "segment"):
        assert zero[f"{name}.all.allocated"] == zero[f"{name}.all.freed"] == 0
        assert zero[f"{name}.all.current"] == before[f"{name}.all.current"]
        assert zero[f"{name}.all.peak"] == before[f"{name}.all.peak"]
    assert (after["allocation.all.allocated"], after["allocation.all.freed"]) == (3, 3)
    assert after["allocated_bytes.all.allocated"] == 3 * kept.nbytes

    torch.accelerator.reset_accumulated_memory_stats()  # of the current device
    statistics = torch.accelerator.memory_stats()
    assert statistics["allocation.all.allocated"] == 0
    assert list(statistics) == sorted(statistics)


@pytest.mark.covers("test_cuda::TestCuda::test_memory_stats")
def test_memory_stats_has_documented_names_and_adds_up(device: torch.device) -> None:
    """`memory_stats` has the documented names, and its values are consistent.

    The current value changes by allocated minus freed (the totals may have been reset), is never above the peak, and is
    the sum over the pools.
    """
    torch.empty(1, device=device)  # a process that has not used the device has no statistics
    before = torch.accelerator.memory_stats(device)
    tensors = [torch.empty(size, device=device) for size in (10, 1000, 3 << 20, 500)]
    del tensors[-1]
    statistics = torch.accelerator.memory_stats(device)

    splits = ("inactive_split", "inactive_split_bytes")
    for name in ("allocation", "segment", "active", "allocated_bytes", "reserved_bytes", "active_bytes", *splits):
        for pool in ("all", "small_pool", "large_pool"):
            each = {key: statistics[f"{name}.{pool}.{key}"] for key in ("current", "peak", "allocated", "freed")}
            moved = {key: value - before[f"{name}.{pool}.{key}"] for key, value in each.items()}
            assert moved["current"] == moved["allocated"] - moved["freed"], (name, pool)
            assert 0 <= each["current"] <= each["peak"], (name, pool)
        parts = sum(statistics[f"{name}.{pool}.current"] for pool in ("small_pool", "large_pool"))
        assert statistics[f"{name}.all.current"] == parts, name
    for name in ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free"):
        assert statistics[name] >= before[name] >= 0, name
    assert statistics["allocated_bytes.all.current"] >= sum(tensor.nbytes for tensor in tensors)
    assert statistics["allocated_bytes.all.current"] <= statistics["reserved_bytes.all.current"]


def test_live_tensors_never_share_memory(device: torch.device) -> None:
    """No two live tensors overlap, whatever was freed in between.

    Each tensor is filled with its own number when it is created, so that a later fill of the same block would be
    detected.
    """
    live: dict[int, torch.Tensor] = {}

    for number in range(300):
        size = (number * 2_654_435_761) % 50_000 + 1
        live[number] = torch.full((size,), number, dtype=torch.int32, device=device)
        if number % 2:
            live.pop(sorted(live)[len(live) // 2])
    torch.accelerator.synchronize(device)

    spoiled = [number for number, tensor in live.items() if not (tensor == number).all()]
    spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in live.values())
    assert spoiled == []
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_freed_block_is_reused_in_the_order_of_its_stream(device: torch.device) -> None:
    """A tensor that is dropped before its own stream has used it may be reused immediately, in stream order.

    The result of the earlier use is correct.
    """
    stream = torch.Stream(device)
    result = torch.zeros(1 << 16, dtype=torch.int32, device=device)
    torch.accelerator.synchronize(device)

    with stream:
        for value in range(1, 21):
            block = torch.full((1 << 16,), value, dtype=torch.int32, device=device)
            result.add_(block)
            del block
    stream.synchronize()

    assert (result == sum(range(1, 21))).all()


@pytest.mark.covers("test_cuda::TestCuda::test_out_of_memory")
def test_outofmemoryerror_for_too_large_a_request_does_no_harm(device: torch.device) -> None:
    """An allocation beyond the device's memory raises torch.OutOfMemoryError.

    Live tensors are intact, the allocated bytes do not change, and an allocation that fits succeeds afterwards.
    """
    kept = torch.arange(1000, device=device)
    before = torch.accelerator.memory_allocated(device)

    with pytest.raises(torch.OutOfMemoryError, match=r"(?i)out of memory"):
        torch.empty(1 << 46, dtype=torch.uint8, device=device)

    assert torch.accelerator.memory_allocated(device) == before
    assert torch.equal(kept.cpu(), torch.arange(1000))
    assert torch.ones(1000, device=device).sum().item() == 1000
