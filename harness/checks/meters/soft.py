"""What the software device has of this process: its memory, and the threads that are its own.

A device starts all its threads when it is first used, and keeps them: they are nobody's leftovers. Nothing here wakes
one.

Beside it malloc's heap and the address space tell nothing. Its allocators map their memory from the host's; and
libraries keep buffers for each thread that calls them (MKL 4.6 MiB at the first larger product of matrices), which each
of 65 threads makes some day, in an order that follows from the streams that the cases before have taken.
"""

from __future__ import annotations

import sys
from collections.abc import MutableMapping
from typing import Any

#: Where each counter of a device stands in what `torch.accelerator.memory_stats` returns.
_COUNTERS = {
    "soft_allocated": "allocated_bytes.all.current",
    "soft_active_blocks": "active.all.current",
    "soft_reserved": "reserved_bytes.all.current",
}
#: And each of pinned memory, in what `torch.soft.host_memory_stats` returns.
_PINNED_COUNTERS = {"pinned_bytes": "active_bytes.current", "pinned_reserved": "allocated_bytes.current"}
#: What is not read beside an awake device.
_SILENT = ("heap_bytes", "mapped_bytes")


def enter(values: MutableMapping[str, int], blind: MutableMapping[str, str]) -> None:
    """Add the counters of software devices to a reading, and take what is their own out of it; nothing while all sleep.

    What cannot be read goes to `blind`, with the reason.
    """
    torch: Any = sys.modules.get("torch")
    soft = getattr(torch, "soft", None)
    if soft is None or not soft.is_initialized():
        return
    try:
        counters: dict[str, int] = {}
        for index in range(soft.device_count()):
            statistics = torch.accelerator.memory_stats(index)  # of a device that sleeps there are none
            counters |= {f"{name}[{index}]": int(statistics.get(key, 0)) for name, key in _COUNTERS.items()}
        statistics = soft.host_memory_stats()
        counters |= {name: int(statistics[key]) for name, key in _PINNED_COUNTERS.items()}
        threads = int(soft.thread_count())
    except Exception as error:  # noqa: BLE001
        # A case may have put anything in the place of these.
        blind["soft"] = repr(error)
        return
    values["threads"] -= threads
    for name in _SILENT:
        values.pop(name, None)
    values.update(counters)
