"""The defaults of a registration, with fakes of torch: the functions that each calls, and the result without them."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from harness.backends import accelerator
from harness.backends.accelerator import AcceleratorCounters
from harness.backends.backend import Backend


def fake_torch(module: Any = None, **of_accelerator: Any) -> Any:
    """A fake of torch whose accelerator is an npu, with these functions of its module and of torch.accelerator."""
    served = SimpleNamespace(current_accelerator=lambda: SimpleNamespace(type="npu"), **of_accelerator)
    torch = ModuleType("torch")
    vars(torch).update(accelerator=served, npu=module or SimpleNamespace())
    return torch


def raising(error: Exception) -> Any:
    def raises(*_: object) -> None:
        raise error

    return raises


NPU = Backend("npu")


def test_the_module_of_the_device_is_asked_first() -> None:
    torch = fake_torch(SimpleNamespace(device_count=lambda: 3), device_count=lambda: 5)
    assert NPU.device_count(torch) == 3
    assert NPU.device_count(fake_torch(device_count=lambda: 5)) == 5
    assert Backend("xyz").device_count(torch) == 0, "torch.accelerator serves another device"


def test_a_device_that_does_not_tell_is_initialized_once_it_was_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "_entered", set())
    torch = fake_torch()
    assert not NPU.is_initialized(torch)
    accelerator.enter("npu", 0, NPU.synchronize, torch)
    assert NPU.is_initialized(torch)
    assert not NPU.is_initialized(fake_torch(SimpleNamespace(is_initialized=lambda: False)))


def test_a_way_to_synchronize_that_worked_is_kept_and_its_error_is_sticky() -> None:
    calls: list[str] = []
    stream = SimpleNamespace(synchronize=lambda: calls.append("stream"))
    torch = fake_torch(
        synchronize=raising(RuntimeError("Backend doesn't support synchronizing all streams on device.")),
        current_stream=lambda _: stream,
    )
    defaults = Backend("npu")
    with pytest.raises(RuntimeError, match="sticky"):
        defaults.synchronize(fake_torch(SimpleNamespace(synchronize=raising(RuntimeError("sticky")))), 0)
    defaults.synchronize(torch, 0)
    defaults.synchronize(torch, 0)
    assert calls == ["stream", "stream"]
    stream.synchronize = raising(RuntimeError("an illegal address"))
    with pytest.raises(RuntimeError, match="an illegal address"):
        defaults.synchronize(torch, 0)


def test_counters_are_whole_numbers_or_unreadable() -> None:
    stats = {"allocated_bytes.all.current": 512, "active.all.current": "lots", "reserved_bytes.all.current": True}
    torch = fake_torch(SimpleNamespace(host_memory_stats=dict), memory_stats=lambda _: stats)
    unreadable: dict[str, str] = {}
    values = AcceleratorCounters("npu", lambda _: 1).read(torch, unreadable, full=False)
    assert values == {"device_allocated[0]": 512, "pinned_bytes": 0, "pinned_reserved": 0}
    assert unreadable == {
        "device_active_blocks[0]": "the statistic active.all.current is 'lots', not a whole number",
        "device_reserved[0]": "the statistic reserved_bytes.all.current is True, not a whole number",
    }


def test_a_device_without_statistics_says_so_once() -> None:
    torch = fake_torch(
        memory_stats=raising(RuntimeError("at x.h:1, please report a bug to PyTorch. No DeviceAllocator"))
    )
    unreadable: dict[str, str] = {}
    assert AcceleratorCounters("npu", lambda _: 2).read(torch, unreadable, full=False) == {}
    assert set(unreadable) == set(accelerator.MEMORY_COUNTERS)
    assert set(unreadable.values()) == {"torch.accelerator.memory_stats raises RuntimeError: No DeviceAllocator"}


def test_properties_are_what_is_known() -> None:
    known = SimpleNamespace(name="NPU 1", total_memory=1 << 30)
    torch = fake_torch(SimpleNamespace(get_device_properties=lambda _: known))
    assert NPU.properties(torch, 0) == {"name": "NPU 1", "total_memory": 1 << 30}
    assert NPU.properties(fake_torch(get_memory_info=lambda _: (1, 2)), 0) == {"total_memory": 2}
    assert NPU.properties(fake_torch(), 0) == {}


def test_what_a_device_lacks_is_no_error() -> None:
    torch = fake_torch(empty_cache=raising(RuntimeError("no DeviceAllocator")))
    NPU.empty_cache(torch)
    NPU.seed(torch, 1)
