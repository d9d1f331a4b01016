"""What a quick test gets and how it ends: the device, sizes, sleeping streams, figures, and the errors it may raise.

Quick tests run in a disposable process with one GPU. A test returns if the device did what the test's docstring says,
and raises `HealthError` with what it found otherwise. It raises `CannotTestError` if it cannot say either.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.backends.backend import Backend
from harness.core.errors import HarnessError
from harness.devices.known_answers import HealthError

if TYPE_CHECKING:
    import torch

    from harness.ready.cudart import Runtime

MIB = 1 << 20
#: Milliseconds for which a stream sleeps, so that what comes too early is seen to do so.
SLEEP_MS = 20.0
#: Trials of what must be seen at least once. Each later trial sleeps longer, for a host that is busy.
TRIALS = 5


class CannotTestError(HarnessError):
    """A test cannot run here. The text says why: a type that the card lacks, a function that torch lacks."""


class LacksError(CannotTestError):
    """The card or this torch lacks what the test is about, which is no reason to doubt the card."""


class SlowError(HealthError):
    """The result is right, and takes far longer than on any host."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much a test does. `memory_share`: the part of the free memory that patterns are written to.

    `copy_bytes`, `edge`: what is copied and multiplied for correctness. `timed`: whether speeds are measured, with the
    sizes of ``suites/performance``, so that the floors of a hardware file hold for them.
    """

    memory_share: float
    copy_bytes: int
    edge: int
    allocations: int
    timed: bool


#: For GPUs. 0.5 of the free memory of a card with 80 GiB is written and read five times in a tenth of a second each.
FULL = Sizes(memory_share=0.5, copy_bytes=64 * MIB, edge=2048, allocations=2000, timed=True)
#: For devices that processors simulate.
SMALL = Sizes(memory_share=1 / 256, copy_bytes=4 * MIB, edge=256, allocations=200, timed=False)


@dataclass(slots=True)
class Bench:
    """A GPU under test, in its process. `tell` gets the place within a test, which is reported if the place hangs."""

    torch: Any
    backend: Backend
    device: torch.device
    seed: int
    sizes: Sizes
    figures: dict[str, float] = field(default_factory=dict)
    tell: Callable[[str], object] = lambda _: None
    _runtime: Runtime | None = None

    @property
    def source(self) -> random.Random:
        """Random numbers that depend on the seed of the run alone."""
        return random.Random(self.seed)

    @property
    def cuda(self) -> Runtime:
        """The CUDA runtime that torch calls. Raise CannotTestError for a device without one."""
        if self._runtime is None:
            from harness.ready.cudart import Runtime

            self._runtime = Runtime.of_torch(self.torch, self.device.type)
        return self._runtime

    def synchronize(self) -> None:
        """Wait for the device."""
        self.backend.synchronize(self.torch, self.device.index or 0)

    def sleep(self, stream: Any, milliseconds: float = SLEEP_MS) -> None:
        """Enqueue a sleep on a stream. Raise LacksError for a device that cannot."""
        sleep = getattr(self.torch.cuda, "_sleep", None) if self.device.type == "cuda" else None
        if sleep is None:
            raise LacksError("torch cannot make a stream of this device sleep")
        # By the highest clock, so that the sleep is not too short.
        properties = self.torch.cuda.get_device_properties(self.device)
        with self.torch.cuda.stream(stream):
            sleep(int(milliseconds * getattr(properties, "clock_rate", 2_000_000)))


def ever(trial: Callable[[float], bool], trials: int = TRIALS) -> bool:
    """Return whether a trial succeeds once. A trial gets the milliseconds to sleep: twice as many each time."""
    return any(trial(SLEEP_MS * 2**number) for number in range(trials))


def same_values(found: Any, wanted: Any, what: str = "the result") -> None:
    """Raise HealthError with the first difference of two tensors. NaN is a difference."""
    wrong = ~(found == wanted)
    if count := int(wrong.sum().item()):
        place = int(wrong.flatten().int().argmax().item())
        first, right = (x.flatten()[place].item() for x in (found, wanted))
        where = f"{count} of {found.numel()} elements are wrong; the first, at {place}"
        raise HealthError(f"{what}: {where}, is {first} instead of {right}")
