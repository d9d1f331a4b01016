"""The names of torch, undocumented, that this suite depends on. Nothing else in the suite reaches for one.

A release that lacks a name makes the case *skipped*, with the name in the reason, not failed.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch


def nvml_handle(device: torch.device) -> Any:
    """The handle by which torch asks NVML about a device."""
    found: Any = getattr(torch.cuda, "_get_pynvml_handler", None)
    if found is None:
        pytest.skip(f"torch {torch.__version__} has no torch.cuda._get_pynvml_handler")
    return found(device)


def amdsmi_handle(device: torch.device) -> Any:
    """The handle by which torch asks AMD's library about a device."""
    found: Any = getattr(torch.cuda, "_get_amdsmi_handler", None)
    if found is None:
        pytest.skip(f"torch {torch.__version__} has no torch.cuda._get_amdsmi_handler")
    return found(device)


def raw_amdsmi(name: str) -> Any:
    """What torch learns from AMD's library before it initialises: `name` is "device_count" or "device_uuid"."""
    found: Any = getattr(torch.cuda, f"_raw_{name}_amdsmi", None)
    if found is None:
        pytest.skip(f"torch {torch.__version__} has no torch.cuda._raw_{name}_amdsmi")
    return found()
