"""Lengths at which kernels change their behavior (vector widths, blocks, tails), and the limits of dtypes."""

from __future__ import annotations

import torch

#: Lengths around vector widths, warps, blocks and splits between threads; odd lengths have tails.
LENGTHS = (1, 2, 7, 8, 9, 31, 33, 255, 1000, 4097, 70_001)

WHOLE_TYPES = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
FLOATING_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def ends(dtype: torch.dtype) -> tuple[float, float]:
    """Return the lowest and highest values of a dtype, which are infinities for floating-point dtypes."""
    if dtype.is_floating_point:
        return float("-inf"), float("inf")
    info = torch.iinfo(dtype)
    return info.min, info.max


def unit(dtype: torch.dtype) -> float:
    """Return the unit roundoff, the largest relative error of rounding to nearest."""
    return torch.finfo(dtype).eps / 2
