"""The allocator of an accelerator behind the `Subject` interface: tensors and the counters of `torch.accelerator`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from ..streams.busy import calibrate, sleep_on
from .limits import settle
from .model import DERIVED, KEPT, POOLS, Count
from .programs import STREAMS

#: The duration of the sleep before another stream reads a block.
SLEEP_MS = 10.0
TOO_MUCH = 1 << 46


def counters(device: torch.device) -> dict[str, Count]:
    """Return all counters, with their current values."""
    statistics = torch.accelerator.memory_stats(device)
    return {
        f"{name}.{pool}": Count(
            *(statistics[f"{name}.{pool}.{what}"] for what in ("current", "peak", "allocated", "freed"))
        )
        for name in (*KEPT, *DERIVED)
        for pool in (*POOLS, "all")
    }


def unused_streams(device: torch.device, number: int) -> list[torch.Stream]:
    """Return streams without memory, whose first request from either pool allocates a new segment.

    A stream from torch's pool of streams may have memory from earlier use, and its live blocks are unknown.
    """
    found: dict[int, torch.Stream] = {}
    for _ in range(64):
        stream = torch.Stream(device)
        if stream.stream_id not in found and all(_asks_the_device(stream, size) for size in (512, 2 << 20)):
            found[stream.stream_id] = stream
        if len(found) == number:
            return list(found.values())
    pytest.skip(f"found fewer than {number} streams without memory")


def _asks_the_device(stream: torch.Stream, size: int) -> bool:
    device = stream.device
    settle(device)
    before = counters(device)["segment.all"].current
    with stream:
        block = torch.empty(size, dtype=torch.uint8, device=device)
    grown = counters(device)["segment.all"].current > before
    del block
    return grown


@dataclass
class Use:
    done: torch.Event
    read: torch.Tensor


class Accelerator:
    """The subject for programs on a device. It uses the caller's streams, and its counters start at zero."""

    def __init__(self, device: torch.device, streams: list[torch.Stream]) -> None:
        self._device = device
        self._streams = streams
        self._blocks: dict[int, tuple[torch.Tensor, int]] = {}
        self._use: Use | None = None
        settle(device)
        torch.accelerator.reset_accumulated_memory_stats(device)
        torch.accelerator.reset_peak_memory_stats(device)
        self._base = counters(device)

    def allocate(self, size: int, stream: int) -> int:
        with self._streams[stream]:
            block = torch.empty(size, dtype=torch.uint8, device=self._device)
        address = block.data_ptr()
        if size:
            self._blocks[address] = block, stream
        return address

    def free(self, address: int) -> None:
        del self._blocks[address]

    def write(self, address: int, value: int) -> None:
        block, stream = self._blocks[address]
        with self._streams[stream]:
            block.fill_(value)

    def holds(self, address: int, value: int) -> bool:
        block, stream = self._blocks[address]
        with self._streams[stream]:
            return bool((block.cpu() == value).all())

    def use(self, address: int, stream: int) -> None:
        block, own = self._blocks[address]
        read = torch.empty(block.shape, dtype=torch.uint8, pin_memory=True)
        reader = self._streams[stream]
        reader.wait_stream(self._streams[own])
        sleep_on(reader, SLEEP_MS)
        with reader:
            read.copy_(block, non_blocking=True)
        block.record_stream(reader)
        self._use = Use(reader.record_event(), read)

    def use_is_done(self) -> bool:
        return self._use is None or self._use.done.query()

    def use_read(self, value: int) -> bool:
        assert self._use is not None
        return bool((self._use.read == value).all())

    def synchronize(self) -> None:
        torch.accelerator.synchronize(self._device)

    def empty(self) -> None:
        torch.accelerator.empty_cache()

    def ask_too_much(self) -> None:
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(TOO_MUCH, dtype=torch.uint8, device=self._device)

    def counters(self) -> dict[str, Count]:
        return {name: _less(count, self._base[name].current) for name, count in counters(self._device).items()}

    def reset_peaks(self) -> None:
        torch.accelerator.reset_peak_memory_stats(self._device)

    def reset_accumulated(self) -> None:
        torch.accelerator.reset_accumulated_memory_stats(self._device)


def _less(count: Count, base: int) -> Count:
    return Count(count.current - base, count.peak - base, count.allocated, count.freed)


def maker(device: torch.device) -> Callable[[], Accelerator]:
    """Return a function that creates subjects on the same streams, one after another.

    Each subject must have freed everything before the next one.
    """
    calibrate(device)
    streams = unused_streams(device, STREAMS)
    return lambda: Accelerator(device, streams)
