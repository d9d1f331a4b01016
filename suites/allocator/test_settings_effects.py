"""Effects of allocator settings on a GPU, each in a process started with the setting.

A process without the setting is the control: the same script must have the other result there.
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
@pytest.mark.own_process
def test_roundup_power2_divisions_rounds_sizes_up(device: torch.device, conf: str, taken: int) -> None:
    """`roundup_power2_divisions:n` rounds a size up to the next nth of the interval between powers of two.

    With four divisions, 1200 KiB become 1280 KiB. Requested bytes do not change.
    """
    script = """
before = counter("allocated_bytes"), counter("requested_bytes")
x = new(1200 * 1024)
tell([counter("allocated_bytes") - before[0], counter("requested_bytes") - before[1]])
"""
    assert ask(script, device, conf) == [taken, 1200 * 1024]


@pytest.mark.covers("test_cuda::TestCudaAllocator::test_allocator_settings")
@pytest.mark.parametrize(("conf", "splits"), [("", True), ("max_split_size_mb:20", False)], ids=["default", "limit"])
@pytest.mark.own_process
def test_max_split_size_mb_prevents_splitting_of_large_blocks(device: torch.device, conf: str, splits: bool) -> None:
    """A block above `max_split_size_mb` is not split for a small request, which gets its own segment."""
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
@pytest.mark.own_process
def test_large_segment_size_mb_sets_the_size_of_segments(device: torch.device, conf: str, size: int) -> None:
    """For requests above 1 MiB and below 10 MiB, a segment has 20 MiB, or `large_segment_size_mb`.

    The setting does not affect segments for other requests.
    """
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
@pytest.mark.own_process
def test_garbage_collection_threshold_releases_old_cached_blocks(
    device: torch.device, conf: str, collected: bool
) -> None:
    """Above `garbage_collection_threshold`, a request that the cache cannot serve releases cached blocks.

    Live blocks are intact. Without the threshold, all blocks stay cached while there is room. 500 of 1900 MiB are
    cached and 400 requested, so that a new segment would raise the reserved memory above three tenths. The limit is
    below any device's memory, because torch treats the fraction 1 as no limit.
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


@pytest.mark.own_process
def test_set_allocator_settings_while_the_process_runs(device: torch.device) -> None:
    """Settings changed at runtime apply to later allocations, and live tensors are intact."""
    script = """
x = torch.full((MIB,), 3, dtype=torch.uint8, device=DEVICE)
torch._C._accelerator_setAllocatorSettings("roundup_power2_divisions:4")
before = counter("allocated_bytes")
y = new(1200 * 1024)
tell([counter("allocated_bytes") - before, bool((x.cpu() == 3).all())])
"""
    assert ask(script, device) == [1280 * 1024, True]
