"""Work that keeps a stream busy for a chosen time, and trials that make a wrong order visible.

Order on a device cannot be asserted from one run: the right values may be luck. So a writer sleeps *on its stream*
before it writes, into a buffer full of poison; a reader that does not wait finds the poison. Each such case shows
first, without the synchronisation under test, that poison is seen (the control), and then, with it, that it never is.

What must be caught in passing, such as a stream still at work, is asked of several trials (`ever`): a host that is
held up for longer than the sleep misses one. What must never happen is asked of all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

POISON = -1
TRIALS = 5
SLEEP_MS = 50.0


def sleep_on(stream: torch.Stream, milliseconds: float = SLEEP_MS) -> None:
    """Enqueue work on an accelerator's stream that does nothing for about that long; returns at once."""
    if stream.device.type != "cuda":
        torch.get_device_module(stream.device).sleep(milliseconds, stream)
        return
    cycles = int(milliseconds * _cycles_per_ms(stream.device_index))
    with stream:
        _sleep(cycles)


def calibrate(device: torch.device) -> None:
    """Measure the device's clock now, so that the first `sleep_on` does not, in the middle of a trial."""
    if device.type == "cuda":
        _cycles_per_ms(device.index or 0)


def _sleep(cycles: int) -> None:
    sleep = getattr(torch.cuda, "_sleep", None)
    if sleep is None:
        pytest.skip(f"torch {torch.__version__} has no torch.cuda._sleep")
    sleep(cycles)


@functools.cache
def _cycles_per_ms(index: int) -> float:
    """Clock cycles a millisecond, by the device's own events: the median of some runs, after one that warms it up."""
    rates = []
    with torch.cuda.device(index):
        for cycles in (1_000_000, 20_000_000, 20_000_000, 20_000_000):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            _sleep(cycles)
            end.record()
            end.synchronize()
            elapsed = start.elapsed_time(end)
            assert elapsed > 0, f"the events around a sleep of {cycles} cycles are {elapsed} ms apart"
            rates.append(cycles / elapsed)
    return sorted(rates[1:])[1]


def ever(attempt: Callable[[], bool], trials: int = TRIALS) -> bool:
    """Whether an attempt succeeds in any of some trials; stops at the first that does."""
    return any(attempt() for _ in range(trials))


def seen_in_trials(trial: Callable[[int], bool]) -> bool:
    """Run a trial for each of the values 1 to `TRIALS`, whatever it returns, and tell whether one returned true.

    A trial asserts what must hold each time and returns what must be seen once.
    """
    results = [trial(value) for value in range(1, TRIALS + 1)]
    return any(results)


@dataclass
class Relay:
    """A writer and a reader on two streams of one device (or of two), and the buffer between them."""

    writer: torch.Stream
    reader: torch.Stream
    elements: int = 1 << 18

    def __post_init__(self) -> None:
        self._buffer = torch.empty(self.elements, dtype=torch.int32, device=self.writer.device)
        self._seen = torch.empty(self.elements, dtype=torch.int32, device=self.reader.device)
        calibrate(self.writer.device)

    def run(self, value: int, link: Callable[[], object]) -> bool:
        """Write `value` late on the writer's stream, call `link`, then read; whether the reader saw `value` alone."""
        self._settle()
        self._buffer.fill_(POISON)
        self._seen.fill_(POISON)
        self._settle()
        sleep_on(self.writer)
        with self.writer:
            self._buffer.fill_(value)
        link()
        with self.reader:
            self._seen.copy_(self._buffer, non_blocking=True)
        self._settle()
        return bool((self._seen == value).all())

    def shows_wrong_order(self) -> bool:
        """The control: whether a reader that waits for nothing is seen to read too early."""
        return ever(lambda: not self.run(1, link=lambda: None))

    def always_in_order(self, link: Callable[[], object]) -> bool:
        """Whether the reader saw what the writer wrote in every trial."""
        return all(self.run(value, link) for value in range(1, TRIALS + 1))

    def _settle(self) -> None:
        for stream in (self.writer, self.reader):
            torch.accelerator.synchronize(stream.device)


NOT_SHOWN = "reading without waiting was never seen to go wrong, so the case shows nothing (launches made blocking?)"
