"""The groups of types: one case tries all types of its group that the operator supports on the device."""

from __future__ import annotations

from typing import Any

import pytest
import torch

#: The types of each group, by their names in torch.
GROUPS = {
    "float": ("float32", "float64"),
    "half": ("bfloat16", "float16"),
    "complex": ("complex64", "complex128", "complex32"),
    "int": ("int64", "int32", "uint8", "int8", "int16", "bool"),
    "unsigned": ("uint16", "uint32", "uint64"),
    "float8": ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
}


def supported(info: Any, kind: str) -> set[torch.dtype]:
    """Return the types that an operator declares for a kind of device. Unknown kinds are taken as the CPU."""
    return set(info.supported_dtypes("cuda" if kind == "cuda" else "cpu"))


def types_of(info: Any, group: str, device: torch.device) -> list[torch.dtype]:
    """Return the types of a group that the operator supports on the device; skips the case if there are none."""
    known = supported(info, device.type)
    found = [getattr(torch, name) for name in GROUPS[group] if getattr(torch, name, None) in known]
    if not found:
        pytest.skip(f"torch declares no type of the group {group!r} for {info.name} on {device.type}")
    return found
