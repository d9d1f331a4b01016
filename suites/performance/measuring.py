"""Measurements of speed: a warm-up, repetitions, their median and quartiles, and the comparison with a floor.

Times are read from the host's clock, from an idle device to an idle device, so that a device with broken events cannot
look fast.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from ..gpu_readings import clocks
from ..synchronizing import synchronize

#: The repetitions of a measurement, and the minimum seconds of each: for a figure, and for a check of the case itself.
REPETITIONS, LEAST, LEAST_SMALL = 7, 0.05, 0.001
#: The maximum number of calls of the work in one repetition.
MOST_CALLS = 1 << 16
#: The idle seconds before a figure below its floor is measured again.
REST = 2.0


def seconds_per_call(work: Callable[[], object], device: torch.device, least: float) -> list[float]:
    """Warm up, and return the seconds per call of `work`, one number per repetition of at least `least` seconds."""
    calls = calls_for(work, device, least)
    return [seconds_of(work, device, calls) / calls for _ in range(REPETITIONS)]


def seconds_of(work: Callable[[], object], device: torch.device, calls: int) -> float:
    """Return the seconds that `calls` calls of `work` take, from an idle device to an idle device."""
    synchronize(device)
    begin = time.perf_counter()
    for _ in range(calls):
        work()
    synchronize(device)
    return time.perf_counter() - begin


def calls_for(work: Callable[[], object], device: torch.device, least: float) -> int:
    """Warm up, and return how many calls of `work` take at least `least` seconds."""
    calls = 1
    seconds_of(work, device, calls)
    while (took := seconds_of(work, device, calls)) < least and calls < MOST_CALLS:
        calls = min(MOST_CALLS, calls * 2 if took <= 0 else max(calls + 1, int(1.2 * calls * least / took)))
    return calls


@dataclass(frozen=True, slots=True)
class Speed:
    """Records figures of a case. A figure that is below its floor twice fails the case."""

    device: torch.device
    full: bool
    floors: Any
    record: Callable[[str, object], None]

    def __call__(self, name: str, work: Callable[[], object], amount: float | None = None, *, parts: int = 1) -> None:
        """Measure `work`, which processes `amount` bytes or operations per call.

        Without an amount, the figure is the time of each of the `parts` of a call.

        Only the full size is compared with a floor. If the figure misses the floor, it is measured again after a rest.
        """
        prefix = "performance." if self.full else "performance.small."
        missed = []
        if self.full and (floor := self.floors.text(name)):
            self.record(f"{prefix}{name}.floor", floor)
        for attempt in range(2):
            if attempt:
                time.sleep(REST)
            figures = self._measure(work, amount, parts)
            found = clocks(self.device)
            value = statistics.median(figures)
            low, _, high = statistics.quantiles(figures, n=4)
            again = ".again" if attempt else ""
            self.record(f"{prefix}{name}{again}", self.floors.shown(name, value))
            self.record(
                f"{prefix}{name}{again}.quartiles",
                f"{self.floors.shown(name, low)} to {self.floors.shown(name, high)} in {REPETITIONS} repetitions"
                + (f", {found}" if found else ""),
            )
            text = self.floors.missed(name, value) if self.full else ""
            if not text:
                return
            missed.append(f"{text} ({found or 'clocks unknown'})")
        pytest.fail(f"{missed[0]}; measured again: {missed[1]}")

    def _measure(self, work: Callable[[], object], amount: float | None, parts: int) -> Sequence[float]:
        times = seconds_per_call(work, self.device, LEAST if self.full else LEAST_SMALL)
        return [each / parts if amount is None else amount / each for each in times]
