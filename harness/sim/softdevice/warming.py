"""Initialises the software devices of a process before its first case. One-time memory then does not look like a leak.

The first use of a device starts the threads of all streams. Each thread then allocates some 35 KiB for the thread-local
state of torch's libraries. The first tensor makes the device's first segment.
"""

from __future__ import annotations

from typing import Any


def warm_up_devices(injections: str) -> None:
    """Run one piece of work on every visible device, then free memory and reset statistics.

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
