"""The devices that compute with the CPU's kernels: known errors of those kernels occur on these devices too."""

from __future__ import annotations

import os

import pytest
import torch

#: The harness sets it to "1" for devices that are registered as such.
VARIABLE = "HARNESS_HOST_KERNELS"

#: torch's `mse_loss` on the CPU warns about its own temporary result if it is called with `out`, as a device that falls
#: back to it does: `torch.ops.aten.mse_loss.out(x, y, 1, out=torch.empty(()))`.
MSE_LOSS_WARNS = pytest.mark.filterwarnings("ignore:An output with one or more elements was resized:UserWarning")


def has_host_kernels(device: torch.device) -> bool:
    """Return whether a device is the CPU, or is registered as one that computes with the CPU's kernels."""
    return device.type == "cpu" or os.environ.get(VARIABLE) == "1"
