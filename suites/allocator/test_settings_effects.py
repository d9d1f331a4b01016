"""What the allocator's settings do on a GPU, each in a process that began with it.

A process without the setting is the control: the same script must tell the other thing there.
"""

from __future__ import annotations

import pytest
import torch

from .answers import ask
from .limits import MIB

pytestmark = [pytest.mark.requires(device="cuda"), pytest.mark.timeout(300)]


@pytest.mark.covers("test_cuda::TestCudaAllocator::test_allocator_settings")
@pytest.mark.parametrize(
    ("conf", "taken"),
    [
        ("", 1200 * 1024),
        ("roundup_power2_divisions:4", 1280 * 1024),
        ("roundup_power2_divisions:2", 1536 * 1024),
        ("roundup_power2_divisions:[1:4,>:1]", 1280 * 1024),
    ],
    ids=["default", "quarters", "halves", "quarters_by_interval"],
)
def test_roundup_power2_divisions_rounds_sizes_up(device: torch.device, conf: str, taken: int) -> None:
    """Contract: with `roundup_power2_divisions:n` a size is rounded up to the next nth of the step from one power of
    two to the next: of 1200 KiB, with four of them, 1280 KiB. Requested bytes stay what was asked for."""
    script = """
before = counter("allocated_bytes"), counter("requested_bytes")
x = new(1200 * 1024)
tell([counter("allocated_bytes") - before[0], counter("requested_bytes") - before[1]])
"""
    assert ask(script, device, conf) == [taken, 1200 * 1024]


@pytest.mark.covers("test_cuda::TestCudaAllocator::test_allocator_settings")
@pytest.mark.parametrize(("conf", "splits"), [("", True), ("max_split_size_mb:20", False)], ids=["default", "limit"])
def test_max_split_size_mb_spares_large_blocks_from_splitting(device: torch.device, conf: str, splits: bool) -> None:
    """Contract: a block above `max_split_size_mb` is not cut up for a small request, which gets a segment of its own;
    without the setting it is."""
    script = """
x = new(200 * MIB)
address = x.data_ptr()
del x
before = counter("segment")
y = new(15 * MIB)
tell([y.data_ptr() == address, counter("segment") == before])
"""
    assert ask(script, device, conf) == [splits, splits]


@pytest.mark.covers("test_cuda::TestCudaAllocator::test_allocator_settings")
@pytest.mark.parametrize(("conf", "size"), [("", 20), ("large_segment_size_mb:40", 40)], ids=["default", "larger"])
def test_large_segment_size_mb_sets_the_size_of_segments(device: torch.device, conf: str, size: int) -> None:
    """Contract: for requests of more than 1 MiB and less than 10 a segment is 20 MiB, or `large_segment_size_mb`; with
    1 MiB and with 10 it is not."""
    script = """
grown = []
for size in (MIB, MIB + 1, 2 * MIB, 10 * MIB - 512, 10 * MIB):
    torch.cuda.empty_cache()
    before = counter("reserved_bytes")
    x = new(size)
    grown.append(counter("reserved_bytes") - before)
    del x
tell(grown)
"""
    assert ask(script, device, conf) == [2 * MIB, size * MIB, size * MIB, size * MIB, 10 * MIB]


@pytest.mark.parametrize(
    ("conf", "collected"), [("", False), ("garbage_collection_threshold:0.3", True)], ids=["default", "threshold"]
)
def test_garbage_collection_threshold_gives_back_old_cached_blocks(
    device: torch.device, conf: str, collected: bool
) -> None:
    """Contract: where torch may have a fraction of the device, a request that cached blocks do not serve, with more
    reserved than the threshold, first gives back cached blocks; what lives stays whole. Without the threshold all stay,
    as long as there is room.

    Of 1900 MiB, 500 are cached and 400 asked for: with the new segment more than three tenths of it were reserved. The
    limit is less than any device has, since torch takes the fraction 1 as no limit.
    """
    script = """
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction(1900 * MIB / total, 0)
kept = torch.full((200 * MIB,), 7, dtype=torch.uint8, device=DEVICE)
old = [new(100 * MIB) for _ in range(5)]
del old
for size in (400, 401, 402):
    x = new(size * MIB)
    del x
tell([counter("segment", "freed") > 0, bool((kept.cpu() == 7).all())])
"""
    assert ask(script, device, conf) == [collected, True]


def test_set_allocator_settings_while_the_process_runs(device: torch.device) -> None:
    """Contract: settings given later hold for what is allocated then, and what lives stays whole."""
    script = """
x = torch.full((MIB,), 3, dtype=torch.uint8, device=DEVICE)
torch._C._accelerator_setAllocatorSettings("roundup_power2_divisions:4")
before = counter("allocated_bytes")
y = new(1200 * 1024)
tell([counter("allocated_bytes") - before, bool((x.cpu() == 3).all())])
"""
    assert ask(script, device) == [1280 * 1024, True]
