"""Software devices: the project's own accelerator for torch, on the CPU (`harness.sim.softdevice`)."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from types import ModuleType
from typing import Any

from harness.backends.backend import Backend

MASK = "SOFT_VISIBLE_DEVICES"
COUNT = "SOFT_DEVICE_COUNT"
MEMORY = "SOFT_DEVICE_MEMORY"
INJECT = "SOFT_INJECT"

#: The key of each device counter in `torch.accelerator.memory_stats`.
_COUNTERS = {
    "device_allocated": "allocated_bytes.all.current",
    "device_active_blocks": "active.all.current",
    "device_reserved": "reserved_bytes.all.current",
}
#: The key of each counter of pinned memory in `torch.soft.host_memory_stats`.
_PINNED_COUNTERS = {"pinned_bytes": "active_bytes.current", "pinned_reserved": "allocated_bytes.current"}


class SoftCounters:
    """Reads the counters of the software devices' allocators."""

    def read(self, torch: ModuleType, unreadable: MutableMapping[str, str], *, full: bool) -> dict[str, int]:  # noqa: ARG002
        """Return the counters; see `DeviceCounters`. A device that is not initialised has no counters yet: they are
        0.
        """
        values: dict[str, int] = {}
        for index in range(_module(torch).device_count()):
            statistics = torch.accelerator.memory_stats(index)
            values |= {f"{name}[{index}]": int(statistics.get(key, 0)) for name, key in _COUNTERS.items()}
        pinned = _module(torch).host_memory_stats()
        return values | {name: int(pinned[key]) for name, key in _PINNED_COUNTERS.items()}


def _module(torch: ModuleType) -> Any:
    """Return ``torch.soft``; None if it is not loaded."""
    return getattr(torch, "soft", None)


def is_initialized(torch: ModuleType) -> bool:
    """Return whether this process uses software devices. Does not initialise any."""
    soft = _module(torch)
    return soft is not None and bool(soft.is_initialized())


def _failures(torch: ModuleType) -> Sequence[str]:
    soft = _module(torch)
    return [] if soft is None else [text for i in range(soft.device_count()) if (text := soft.failure(i))]


def _faults_struck(torch: ModuleType) -> Mapping[str, int]:
    soft = _module(torch)
    return {} if soft is None else dict(soft.faults_struck())


BACKEND = Backend(
    kind="soft",
    torch_type="soft",
    inventory="harness.sim.softdevice.machine:inventory",
    noun="the software device",
    label="soft (software device)",
    no_gpu="the device is a software device",
    uuid_prefixes=("SOFT-",),
    mask=MASK,
    variables=(COUNT, MEMORY),
    hardware=False,
    provider="harness.sim.softdevice.provider",
    faults="softdevice/csrc/faults.def",
    faults_variable=INJECT,
    implied={"accelerator": True, "accelerator_graphs": True},
    is_initialized=is_initialized,
    device_count=lambda torch: int(_module(torch).device_count()),
    synchronize=lambda torch, index: _module(torch).synchronize(index),
    failures=_failures,
    seed=lambda torch, seed: _module(torch).manual_seed_all(seed),
    empty_cache=lambda torch: torch.accelerator.empty_cache(),
    faults_struck=_faults_struck,
    counters=SoftCounters,
    # The first use of a device starts all threads, and they stay.
    own_threads=lambda torch: int(_module(torch).thread_count()),
    # The allocators of the device take their memory from the host. Libraries keep buffers for each thread that calls
    # them (MKL 4.6 MiB at the first larger matrix product). Each thread allocates its buffers at
    # some time, and chance decides which thread gets which work.
    ignored_meters=("heap_bytes", "mapped_bytes"),
)
