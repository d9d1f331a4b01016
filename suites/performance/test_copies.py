"""Bandwidth of copies within a device, from and to the host, and between devices. Each copy is compared afterwards."""

from __future__ import annotations

import pytest
import torch

from ..sizes import SIZES
from .measuring import Speed

pytestmark = [pytest.mark.serial, pytest.mark.parametrize("full", SIZES)]

PINNED = pytest.mark.parametrize(
    "pinned", [pytest.param(True, marks=pytest.mark.requires(pinned_memory=True)), False], ids=["pinned", "pageable"]
)


def numbers(size: int, device: torch.device | str = "cpu", *, pinned: bool = False) -> torch.Tensor:
    """Return `size` bytes of different 32-bit numbers."""
    found = torch.arange(size // 4, dtype=torch.int32, device=device)
    return found.pin_memory() if pinned else found


def test_copy_within_the_device(device: torch.device, speed: Speed, full: bool) -> None:
    """Bytes read and written per second by copies of 1 GiB. The last copy is complete."""
    size = (1 << 30) if full else (1 << 20)
    source, target = numbers(size, device), torch.zeros(size // 4, dtype=torch.int32, device=device)

    speed("d2d_bandwidth", lambda: target.copy_(source), 2 * size)

    assert torch.equal(target, source)


@pytest.mark.requires(accelerator=True)
@PINNED
def test_copy_to_the_device(device: torch.device, speed: Speed, full: bool, pinned: bool) -> None:
    """Bytes per second of copies of 512 MiB from the host. The last copy is complete."""
    size = (1 << 29) if full else (1 << 20)
    source, target = numbers(size, pinned=pinned), torch.zeros(size // 4, dtype=torch.int32, device=device)
    kind = "pinned" if pinned else "pageable"

    speed(f"h2d_{kind}_bandwidth", lambda: target.copy_(source, non_blocking=pinned), size)

    assert torch.equal(target, numbers(size, device))


@pytest.mark.requires(accelerator=True)
@PINNED
def test_copy_to_the_host(device: torch.device, speed: Speed, full: bool, pinned: bool) -> None:
    """Bytes per second of copies of 512 MiB to the host. The last copy is complete."""
    size = (1 << 29) if full else (1 << 20)
    source, target = numbers(size, device), torch.zeros(size // 4, dtype=torch.int32, pin_memory=pinned)
    kind = "pinned" if pinned else "pageable"

    speed(f"d2h_{kind}_bandwidth", lambda: target.copy_(source, non_blocking=pinned), size)

    assert torch.equal(target, numbers(size))


@pytest.mark.requires(accelerator=True, pinned_memory=True)
def test_copies_both_ways_at_once(device: torch.device, speed: Speed, full: bool) -> None:
    """Bytes per second of pinned copies in both directions at the same time, on two streams. Both are complete."""
    size = (1 << 29) if full else (1 << 20)
    up, down = numbers(size, pinned=True), numbers(size, device)
    there = torch.zeros(size // 4, dtype=torch.int32, device=device)
    here = torch.zeros(size // 4, dtype=torch.int32, pin_memory=True)
    streams = torch.Stream(device), torch.Stream(device)
    torch.accelerator.synchronize(device)

    def both() -> None:
        with streams[0]:
            there.copy_(up, non_blocking=True)
        with streams[1]:
            here.copy_(down, non_blocking=True)

    speed("bidirectional_bandwidth", both, 2 * size)

    assert torch.equal(there, down)
    assert torch.equal(here, up)


@pytest.mark.requires(accelerator=True, devices=2)
def test_copy_between_devices(device: torch.device, speed: Speed, full: bool) -> None:
    """Bytes per second of copies of 512 MiB to another device. The last copy is complete."""
    size = (1 << 29) if full else (1 << 20)
    there = torch.device(device.type, 1)
    source, target = numbers(size, device), torch.zeros(size // 4, dtype=torch.int32, device=there)

    def copy() -> None:
        target.copy_(source, non_blocking=True)

    speed("peer_bandwidth", copy, size)

    torch.accelerator.synchronize(there)
    assert torch.equal(target, numbers(size, there))
