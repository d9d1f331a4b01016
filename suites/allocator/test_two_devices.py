"""Memory of two devices: separate allocators and statistics, also with copies between the devices."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
import torch

from ..streams.busy import calibrate, sleep_on
from .limits import MIB, settle

pytestmark = [
    pytest.mark.requires(accelerator=True, caching_allocator=True, devices=2, torch=">=2.11"),
    pytest.mark.timeout(300),
]


@pytest.fixture
def other(device: torch.device) -> torch.device:
    second = torch.device(device.type, 1)
    for each in (device, second):
        torch.empty(1, device=each)  # there are no statistics before the first use
        settle(each)
    return second


def allocated(*devices: torch.device) -> list[int]:
    return [torch.accelerator.memory_allocated(device) for device in devices]


def test_memory_stats_of_each_device_are_separate(device: torch.device, other: torch.device) -> None:
    """A tensor counts on its own device only.

    All statistics of the other device stay the same, whichever device is current.
    """
    for current, (taking, idle) in product(range(2), ((device, other), (other, device))):
        before = torch.accelerator.memory_stats(idle)
        start = torch.accelerator.memory_allocated(taking)
        with torch.accelerator.device_index(current):
            x = torch.empty(30 * MIB, dtype=torch.uint8, device=taking)
            assert torch.accelerator.memory_allocated(taking) >= start + 30 * MIB
            del x
        assert torch.accelerator.memory_allocated(taking) == start
        assert torch.accelerator.memory_stats(idle) == before


def test_reset_peak_memory_stats_affects_one_device(device: torch.device, other: torch.device) -> None:
    """Resetting the peaks or the totals of one device does not affect the other's."""
    for reset, left in ((device, other), (other, device)):
        for each in (reset, left):
            torch.accelerator.reset_peak_memory_stats(each)
            x = torch.empty(30 * MIB, dtype=torch.uint8, device=each)
            del x
        kept = torch.accelerator.memory_stats(left)

        torch.accelerator.reset_peak_memory_stats(reset)
        torch.accelerator.reset_accumulated_memory_stats(reset)

        assert torch.accelerator.memory_stats(left) == kept
        assert torch.accelerator.max_memory_allocated(left) >= 30 * MIB
        assert torch.accelerator.max_memory_allocated(reset) < 30 * MIB
        assert torch.accelerator.memory_stats(reset)["allocated_bytes.all.allocated"] == 0


def test_copy_between_devices_counts_on_the_target_device(device: torch.device, other: torch.device) -> None:
    """A copy between devices allocates the tensor's size on the target, and leaves nothing allocated on the source."""
    for source, target in ((device, other), (other, device)):
        x = torch.full((10 * MIB,), 3, dtype=torch.uint8, device=source)
        before = allocated(source, target)

        y = x.to(target)
        torch.accelerator.synchronize(source)
        torch.accelerator.synchronize(target)
        here, there = (now - then for now, then in zip(allocated(source, target), before, strict=True))

        assert here == 0
        assert y.nbytes <= there <= y.nbytes + 2 * MIB
        assert bool((y == 3).all())
        del x, y


def test_caching_allocator_does_not_serve_another_device(device: torch.device, other: torch.device) -> None:
    """Cached memory of one device does not serve the other, and addresses of both never overlap."""
    for one, two in ((device, other), (other, device)):
        settle(device)
        settle(other)
        cached = torch.empty(30 * MIB, dtype=torch.uint8, device=one)
        del cached
        before = torch.accelerator.memory_reserved(two)

        live = [torch.full((MIB,), number, dtype=torch.uint8, device=(one, two)[number % 2]) for number in range(10)]

        assert torch.accelerator.memory_reserved(two) > before
        spans = sorted((x.data_ptr(), x.data_ptr() + x.nbytes) for x in live)
        assert all(left[1] <= right[0] for left, right in pairwise(spans))
        assert all(bool((x == number).all()) for number, x in enumerate(live))
        del live


def test_outofmemoryerror_on_one_device_leaves_the_other(device: torch.device, other: torch.device) -> None:
    """OutOfMemoryError on one device names that device, and does not release the cached memory of the other."""
    for full, left in ((other, device), (device, other)):
        x = torch.full((MIB,), 5, dtype=torch.uint8, device=left)
        cached = torch.empty(30 * MIB, dtype=torch.uint8, device=left)
        del cached
        reserved = torch.accelerator.memory_reserved(left)

        with pytest.raises(torch.OutOfMemoryError, match=rf"(?i)(gpu|device) {full.index}\b"):
            torch.empty(1 << 46, dtype=torch.uint8, device=full)

        assert torch.accelerator.memory_reserved(left) == reserved
        assert bool((x == 5).all())
        del x


def test_copy_between_devices_keeps_its_source_until_it_is_read(device: torch.device, other: torch.device) -> None:
    """A tensor dropped right after a queued copy to the other device is not overwritten before the copy reads it."""
    for each in (device, other):
        calibrate(each)
    streams = {each: torch.Stream(each) for each in (device, other)}
    for value in range(1, 9):
        source, target = (device, other) if value % 2 else (other, device)
        stream = streams[source]
        with stream:
            x = torch.full((MIB,), value, dtype=torch.uint8, device=source)
            sleep_on(stream, 20)
            y = x.to(target, non_blocking=True)
            del x
            poison = torch.full((MIB,), 99, dtype=torch.uint8, device=source)
        torch.accelerator.synchronize(device)
        torch.accelerator.synchronize(other)
        assert bool((y == value).all())
        assert bool((poison == 99).all())
