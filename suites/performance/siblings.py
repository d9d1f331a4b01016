"""A comparison of two devices of one model, for speeds that have no floor: neither may be slower than its sibling.

Repetitions alternate between the devices, so that whatever slows the host down slows both.
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
from .measuring import LEAST, LEAST_SMALL, REPETITIONS, REST, calls_for, seconds_of

#: A device is slow if its median time exceeds its sibling's by this fraction. Chips of one model differ by a few
#: percent, and by ten percent if one of them is warmer.
APART = 0.2
Work = Callable[[], object]


def slow_one(times: Sequence[Sequence[float]]) -> int | None:
    """Return the number of the device that is slower than its sibling beyond noise; None if they are alike.

    `times`: the seconds per call of each repetition, for both devices. Beyond noise means that the medians differ by
    `APART`, and that three quarters of the slow device's repetitions take longer than three quarters of the other's.
    """
    medians = [statistics.median(each) for each in times]
    slow = medians.index(max(medians))
    low = statistics.quantiles(times[slow], n=4)[0]
    high = statistics.quantiles(times[1 - slow], n=4)[2]
    return slow if medians[slow] > (1 + APART) * medians[1 - slow] and low > high else None


def alternating(works: Sequence[Work], devices: Sequence[torch.device], least: float) -> list[list[float]]:
    """Return the seconds per call of each work on its device, one number per repetition. The devices alternate."""
    calls = [calls_for(work, device, least) for work, device in zip(works, devices, strict=True)]
    times: list[list[float]] = [[] for _ in works]
    for _ in range(REPETITIONS):
        for place, (work, device) in enumerate(zip(works, devices, strict=True)):
            times[place].append(seconds_of(work, device, calls[place]) / calls[place])
    return times


@dataclass(frozen=True, slots=True)
class Siblings:
    """Compares two devices. If the work has its full size and the same device is slow twice, the case fails."""

    devices: tuple[torch.device, torch.device]
    full: bool
    floors: Any
    record: Callable[[str, object], None]

    def __call__(self, name: str, works: Sequence[Work], amount: float) -> None:
        """Measure `works`, one per device; `amount`: bytes or operations per call of each."""
        texts: list[str] = []
        last: int | None = None
        for attempt in range(2):
            if attempt:
                time.sleep(REST)
            times = alternating(works, self.devices, LEAST if self.full else LEAST_SMALL)
            shown = [self.floors.shown(name, amount / statistics.median(each)) for each in times]
            for device, text in zip(self.devices, shown, strict=True):
                self.record(f"siblings.{name}.{device.index}{'.again' if attempt else ''}", text)
            slow = slow_one(times)
            if slow is None or (attempt and slow != last):
                return
            last = slow
            found = [
                f"{text} ({clocks(device) or 'clocks unknown'})"
                for device, text in zip(self.devices, shown, strict=True)
            ]
            texts.append(f"{found[slow]} beside {found[1 - slow]}")
        if self.full and last is not None:
            pytest.fail(f"{name} of {self.devices[last]} is {texts[0]}; measured again: {texts[1]}")
