"""The undocumented or release-dependent torch names that this suite uses. No other module of the suite looks one up.

A case that needs a name that the torch release lacks is skipped, with the name in the reason.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch


def empty_host_cache(device: torch.device) -> None:
    """Free the cached pinned memory that is not in use."""
    documented: Any = getattr(torch.accelerator, "empty_host_cache", None)
    older: Any = getattr(torch._C, "_host_emptyCache", None)
    if documented is not None:
        documented()
    elif older is not None and device.type == "cuda":
        older()
    else:
        pytest.skip(f"torch {torch.__version__} has no torch.accelerator.empty_host_cache")


def host_memory_stats(device: torch.device) -> dict[str, int]:
    """Return counters of pinned memory by name, such as active_bytes.current."""
    found: Any = getattr(torch.get_device_module(device), "host_memory_stats", None)
    if found is None:
        pytest.skip(f"torch {torch.__version__} has no torch.{device.type}.host_memory_stats")
    statistics = dict(found())
    if "active_bytes.current" not in statistics:
        pytest.skip(f"torch {torch.__version__} does not count active bytes of pinned memory")
    return statistics


def reset_host_memory_stats(device: torch.device, which: str) -> None:
    """Reset the counters: `which` is "peak" or "accumulated"."""
    name = f"reset_{which}_host_memory_stats"
    found: Any = getattr(torch.get_device_module(device), name, None)
    if found is None:
        pytest.skip(f"torch {torch.__version__} has no torch.{device.type}.{name}")
    found()
