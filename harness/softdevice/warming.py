"""Initialises the software devices of a process before its first case, so that one-time memory looks like no leak.

A device starts all its threads at its first use. Each thread allocates some 35 KiB with malloc for the thread-local
state of torch's libraries at its first piece of work. Without the warm-up, a case that uses streams in turn would seem
to leak until all threads of the device have been used.
"""

from __future__ import annotations

from typing import Any

_STREAMS = range(65)  # the default stream, 32 of normal priority, 32 of high


def warm(injections: str) -> None:
    """Run one piece of work on every stream of every visible device, then free memory and reset statistics.

    No faults are injected meanwhile. The faults of `injections` (syntax of `harness.softdevice.faults`) are injected
    afterwards, so their random sequences start at the beginning.
    """
    import torch

    soft: Any = torch.soft  # type: ignore[attr-defined]
    soft.inject("")
    for index in range(soft.device_count()):
        device = torch.device("soft", index)
        scratch = torch.empty(1, device=device)
        kind = soft.default_stream(index).device_type
        for number in _STREAMS:
            with torch.Stream(stream_id=number, device_index=index, device_type=kind):
                scratch.fill_(0)
        soft.synchronize(index)
        del scratch
    torch.accelerator.set_device_index(0)
    torch.accelerator.empty_cache()
    for index in range(soft.device_count()):
        torch.accelerator.reset_accumulated_memory_stats(index)
        torch.accelerator.reset_peak_memory_stats(index)
    soft.inject(injections)
