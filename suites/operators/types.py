"""The groups of types: one case tests all types of its group that the operator supports on the device."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from suites.host_kernels import has_host_kernels

#: The types of each group, by their names in torch.
GROUPS = {
    "float": ("float32", "float64"),
    "half": ("bfloat16", "float16"),
    "complex": ("complex64", "complex128", "complex32"),
    "int": ("int64", "int32", "uint8", "int8", "int16", "bool"),
    "unsigned": ("uint16", "uint32", "uint64"),
    "float8": ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
}
#: Types that are declared for the CPU, but that oneDNN refuses if it computes the operator (seen with AVX-512).
_REFUSED = {"torch._scaled_mm": ("float8_e4m3fnuz", "float8_e5m2fnuz")}


#: Operators for whose results or steps torch uses float64, whatever the arguments are.
_IN_FLOAT64 = frozenset(
    (
        *("float_power", "double", "cdouble", "bincount", "renorm", "nn.functional.batch_norm"),
        *("pinverse", "linalg.pinv", "linalg.pinv.singular", "linalg.pinv.hermitian"),
        *("linalg.matrix_rank", "linalg.matrix_rank.hermitian", "linalg.lstsq", "linalg.lstsq.grad_oriented"),
    )
)


def lacking() -> frozenset[torch.dtype]:
    """Return the types that the device lacks according to its hardware file. The harness names them in a variable."""
    names = os.environ.get("HARNESS_WITHOUT_TYPES", "").split(",")
    return frozenset(getattr(torch, name) for name in names if hasattr(torch, name))


def skip_if_lacking(name: str) -> None:
    """Skip the case if torch uses float64 for the operator, and the device lacks it."""
    if name in _IN_FLOAT64 and torch.float64 in lacking():
        pytest.skip(f"torch takes float64 for {name}, and the device has no float64")


def declared(info: Any, kind: str) -> set[torch.dtype]:
    """Return the types that an operator declares for a kind of device. Unknown kinds are treated like the CPU."""
    return set(info.supported_dtypes("cuda" if kind == "cuda" else "cpu"))


def supported(info: Any, device: torch.device) -> set[torch.dtype]:
    """Return the types that an operator supports on a device: on a simulated GPU, those that the CPU supports too."""
    found = declared(info, device.type) - lacking()
    if not has_host_kernels(device):
        return found
    return found & declared(info, "cpu") - {getattr(torch, name, None) for name in _REFUSED.get(info.name, ())}


def types_of(info: Any, group: str, device: torch.device) -> list[torch.dtype]:
    """Return the types of a group that the operator supports on the device; skip the case if there are none."""
    known = supported(info, device)
    found = [getattr(torch, name) for name in GROUPS[group] if getattr(torch, name, None) in known]
    if not found:
        pytest.skip(f"torch declares no type of the group {group!r} for {info.name} on {device.type}")
    return found


def first_group(known: set[torch.dtype], name: str) -> str:
    """Return the first group with a type of `known`; skip the case if there is none."""
    for group, names in GROUPS.items():
        if any(getattr(torch, each, None) in known for each in names):
            return group
    pytest.skip(f"torch declares no type for {name} on this device")
