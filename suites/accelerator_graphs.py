"""`torch.accelerator.Graph`, where torch has an implementation of it for the device.

A build of torch for CUDA can lack one (2.13 does): every `torch.accelerator.Graph()` then raises. Torch has no question
for it, so `served` tries to make one.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

_NOT_SERVED = "Graph is not supported on device type: cuda"


def served() -> bool:
    """Whether `torch.accelerator.Graph` exists and can be made for the accelerator."""
    make: Any = getattr(torch.accelerator, "Graph", None)
    if make is None:
        return False
    try:
        make()
    except RuntimeError as problem:
        if _NOT_SERVED not in str(problem):
            raise
        return False
    return True


def new(**options: Any) -> Any:
    """A graph without a capture. Skips the case where torch has no implementation for CUDA."""
    try:
        return torch.accelerator.Graph(**options)
    except RuntimeError as problem:
        if _NOT_SERVED not in str(problem):
            raise
        pytest.skip(f"torch {torch.__version__} has no torch.accelerator.Graph for cuda")
