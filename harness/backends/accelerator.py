"""Devices through ``torch.accelerator``: their first use, and the counters of their memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, MutableMapping
from types import ModuleType
from typing import Any, Protocol

#: The key of each device counter in ``torch.accelerator.memory_stats``.
MEMORY_COUNTERS = {
    "device_allocated": "allocated_bytes.all.current",
    "device_active_blocks": "active.all.current",
    "device_reserved": "reserved_bytes.all.current",
}
#: The key of each counter of pinned memory in ``host_memory_stats`` of a device's module.
PINNED_COUNTERS = {"pinned_bytes": "active_bytes.current", "pinned_reserved": "allocated_bytes.current"}

#: The types of devices that `enter` has used in this process, for devices that do not report whether they are
#: initialised.
_entered: set[str] = set()


class DeviceCounters(Protocol):
    """Reads the memory and other resources that the devices of one kind hold for this process."""

    def read(self, torch: ModuleType, unreadable: MutableMapping[str, str], *, full: bool) -> dict[str, int]:
        """Return values by meter; `full` adds expensive ones.

        Values that cannot be read go to `unreadable`, with the reason.
        """
        ...


class AcceleratorCounters:
    """Reads the statistics of a device's allocator, and of the pinned memory that its module reports."""

    def __init__(self, torch_type: str, device_count: Callable[[ModuleType], int]) -> None:
        self._type = torch_type
        self._device_count = device_count

    def read(self, torch: ModuleType, unreadable: MutableMapping[str, str], *, full: bool) -> dict[str, int]:  # noqa: ARG002
        """Return the counters; see `DeviceCounters`. Missing statistics of an unused device count as 0."""
        module = getattr(torch, self._type, None)
        values: dict[str, int] = {}
        for index in range(self._device_count(torch)):
            try:
                statistics = torch.accelerator.memory_stats(index)
            except Exception as error:  # noqa: BLE001 - a device without a caching allocator raises what it likes
                for name in MEMORY_COUNTERS:
                    unreadable.setdefault(name, f"torch.accelerator.memory_stats raises {brief(error)}")
                continue
            take(values, statistics, {f"{name}[{index}]": key for name, key in MEMORY_COUNTERS.items()}, unreadable)
        pinned = getattr(module, "host_memory_stats", None)
        if callable(pinned):
            take(values, pinned(), PINNED_COUNTERS, unreadable)
        return values


def take(
    values: MutableMapping[str, int],
    statistics: Mapping[str, Any],
    keys: Mapping[str, str],
    unreadable: MutableMapping[str, str],
) -> None:
    """Add the counters under `keys` to `values`. A statistic that is no whole number goes to `unreadable`."""
    for name, key in keys.items():
        counter = statistics.get(key, 0) if isinstance(statistics, Mapping) else statistics
        if isinstance(counter, int) and not isinstance(counter, bool):
            values[name] = counter
        else:
            unreadable.setdefault(name, f"the statistic {key} is {counter!r:.80}, not a whole number")


def brief(error: BaseException) -> str:
    """Return the type and the last sentence of an error: torch's own checks begin with a place in torch's source."""
    text = " ".join(str(error).split()).rpartition("please report a bug to PyTorch. ")[2]
    return f"{type(error).__name__}: {text[:200]}"


def accelerator_type(torch: ModuleType) -> str | None:
    """Return the type of the device that torch.accelerator serves; None without one."""
    current = torch.accelerator.current_accelerator()
    return None if current is None else str(current.type)


def has_entered(torch_type: str) -> bool:
    """Return whether `enter` has used devices of this type in this process."""
    return torch_type in _entered


def enter(torch_type: str, device_count: int, synchronize: Callable[[ModuleType, int], object], torch: Any) -> None:
    """Use each device of this process once, so that it allocates its permanent resources before the first case.

    Errors of a device are passed on.
    """
    _entered.add(torch_type)
    for index in range(device_count):
        torch.zeros(1, device=torch.device(torch_type, index))
        synchronize(torch, index)
    with contextlib.suppress(Exception):  # everything below is optional
        torch.accelerator.set_device_index(0)
        torch.accelerator.empty_cache()
        for index in range(device_count):
            torch.accelerator.reset_accumulated_memory_stats(index)
            torch.accelerator.reset_peak_memory_stats(index)
