"""Rarely used functions of `torch.cuda`, each with the contract of its documentation page."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytestmark = pytest.mark.requires(device="cuda")
MIB = 1 << 20


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype:UserWarning")
def test_set_sync_debug_mode_warns_or_raises_at_a_synchronization(device: torch.device) -> None:
    """A synchronizing call warns with "warn", raises with "error", and does neither with "default".

    The mode can be read.
    """
    x = torch.ones(4, device=device)
    assert torch.cuda.get_sync_debug_mode() == 0
    try:
        for mode, number in (("warn", 1), ("error", 2), ("default", 0), (1, 1), (2, 2), (0, 0)):
            torch.cuda.set_sync_debug_mode(mode)
            assert torch.cuda.get_sync_debug_mode() == number
            if number == 1:
                with pytest.warns(UserWarning, match="synchronizing"):
                    x.sum().item()
            elif number == 2:
                with pytest.raises(RuntimeError, match="synchronizing"):
                    x.sum().item()
            else:
                assert x.sum().item() == 4
        with pytest.raises(RuntimeError, match="invalid value"):
            torch.cuda.set_sync_debug_mode("often")
    finally:
        torch.cuda.set_sync_debug_mode(0)


def test_memory_summary_has_the_counters_of_memory_stats(device: torch.device) -> None:
    """`memory_summary` shows current, peak and total values; the abbreviated one has no pools.

    The names of `memory_stats` are sorted.
    """
    kept = torch.empty(40 * MIB, dtype=torch.uint8, device=device)
    stats = torch.cuda.memory_stats(device)
    assert list(stats) == sorted(stats)
    text = torch.cuda.memory_summary(device)
    (line,) = [line for line in text.splitlines() if line.startswith("| Allocated memory")]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[1] == f"{stats['allocated_bytes.all.current'] // 1024} KiB"
    assert cells[2] == f"{stats['allocated_bytes.all.peak'] // 1024} KiB"
    assert "from large pool" in text
    assert "from large pool" not in torch.cuda.memory_summary(device, abbreviated=True)
    del kept


@pytest.mark.parametrize(
    ("reset", "which"),
    [
        ("reset_max_memory_allocated", "allocated"),
        ("reset_max_memory_cached", "reserved"),
        ("reset_peak_memory_stats", "allocated"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*reset_peak_memory_stats:FutureWarning")
def test_reset_of_a_peak_by_its_old_names(device: torch.device, reset: str, which: str) -> None:
    """The old names reset all peaks, as `reset_peak_memory_stats` does."""
    torch.empty(40 * MIB, dtype=torch.uint8, device=device)
    torch.cuda.empty_cache()
    read = getattr(torch.cuda, f"max_memory_{which}")
    assert read(device) > getattr(torch.cuda, f"memory_{which}")(device)
    getattr(torch.cuda, reset)(device)
    assert torch.cuda.max_memory_allocated(device) == torch.cuda.memory_allocated(device)
    assert torch.cuda.max_memory_reserved(device) == torch.cuda.memory_reserved(device)


@pytest.mark.filterwarnings("ignore:.*memory_reserved:FutureWarning")
def test_memory_cached_is_the_old_name_of_memory_reserved(device: torch.device) -> None:
    """`memory_cached` and `max_memory_cached` return the values of `memory_reserved` and `max_memory_reserved`."""
    kept = torch.empty(24 * MIB, dtype=torch.uint8, device=device)
    assert torch.cuda.memory_cached(device) == torch.cuda.memory_reserved(device) >= 24 * MIB
    assert torch.cuda.max_memory_cached(device) == torch.cuda.max_memory_reserved(device)
    del kept


def test_cuda_reset_accumulated_memory_stats_resets_totals(device: torch.device) -> None:
    """`reset_accumulated_memory_stats` of `torch.cuda` sets totals to zero, and keeps current values and peaks."""
    torch.cuda.empty_cache()
    kept = torch.empty(8 * MIB, dtype=torch.uint8, device=device)
    torch.empty(40 * MIB, dtype=torch.uint8, device=device)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_stats(device)
    torch.cuda.reset_accumulated_memory_stats(device)
    after = torch.cuda.memory_stats(device)
    assert before["allocated_bytes.all.allocated"] > 0
    assert after["allocated_bytes.all.allocated"] == after["allocated_bytes.all.freed"] == 0
    for what in ("allocated_bytes", "reserved_bytes"):
        assert before[f"{what}.all.peak"] > before[f"{what}.all.current"]
        for name in ("current", "peak"):
            assert after[f"{what}.all.{name}"] == before[f"{what}.all.{name}"]
    del kept


def test_host_memory_stats_follow_pinned_memory() -> None:
    """`host_memory_stats` counts pinned memory, in flat and nested form, with peaks and totals that can be reset."""
    torch.cuda.init()  # without it there are no statistics
    torch.cuda.reset_peak_host_memory_stats()
    torch.cuda.reset_accumulated_host_memory_stats()
    start = torch.cuda.host_memory_stats()
    assert start["allocated_bytes.allocated"] == 0
    pinned = torch.empty(3 * MIB, dtype=torch.uint8, pin_memory=True)
    stats = torch.cuda.host_memory_stats()
    nested: Any = torch.cuda.host_memory_stats_as_nested_dict()
    assert stats["allocated_bytes.current"] >= start["allocated_bytes.current"]
    assert stats["allocated_bytes.peak"] >= stats["allocated_bytes.current"] >= 3 * MIB
    assert nested["allocated_bytes"]["current"] == stats["allocated_bytes.current"]
    assert list(stats) == sorted(stats)
    del pinned


def test_nvtx_ranges_nest_and_are_refused_without_a_text() -> None:
    """`range_push` and `range_pop` return the depth, `range` pops also after an exception, `range_end` takes a start.

    Without a tool that listens, nothing is counted, and the depth is NVTX_NO_PUSH_POP_TRACKING.
    """
    nvtx = torch.cuda.nvtx
    untracked = -2
    depth = nvtx.range_push("outer")
    inner = untracked if depth == untracked else depth + 1
    assert nvtx.range_push("inner") == inner
    assert nvtx.range_pop() == inner
    with pytest.raises(LookupError), nvtx.range("value {}", 3):
        raise LookupError
    assert nvtx.range_pop() == depth
    first, second = nvtx.range_start("a"), nvtx.range_start("b")
    nvtx.range_end(second)
    nvtx.range_end(first)
    nvtx.mark("here")
    with pytest.raises(TypeError):
        nvtx.range_push(3)


def test_get_allocator_backend_names_the_allocator() -> None:
    """`get_allocator_backend` names PyTorch's own allocator or CUDA's."""
    assert torch.cuda.get_allocator_backend() in ("native", "cudaMallocAsync")


def test_seed_is_a_new_seed_for_the_device(device: torch.device) -> None:
    """`torch.cuda.seed` sets another seed, `initial_seed` reads it, and `manual_seed` sets it for one device."""
    torch.cuda.manual_seed(7)
    assert torch.cuda.initial_seed() == 7
    torch.cuda.seed()
    first = torch.cuda.initial_seed()
    assert first != 7
    drawn = torch.rand(4, device=device)
    torch.cuda.manual_seed(first)
    assert torch.equal(torch.rand(4, device=device), drawn)
    torch.cuda.seed_all()
    assert torch.cuda.initial_seed() != first


def test_init_and_ipc_collect_may_be_called_at_any_time(device: torch.device) -> None:
    """`init` of an initialized process does nothing, and neither does `ipc_collect` without shared memory."""
    x = torch.arange(4, device=device)
    torch.cuda.init()
    torch.cuda.ipc_collect()
    assert torch.cuda.is_initialized()
    assert x.tolist() == [0, 1, 2, 3]


def test_is_bf16_supported_follows_the_device(device: torch.device) -> None:
    """`is_bf16_supported` is True from compute capability 8.0 on. Emulation counts unless it is excluded."""
    native = torch.cuda.get_device_capability(device) >= (8, 0)
    assert torch.cuda.is_bf16_supported(including_emulation=False) is native
    assert torch.cuda.is_bf16_supported() is True
    assert torch.cuda.is_tf32_supported() is native
