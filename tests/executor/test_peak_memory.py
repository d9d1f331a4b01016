"""The peak memory of a case: of this process from the kernel, of a device from torch."""

from __future__ import annotations

import mmap
import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace

import pytest

from harness.backends.backend import Backend
from harness.backends.table import BACKENDS
from harness.executor import around_case
from harness.executor.around_case import PeakMemory

MIB = 1 << 20


def touch(size: int) -> None:
    """Use this much memory, and free it."""
    with mmap.mmap(-1, size) as memory:
        for place in range(0, size, mmap.PAGESIZE):
            memory[place] = 1


def test_the_peak_of_a_case_is_that_of_this_case_only() -> None:
    peaks = PeakMemory(BACKENDS["cpu"])
    found = []
    for size in (64 * MIB, 0, 16 * MIB):
        peaks.begin()
        touch(size) if size else None
        found.append(peaks.host())
    assert 60 * MIB < found[0] < 80 * MIB
    assert found[1] < 4 * MIB
    assert 12 * MIB < found[2] < 32 * MIB
    assert peaks.device() == 0


def test_a_kernel_that_does_not_count_anew_leaves_it_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(around_case, "_RESET", "/proc/self/nothing")
    peaks = PeakMemory(BACKENDS["cpu"])
    peaks.begin()
    touch(16 * MIB)
    assert peaks.host() == 0


@dataclass
class FakeAccelerator:
    """``torch.accelerator`` with two devices."""

    peaks: list[int] = field(default_factory=lambda: [5, 7])
    broken: bool = False

    def reset_peak_memory_stats(self, index: int) -> None:
        self.peaks[index] = 0

    def max_memory_allocated(self, index: int) -> int:
        if self.broken:
            raise RuntimeError("a case has replaced it")
        return self.peaks[index]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeAccelerator:
    found = FakeAccelerator()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(accelerator=found))
    return found


class TwoDevices(Backend):
    """Two devices that torch uses, or does not."""

    def __init__(self, *, is_used: bool) -> None:
        super().__init__("cuda")
        self._is_used = is_used

    def is_initialized(self, _: ModuleType) -> bool:
        return self._is_used

    def device_count(self, _: ModuleType) -> int:
        return 2


def test_the_largest_peak_of_the_devices_counts(fake: FakeAccelerator) -> None:
    peaks = PeakMemory(TwoDevices(is_used=True))
    peaks.begin()
    assert peaks.device() == 0
    fake.peaks = [3 * MIB, 2 * MIB]
    assert peaks.device() == 3 * MIB
    fake.broken = True
    assert peaks.device() == 0


def test_a_device_that_torch_does_not_use_is_not_asked(fake: FakeAccelerator) -> None:
    peaks = PeakMemory(TwoDevices(is_used=False))
    peaks.begin()
    assert fake.peaks == [5, 7]
    assert peaks.device() == 0
