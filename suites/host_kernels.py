"""The devices that compute with the CPU's kernels: known errors of those kernels occur on these devices too."""

from __future__ import annotations

import os

import torch

#: The harness sets it to "1" for devices that are registered as such.
VARIABLE = "HARNESS_HOST_KERNELS"


def has_host_kernels(device: torch.device) -> bool:
    """Return whether a device is the CPU, or is registered as one that computes with the CPU's kernels."""
    return device.type == "cpu" or os.environ.get(VARIABLE) == "1"
