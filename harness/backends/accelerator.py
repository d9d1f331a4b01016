"""Torch's functions for all devices: the defaults of `Backend`.

The device's own module (``torch.npu``) comes first: torch itself expects ``is_initialized``, ``device_count`` and
``manual_seed_all`` there (https://docs.pytorch.org/docs/stable/accelerator/index.html). ``torch.accelerator`` comes
next. If neither has a function, its result is unknown, which is no error: ``harness backend check`` reports what a run
then lacks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, MutableMapping
from types import ModuleType
from typing import Any, Protocol

#: The functions of `AcceleratorDefaults` that are defaults of `Backend`, under the same names.
OFFERED = (
    "is_initialized",
    "device_count",
    "synchronize",
    "seed",
    "empty_cache",
    "properties",
    "counters",
)
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


class AcceleratorDefaults:
    """Calls torch's functions for the devices of one type."""

    __slots__ = ("_synchronize", "_type")

    def __init__(self, torch_type: str) -> None:
        self._type = torch_type
        #: The way to synchronize, once one has worked.
        self._synchronize: Callable[[ModuleType, int], object] | None = None

    def is_initialized(self, torch: ModuleType) -> bool:
        """Return the answer of the device's module. If it has none, return whether `enter` has used the devices."""
        query = self._function(torch, "is_initialized")
        return bool(query()) if query is not None else self._type in _entered

    def device_count(self, torch: ModuleType) -> int:
        """Return how many devices this process sees."""
        query = self._function(torch, "device_count") or self._of_accelerator(torch, "device_count")
        return 0 if query is None else int(query())

    def synchronize(self, torch: ModuleType, index: int) -> None:
        """Wait for all work of a device.

        This uses the device's module, else torch.accelerator, else the current stream.

        Of the last two, the first one that works is kept, since the lack of the other is no sticky error.
        """
        if self._synchronize is not None:
            self._synchronize(torch, index)
            return
        if self._function(torch, "synchronize") is not None:
            self._by_module(torch, index)
            return
        errors: list[RuntimeError] = []
        for way in (self._by_accelerator, self._by_stream):
            try:
                way(torch, index)
            except (AttributeError, NotImplementedError, TypeError):
                continue
            except RuntimeError as error:
                errors.append(error)
            else:
                self._synchronize = way
                return
        if errors:
            raise errors[0]

    def _by_module(self, torch: ModuleType, index: int) -> None:
        getattr(torch, self._type).synchronize(index)

    def _by_accelerator(self, torch: ModuleType, index: int) -> None:
        torch.accelerator.synchronize(index)

    def _by_stream(self, torch: ModuleType, index: int) -> None:
        torch.accelerator.current_stream(index).synchronize()

    def seed(self, torch: ModuleType, seed: int) -> None:
        """Seed the generators of all devices. Does nothing for a module without ``manual_seed_all``."""
        if (reseed := self._function(torch, "manual_seed_all")) is not None:
            reseed(seed)

    def empty_cache(self, torch: ModuleType) -> None:
        """Return cached memory to the system. A device without a caching allocator has none."""
        query = self._function(torch, "empty_cache") or self._of_accelerator(torch, "empty_cache")
        if query is not None:
            with contextlib.suppress(RuntimeError):
                query()

    def properties(self, torch: ModuleType, index: int) -> Mapping[str, Any]:
        """Return name, UUID and memory in bytes, as far as torch knows them."""
        facts: dict[str, Any] = {}
        with contextlib.suppress(Exception):  # each is optional, and may raise anything for a device without it
            properties = getattr(torch, self._type).get_device_properties(index)
            facts = {
                name: getattr(properties, name)
                for name in ("name", "uuid", "total_memory")
                if hasattr(properties, name)
            }
        with contextlib.suppress(Exception):
            facts.setdefault("name", getattr(torch, self._type).get_device_name(index))
        with contextlib.suppress(Exception):
            facts.setdefault("total_memory", torch.accelerator.get_memory_info(index)[1])
        return facts

    def counters(self) -> DeviceCounters:
        return AcceleratorCounters(self._type, self.device_count)

    def _function(self, torch: ModuleType, name: str) -> Callable[..., Any] | None:
        """Return a function of the device's module; None if it lacks it."""
        function = getattr(getattr(torch, self._type, None), name, None)
        return function if callable(function) else None

    def _of_accelerator(self, torch: ModuleType, name: str) -> Callable[..., Any] | None:
        """Return a function of torch.accelerator, if that serves devices of this type."""
        return getattr(torch.accelerator, name, None) if accelerator_type(torch) == self._type else None


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
