"""The undocumented torch names that this suite uses. No other module of the suite looks one up.

A case that needs a name that the torch release lacks is skipped, with the name in the reason.
"""

from __future__ import annotations

from typing import Any

import torch

from suites.reaching import reach


def nvml_handle(device: torch.device) -> Any:
    """The handle with which torch queries NVML about a device."""
    return reach("torch.cuda._get_pynvml_handler")(device)


def amdsmi_handle(device: torch.device) -> Any:
    """The handle with which torch queries AMD SMI about a device."""
    return reach("torch.cuda._get_amdsmi_handler")(device)


def raw_amdsmi(name: str) -> Any:
    """What torch reads from AMD SMI before initialization: `name` is "device_count" or "device_uuid"."""
    return reach(f"torch.cuda._raw_{name}_amdsmi")()
