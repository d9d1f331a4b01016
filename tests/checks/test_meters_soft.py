"""Meters and sticky errors of the software device, with a fake module in place of the real one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.backends.accelerator import DeviceCounters
from harness.backends.table import BACKENDS
from harness.checks import inspector
from harness.checks.meters import METERS, read_device_meters
from harness.checks.torch_memory import TorchObjectCounts
from harness.sim.softdevice.registration import BACKEND


class FakeSoft:
    """``torch.soft`` with two devices, the first of which may have been used."""

    def __init__(self, *, initialized: bool = True, failure: str | None = None, error: str | None = None) -> None:
        self._initialized, self._failure, self._error = initialized, failure, error

    def is_initialized(self) -> bool:
        return self._initialized

    def device_count(self) -> int:
        return 2

    def synchronize(self, index: int) -> None:
        if self._error is not None and index == 0:
            raise RuntimeError(self._error)

    def failure(self, index: int) -> str | None:
        return self._failure if index == 1 else None

    def host_memory_stats(self) -> dict[str, int]:
        return {"active_bytes.current": 512, "allocated_bytes.current": 1024}

    def thread_count(self) -> int:
        return 65


def counters() -> DeviceCounters:
    """Return the registration's reader: the default one."""
    counters = BACKEND.counters()
    assert counters is not None
    return counters


_STATISTICS = {"allocated_bytes.all.current": 5, "active.all.current": 1, "reserved_bytes.all.current": 4096}


@pytest.fixture
def soft(monkeypatch: pytest.MonkeyPatch) -> Any:
    assert BACKENDS["soft"] is BACKEND, "a process knows it once it is asked for"

    def put(fake: object) -> None:
        monkeypatch.setattr(torch, "soft", fake, raising=False)
        stats = SimpleNamespace(memory_stats=lambda index: _STATISTICS if index == 0 else {})
        monkeypatch.setattr(torch, "accelerator", stats)

    return put


def test_what_the_device_keeps_is_subtracted_from_the_process(soft: Any) -> None:
    soft(FakeSoft())
    values, unreadable = {"threads": 70, "mapped_bytes": 1_000_000, "heap_bytes": 1000}, dict[str, str]()
    read_device_meters(BACKEND, counters(), torch, TorchObjectCounts(), values, unreadable, full=False)
    assert unreadable == {}
    assert values == {
        "threads": 5,
        "device_allocated[0]": 5,
        "device_allocated[1]": 0,
        "device_active_blocks[0]": 1,
        "device_active_blocks[1]": 0,
        "device_reserved[0]": 4096,
        "device_reserved[1]": 0,
        "pinned_bytes": 512,
        "pinned_reserved": 1024,
    }
    assert {name.partition("[")[0] for name in values} <= {meter.name for meter in METERS}


def test_devices_that_are_not_initialized_have_nothing(soft: Any) -> None:
    soft(FakeSoft(initialized=False))
    values, unreadable = {"threads": 5, "mapped_bytes": 1000}, dict[str, str]()
    read_device_meters(BACKEND, counters(), torch, TorchObjectCounts(), values, unreadable, full=False)
    assert (values, unreadable) == ({"threads": 5, "mapped_bytes": 1000}, {})


def test_a_broken_module_makes_only_its_meters_unreadable(soft: Any) -> None:
    soft(SimpleNamespace(is_initialized=lambda: True))
    values, unreadable = {"threads": 5, "mapped_bytes": 1000}, dict[str, str]()
    read_device_meters(BACKEND, counters(), torch, TorchObjectCounts(), values, unreadable, full=False)
    assert values == {"threads": 5, "mapped_bytes": 1000}
    assert "soft" in unreadable


@pytest.mark.parametrize(
    ("fake", "expected"),
    [
        (FakeSoft(), None),
        (FakeSoft(error="index out of range"), "index out of range"),
        (FakeSoft(initialized=False, error="not asked of devices that sleep"), None),
        (FakeSoft(failure="the device is lost"), "the device is lost"),
    ],
)
def test_a_sticky_error_of_a_software_device(soft: Any, fake: FakeSoft, expected: str | None) -> None:
    soft(fake)
    assert inspector.sticky_error() == expected
