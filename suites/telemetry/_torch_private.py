"""The names of torch, undocumented, that this suite depends on. Nothing else in the suite reaches for one.

A release that lacks a name makes the case *skipped*, with the name in the reason, not failed.
"""

from __future__ import annotations

from typing import Any

import torch

from suites.reaching import reach


def nvml_handle(device: torch.device) -> Any:
    """The handle by which torch asks NVML about a device."""
    return reach("torch.cuda._get_pynvml_handler")(device)


def amdsmi_handle(device: torch.device) -> Any:
    """The handle by which torch asks AMD's library about a device."""
    return reach("torch.cuda._get_amdsmi_handler")(device)


def raw_amdsmi(name: str) -> Any:
    """What torch learns from AMD's library before it initialises: `name` is "device_count" or "device_uuid"."""
    return reach(f"torch.cuda._raw_{name}_amdsmi")()
