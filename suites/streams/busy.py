"""Work that keeps a stream busy for a chosen time, and trials that make a wrong order visible.

One run cannot prove the order on a device, since correct values may be luck. Therefore a writer sleeps *on its stream*
before it writes into a buffer filled with a poison value, and a reader that does not wait reads the poison. Each such
case first shows, without the synchronization under test, that the reader sees poison (the control), and then, with the
synchronization, that it never does.

A transient state, such as a busy stream, must be observed in at least one of several trials (`ever`), because a host
that is delayed for longer than the sleep misses it. States that must never occur are checked in all trials.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

POISON = -1
TRIALS = 5
SLEEP_MS = 50.0


def sleep_on(stream: torch.Stream, milliseconds: float = SLEEP_MS) -> None:
    """Enqueue a sleep of about `milliseconds` on an accelerator's stream, and return immediately."""
    if stream.device.type != "cuda":
        sleep = getattr(torch.get_device_module(stream.device), "sleep", None)
        if sleep is not None:
            sleep(milliseconds, stream)
        else:
            _work_on(stream, milliseconds)
        return
    # By the highest clock, so that the sleep is not too short. To measure the clock takes the events or synchronization
    # that a case checks.
    kilohertz = getattr(torch.cuda.get_device_properties(stream.device_index), "clock_rate", 2_000_000)
    with stream:
        _sleep(int(milliseconds * kilohertz))


def _work_on(stream: torch.Stream, milliseconds: float) -> None:
    """Enqueue work of about `milliseconds`, because torch has no function that lets a stream of any device sleep."""
    block = torch.ones(1 << 20, device=stream.device)
    rounds = round(milliseconds * _rounds_per_ms(stream.device))
    with stream:
        for _ in range(max(1, rounds)):
            block.neg_()


@functools.cache
def _rounds_per_ms(device: torch.device) -> float:
    """Return the number of negations of `_work_on` that a device does per millisecond: the fastest of several runs."""
    block = torch.ones(1 << 20, device=device)
    stream = torch.accelerator.current_stream(device)
    times = []
    for _ in range(4):
        stream.synchronize()
        begin = time.perf_counter()
        for _ in range(8):
            block.neg_()
        stream.synchronize()
        times.append(time.perf_counter() - begin)
    return 8 / (min(times) * 1000)


def calibrate(device: torch.device) -> None:
    """Load the kernel that sleeps, or measure how fast the device works, so that no trial has to."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            _sleep(1)
    elif not hasattr(torch.get_device_module(device), "sleep"):
        _rounds_per_ms(device)


def _sleep(cycles: int) -> None:
    sleep = getattr(torch.cuda, "_sleep", None)
    if sleep is None:
        pytest.skip(f"torch {torch.__version__} has no torch.cuda._sleep")
    sleep(cycles)


def ever(attempt: Callable[[], bool], trials: int = TRIALS) -> bool:
    """Return whether an attempt succeeds in one of several trials; stop at the first success."""
    return any(attempt() for _ in range(trials))


def seen_in_trials(trial: Callable[[int], bool]) -> bool:
    """Run a trial for each of the values 1 to `TRIALS`, and return whether any returned True.

    A trial asserts what must always hold, and returns whether it observed what must be observed at least once.
    """
    results = [trial(value) for value in range(1, TRIALS + 1)]
    return any(results)


@dataclass
class Dropped:
    """The outcome for a block that was freed before another stream used it."""

    reused_at_once: bool
    intact: bool
    reused_when_done: bool


@dataclass
class Relay:
    """A writer and a reader on two streams of one device (or of two), with a shared buffer."""

    writer: torch.Stream
    reader: torch.Stream
    elements: int = 1 << 18

    def __post_init__(self) -> None:
        self._buffer = torch.empty(self.elements, dtype=torch.int32, device=self.writer.device)
        self._seen = torch.empty(self.elements, dtype=torch.int32, device=self.reader.device)
        calibrate(self.writer.device)

    def run(self, value: int, link: Callable[[], object]) -> bool:
        """Write `value` late on the writer's stream, call `link`, then read.

        Return whether the reader saw only `value`.
        """
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
        """Return whether a reader without a wait is observed to read too early (the control)."""
        return ever(lambda: not self.run(1, link=lambda: None))

    def always_in_order(self, link: Callable[[], object]) -> bool:
        """Return whether the reader saw the written value in every trial."""
        return all(self.run(value, link) for value in range(1, TRIALS + 1))

    def _settle(self) -> None:
        for stream in (self.writer, self.reader):
            torch.accelerator.synchronize(stream.device)


NOT_SHOWN = "a reader without a wait never read too early, so the case proves nothing (are launches blocking?)"
