"""Copies between each pair of devices, in one process: values, events, and concurrent copies of all pairs.

Collectives use the same links. `harness devices` shows which pairs have NVLink, PCIe or no access (`peer_links`), and a
hardware file can require a link.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pynvml
import pytest
import torch

from suites.streams.busy import NOT_SHOWN, POISON, calibrate, sleep_on

from .checking import difference

pytestmark = pytest.mark.timeout(120)

#: Numbers of devices. A machine runs the cases for as many as it has.
COUNTS = pytest.mark.parametrize(
    "count", [pytest.param(count, marks=pytest.mark.requires(accelerator=True, devices=count)) for count in (2, 4, 8)]
)
SIZES = (1, 4097, (1 << 20) + 3)


def pairs(count: int) -> Iterator[tuple[int, int]]:
    """Return each pair of devices, in both directions."""
    return itertools.permutations(range(count), 2)


def content(source: int, target: int, size: int, turn: int = 0) -> torch.Tensor:
    """Return the content to copy, which differs for each pair, direction, place and turn."""
    index = torch.arange(size, dtype=torch.int32)
    return index * 64 + source * 8 + target + turn * 7919


def settle(count: int) -> None:
    for index in range(count):
        torch.accelerator.synchronize(index)


@COUNTS
def test_peer_copy_over_each_pair_keeps_every_byte(device: torch.device, count: int) -> None:
    """A tensor copied from each device to each other device arrives complete, and its source does not change."""
    wrong = []
    for source, target in pairs(count):
        for size in SIZES:
            sent = content(source, target, size)
            there = torch.full((size,), POISON, dtype=torch.int32, device=torch.device(device.type, target))
            own = sent.to(torch.device(device.type, source))
            there.copy_(own)
            for what, found in (("copy", there), ("source", own)):
                if text := difference(found, sent):
                    wrong.append(f"{source} to {target}, {size} elements: {what}: {text}")
    assert not wrong, "\n".join(wrong[:20])


@COUNTS
def test_peer_copies_over_all_pairs_at_once(device: torch.device, count: int) -> None:
    """Copies between all pairs in both directions, each on a stream of its source, do not affect each other."""
    size, turns = SIZES[-1], 3
    ways = list(pairs(count))
    streams = {way: torch.Stream(torch.device(device.type, way[0])) for way in ways}
    wrong = []
    for turn in range(turns):
        sent = {way: content(*way, size, turn).to(torch.device(device.type, way[0])) for way in ways}
        made = {way: torch.empty(size, dtype=torch.int32, device=torch.device(device.type, way[1])) for way in ways}
        settle(count)
        for way in ways:
            with streams[way]:
                made[way].copy_(sent[way], non_blocking=True)
        settle(count)
        found = {way: difference(made[way], content(*way, size, turn)) for way in ways}
        wrong += [f"turn {turn}, {way[0]} to {way[1]}: {text}" for way, text in found.items() if text]
    assert not wrong, "\n".join(wrong[:20])


@pytest.mark.races("the control leaves out the wait, to show that the case would notice")
@COUNTS
def test_wait_event_of_each_other_device_orders_a_copy(device: torch.device, count: int) -> None:
    """A stream that waits for an event of another device copies what was written there before the event.

    The writer sleeps on its stream. Without the wait, the first pair shows that the copy is too early.
    """
    for index in range(count):
        calibrate(torch.device(device.type, index))

    def copied(source: int, target: int, *, wait: bool) -> int:
        writer = torch.Stream(torch.device(device.type, source))
        reader = torch.Stream(torch.device(device.type, target))
        own = torch.full((4097,), POISON, dtype=torch.int32, device=writer.device)
        there = torch.full((4097,), POISON, dtype=torch.int32, device=reader.device)
        settle(count)
        sleep_on(writer)
        with writer:
            own.fill_(source * 8 + target)
            written = writer.record_event()
        if wait:
            reader.wait_event(written)
        with reader:
            there.copy_(own, non_blocking=True)
        settle(count)
        (value,) = there.unique().tolist()
        return int(value)

    assert any(copied(0, 1, wait=False) == POISON for _ in range(5)), NOT_SHOWN
    wrong = [
        f"{source} to {target}: {found}"
        for source, target in pairs(count)
        if (found := copied(source, target, wait=True)) != source * 8 + target
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.requires(device="cuda", devices=2, nvml=True)
@pytest.mark.usefixtures("device")
def test_can_device_access_peer_agrees_with_nvml() -> None:
    """CUDA and NVML report the same for each pair, both directions agree, and devices with NVLink have access."""
    count = torch.cuda.device_count()
    wrong = []
    pynvml.nvmlInit()
    try:
        handles = [
            pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(index).uuid}")
            for index in range(count)
        ]
        for source, target in pairs(count):
            allowed = torch.cuda.can_device_access_peer(source, target)
            read, write, nvlink = (
                pynvml.nvmlDeviceGetP2PStatus(handles[source], handles[target], way) == 0 for way in range(3)
            )
            kind = "nvlink" if nvlink else "pcie" if allowed else "refused"
            print(f"{source} to {target}: {kind}")
            if allowed != (read and write):
                wrong.append(f"{source} to {target}: CUDA says {allowed}, NVML {read and write}")
            if nvlink and not allowed:
                wrong.append(f"{source} to {target}: NVLink without access")
            if allowed != torch.cuda.can_device_access_peer(target, source):
                wrong.append(f"{source} to {target}: the other direction differs")
    finally:
        pynvml.nvmlShutdown()
    assert not wrong, "\n".join(wrong)
