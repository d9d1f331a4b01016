"""Correct values with little free memory: blocks are passed between streams frequently, and none too early."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from ..allocator import limits
from ..streams.busy import NOT_SHOWN, calibrate, sleep_on

pytestmark = [pytest.mark.requires(accelerator=True, caching_allocator=True), pytest.mark.timeout(600)]

#: The bytes available to a case, and the size of a tensor: only a few fit at a time.
LEFT, SIZE = 96 << 20, 12 << 20


@pytest.fixture
def short_of_memory(device: torch.device) -> Iterator[torch.device]:
    """Leave torch `LEFT` more bytes of the device."""
    with limits.short_of_memory(device, LEFT):
        yield device


def filled(value: int, device: torch.device) -> torch.Tensor:
    return torch.full((SIZE // 4,), value, dtype=torch.int32, device=device)


def test_outofmemoryerror_when_memory_is_short(short_of_memory: torch.device) -> None:
    """A request above the available memory raises torch.OutOfMemoryError, and live tensors keep their values.

    Once they are freed, as much can be allocated again. This is also the control for the cases here. Values are
    compared on the host, because no device memory is left for the comparison.
    """
    kept: list[torch.Tensor] = []

    def fill_up() -> None:
        while len(kept) < 2 * LEFT // SIZE:
            kept.append(filled(len(kept), short_of_memory))

    with pytest.raises(torch.OutOfMemoryError):
        fill_up()

    assert len(kept) >= LEFT // SIZE // 2
    assert all(bool((x.cpu() == number).all()) for number, x in enumerate(kept))
    again = len(kept)
    kept.clear()
    kept += [filled(number, short_of_memory) for number in range(again)]
    assert all(bool((x.cpu() == number).all()) for number, x in enumerate(kept))


def test_one_stream_reuses_its_memory_in_order(short_of_memory: torch.device) -> None:
    """On one stream, freed memory is reused in stream order.

    A hundred tensors, far more than fit, have correct sums.
    """
    device = short_of_memory
    calibrate(device)
    stream = torch.Stream(device)
    sums = torch.full((100,), -1, dtype=torch.int64, device=device)
    torch.accelerator.synchronize(device)

    with stream:
        for number in range(100):
            if number % 20 == 0:
                sleep_on(stream, 10)
            sums[number] = filled(number, device).sum()
    stream.synchronize()

    assert sums.tolist() == [number * (SIZE // 4) for number in range(100)]


def test_record_stream_passes_memory_between_streams_safely(short_of_memory: torch.device) -> None:
    """Tensors recorded on another stream and freed immediately are read completely by a delayed reader.

    More is requested than fits, so the allocator must wait, and free cached blocks of one stream for the other.
    """
    device = short_of_memory
    calibrate(device)
    maker, reader = torch.Stream(device), torch.Stream(device)
    sums = torch.full((60,), -1, dtype=torch.int64, device=device)
    torch.accelerator.synchronize(device)

    for number in range(60):
        with maker:
            x = filled(number, device)
        reader.wait_stream(maker)
        if number % 10 == 0:
            sleep_on(reader, 20)
        with reader:
            sums[number] = x.sum()
        x.record_stream(reader)
        del x
        if number % 4 == 3:
            reader.synchronize()
    torch.accelerator.synchronize(device)

    assert sums.tolist() == [number * (SIZE // 4) for number in range(60)]


def test_non_blocking_copies_under_memory_pressure_are_complete(short_of_memory: torch.device) -> None:
    """Forty tensors copied from pinned memory and back without synchronization, a few at a time, are unchanged."""
    device = short_of_memory
    streams = [torch.Stream(device) for _ in range(2)]
    back = [torch.full((SIZE // 4,), -1, dtype=torch.int32).pin_memory() for _ in range(4)]
    events: list[torch.Event | None] = [None] * 4
    wrong = []

    for number in range(40):
        slot = number % 4
        event = events[slot]
        if event is not None:
            event.synchronize()
            if not bool((back[slot] == number - 4).all()):
                wrong.append(number - 4)
        source = torch.full((SIZE // 4,), number, dtype=torch.int32).pin_memory()
        with streams[number % 2]:
            there = source.to(device, non_blocking=True)
            back[slot].copy_(there, non_blocking=True)
            del there
        events[slot] = streams[number % 2].record_event()
    torch.accelerator.synchronize(device)

    assert wrong == []
    assert all(bool((x == number).all()) for number, x in enumerate(back, start=36))


@pytest.mark.requires(asynchronous=True)
def test_outofmemoryerror_does_not_affect_pending_work(short_of_memory: torch.device) -> None:
    """A request that raises OutOfMemoryError while delayed work is pending affects neither its operands nor its result.

    The delay must be observed at least once, and the next request that fits succeeds.
    """
    device = short_of_memory
    calibrate(device)
    stream = torch.Stream(device)
    x = filled(3, device)
    torch.accelerator.synchronize(device)
    asleep = []

    for value in range(3):
        sleep_on(stream, 20)
        slept = stream.record_event()
        with stream:
            y = x * 2 + value
        asleep.append(not slept.query())
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2 * LEFT, dtype=torch.uint8, device=device)
        stream.synchronize()
        assert (y == 6 + value).all()
        del y

    assert any(asleep), NOT_SHOWN
    assert (x == 3).all()
    assert (filled(9, device) == 9).all()
