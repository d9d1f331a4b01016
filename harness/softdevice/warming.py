"""Wakes the software devices of a process before its first case, so that what they take once is no case's growth.

A device starts all its threads when it is first used. Each takes some 35 KiB of malloc's for the thread-local state of
torch's libraries at its first piece of work, so that a case which takes streams in turn would seem to leak until all of
the device's threads have been used.
"""

from __future__ import annotations

from typing import Any

_STREAMS = range(65)  # the default stream, 32 of normal priority, 32 of high


def warm(injections: str) -> None:
    """Have every stream of every visible device run something, and leave no other trace of it.

    The devices are to have no faults meanwhile; those of `injections`, as `harness.softdevice.faults` writes them, are
    injected afterwards, from the beginning of their sequences.
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
