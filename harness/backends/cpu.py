"""The CPU. Every machine has it, and cases run on it if there is no other device."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from harness.backends.backend import Backend


class CpuBackend(Backend):
    """The CPU has no state of its own that could be initialised, seeded or counted."""

    def is_initialized(self, torch: ModuleType) -> bool:  # noqa: ARG002
        return False

    def device_count(self, torch: ModuleType) -> int:  # noqa: ARG002
        return 0

    def synchronize(self, torch: ModuleType, index: int) -> None:
        pass

    def seed(self, torch: ModuleType, seed: int) -> None:
        pass

    def empty_cache(self, torch: ModuleType) -> None:
        pass

    def properties(self, torch: ModuleType, index: int) -> Mapping[str, Any]:  # noqa: ARG002
        return {}

    def counters(self) -> None:
        return None


BACKEND = CpuBackend(
    kind="cpu",
    inventory="harness.devices.inventory:cpu_inventory",
    noun="the CPU",
    label="CPU",
    no_gpu="the device is the cpu",
    uuid_prefixes=("cpu",),
    hardware=False,
    implied={"devices": "==1", "device_count": "==1", "ranks": "==8"},
    ignored_meters=(),
)
