"""Transfers in both directions at the same time, and between devices: every word arrives each time.

Words that arrive on a device are compared there.
"""

from __future__ import annotations

import pytest
import torch

from ..sizes import SIZES
from .patterns import PATTERNS
from .rounds import rounds
from .watch import Watch

pytestmark = [
    pytest.mark.requires(accelerator=True),
    pytest.mark.serial,
    pytest.mark.endurance,
    pytest.mark.parametrize("full", SIZES),
]


def words(device: torch.device, full: bool, seed: int) -> torch.Tensor:
    """Return random words on the device: 1 GiB, or 1 MiB."""
    found = torch.empty((1 << 27) if full else (1 << 17), dtype=torch.int64, device=device)
    PATTERNS["random"][0](found, seed, 0, 0)
    return found


@pytest.mark.parametrize(
    "pinned", [pytest.param(True, marks=pytest.mark.requires(pinned_memory=True)), False], ids=["pinned", "pageable"]
)
def test_transfers_both_ways_at_once(device: torch.device, endurance: float, pinned: bool, full: bool) -> None:
    """Data sent to the device and, at the same time on a second stream, to the host arrive unchanged."""
    up, down = words(device, full, 1), words(device, full, 2)
    source = torch.empty(up.shape, dtype=up.dtype, pin_memory=pinned)
    target = torch.empty(down.shape, dtype=down.dtype, pin_memory=pinned)
    source.copy_(up)
    arrived, returned = torch.empty_like(up), torch.empty_like(down)
    streams = torch.Stream(device), torch.Stream(device)
    watches = Watch(up, "host to device"), Watch(down, "device to host and back")

    for _ in rounds(endurance):
        arrived.fill_(-1)
        returned.fill_(-1)
        target.fill_(-1)
        torch.accelerator.synchronize(device)
        with streams[0]:
            arrived.copy_(source, non_blocking=pinned)
        with streams[1]:
            target.copy_(down, non_blocking=pinned)
        torch.accelerator.synchronize(device)
        returned.copy_(target)
        watches[0].compare(arrived)
        watches[1].compare(returned)
    for watch in watches:
        watch.conclude()


@pytest.mark.requires(devices=2)
def test_transfers_between_two_devices(device: torch.device, endurance: float, full: bool) -> None:
    """Data sent to another device and back arrives unchanged, during a transfer in the other direction."""
    there = torch.device(device.type, 1)
    here, other = words(device, full, 1), words(there, full, 2)
    away, visiting = torch.empty_like(here, device=there), torch.empty_like(other, device=device)
    back, home = torch.empty_like(here), torch.empty_like(other)
    watches = Watch(here, "to the other device and back"), Watch(other, "from the other device and back")

    for _ in rounds(endurance):
        for tensor in (away, visiting, back, home):
            tensor.fill_(-1)
        away.copy_(here, non_blocking=True)
        visiting.copy_(other, non_blocking=True)
        back.copy_(away, non_blocking=True)
        home.copy_(visiting, non_blocking=True)
        watches[0].compare(back)
        watches[1].compare(home)
    for watch in watches:
        watch.conclude()
