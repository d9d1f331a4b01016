"""The provider of the software device; see `harness.sim.native.provider`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from harness.sim.native.provider import ProvidedDevice
from harness.sim.softdevice import build
from harness.sim.softdevice import registration as soft


def provide() -> ProvidedDevice:
    """Build the library unless the cache has it. Raise BuildError."""
    library = str(build.build_softdevice())
    return ProvidedDevice(library, {**build.describe_build(), "library": library})


def enter(library: str) -> None:
    """Load the library into this executor, and use every stream once."""
    from harness.sim.softdevice import loading

    loading.load_software_device(library)
    warm_up_devices(os.environ.get(soft.INJECT, ""))


def enter_inline(library: str) -> None:
    """Load the library into this process. Raise SoftdeviceLoadError."""
    from harness.sim.softdevice import loading

    loading.load_software_device(library)


def prepare(variables: Mapping[str, str]) -> None:
    """Do nothing: the software device needs no variables."""


def warm_up_devices(injections: str) -> None:
    """Run one piece of work on every visible device, then free memory and reset statistics.

    One-time memory then does not look like a leak of the first case: the first use of a device starts the threads of
    all streams, each of which allocates some 35 KiB for the thread-local state of torch's libraries, and the first
    tensor makes the device's first segment.

    No faults are injected meanwhile. The faults of `injections` (syntax of `harness.sim.native.faults`) are injected
    afterwards, so that their random sequences start at the beginning.
    """
    import torch

    soft: Any = torch.soft  # type: ignore[attr-defined]
    soft.inject("")
    for index in range(soft.device_count()):
        torch.zeros(1, device=torch.device("soft", index))
        soft.synchronize(index)
    torch.accelerator.set_device_index(0)
    torch.accelerator.empty_cache()
    for index in range(soft.device_count()):
        torch.accelerator.reset_accumulated_memory_stats(index)
        torch.accelerator.reset_peak_memory_stats(index)
    soft.inject(injections)
