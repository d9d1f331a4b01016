"""The undocumented torch names that this suite uses. No other module of the suite looks one up.

A case that needs a name that the torch release lacks is skipped, with the name in the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

from suites.reaching import reach


def get_device_index() -> Callable[..., int]:
    """Return the function with which torch.cuda parses its device arguments."""
    found: Callable[..., int] = reach("torch.cuda._utils._get_device_index")
    return found


def rocm_is_backward_pass() -> bool:
    """Return whether a build for ROCm considers the calling thread to be in a backward pass."""
    return bool(reach("torch._C._rocm_is_backward_pass")())


def check_capability() -> Callable[[], None]:
    """Return the function that warns, at the first use of CUDA, of devices for which the build has no code."""
    found: Callable[[], None] = reach("torch.cuda._check_capability")
    return found


def check_cubins() -> Callable[[], None]:
    """Return the function that warns, at the first use of CUDA, of major capabilities without code in the build."""
    found: Callable[[], None] = reach("torch.cuda._check_cubins")
    return found


def visible_devices() -> list[Any]:
    """Return the entries of CUDA_VISIBLE_DEVICES that count: numbers, or UUIDs."""
    return list(reach("torch.cuda._parse_visible_devices")())


def numbers_of(candidates: list[str], uuids: list[str]) -> list[int]:
    """Return the index in `uuids` of the device that each prefix in `candidates` selects."""
    return list(reach("torch.cuda._transform_uuid_to_ordinals")(candidates, uuids))


def nvml_count() -> int:
    """Return the number of devices according to NVML and CUDA_VISIBLE_DEVICES, or -1."""
    return int(reach("torch.cuda._device_count_nvml")())


def nvml_uuids() -> list[str]:
    """Return the UUIDs of all devices according to NVML."""
    found = reach("torch.cuda._raw_device_uuid_nvml")()
    assert found is not None, "NVML has no UUIDs"
    return list(found)


def nvml_index(device: Any) -> int:
    """Return NVML's number of a device."""
    return int(reach("torch.cuda._get_nvml_device_index")(device))


def device_guard(index: int) -> AbstractContextManager[None]:
    """Return the context with which compiled code selects a device."""
    found: AbstractContextManager[None] = reach("torch.cuda._DeviceGuard")(index)
    return found


def before_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch count devices as before the first use of CUDA, until `monkeypatch` is undone."""
    module = reach("torch.cuda")
    monkeypatch.setattr(module, "_initialized", False)
    count_anew(monkeypatch)


def count_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make torch forget the number of devices, until `monkeypatch` is undone."""
    reach("torch.cuda._cached_device_count")
    monkeypatch.setattr(reach("torch.cuda"), "_cached_device_count", None)


def runtime_counts(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Make the CUDA runtime report `number` devices, until `monkeypatch` is undone."""
    reach("torch._C._cuda_getDeviceCount")
    monkeypatch.setattr(torch._C, "_cuda_getDeviceCount", lambda: number)
