"""The undocumented torch names that this suite uses. No other module of the suite looks one up.

A case that needs a name that the torch release lacks is skipped, with the name in the reason.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from suites.reaching import reach


def nvml_handle(device: torch.device) -> Any:
    """Return the handle with which torch queries NVML for a device."""
    return reach("torch.cuda._get_pynvml_handler")(device)


def amdsmi_handle(device: torch.device) -> Any:
    """Return the handle with which torch queries AMD SMI for a device."""
    return reach("torch.cuda._get_amdsmi_handler")(device)


def raw_amdsmi(name: str) -> Any:
    """Return what torch reads from AMD SMI before initialization: `name` is "device_count" or "device_uuid"."""
    return reach(f"torch.cuda._raw_{name}_amdsmi")()


def replace_nvml(monkeypatch: pytest.MonkeyPatch, nvml: Any) -> None:
    """Make torch read from this object in place of pynvml. With None, pynvml cannot be imported."""
    module = reach("torch.cuda")
    if nvml is None:
        reach("torch.cuda._HAS_PYNVML")
        monkeypatch.setattr(module, "_HAS_PYNVML", False)
    else:
        reach("torch.cuda.pynvml")
        monkeypatch.setattr(module, "pynvml", nvml)


def recorder_name() -> str:
    """Return the profiler for which this thread records operators: NONE, NVTX, ITT, KINETO, …"""
    found: str = reach("torch._C._autograd._profiler_type")().name
    return found


def python_flag() -> bool:
    """Return whether torch's Python code, such as compiled functions, finds a profiler that is recording."""
    return bool(reach("torch.autograd.profiler._is_profiler_enabled"))
