"""The devices that compute with the CPU's kernels: known errors of those kernels occur on these devices too."""

from __future__ import annotations

import torch


def has_host_kernels(device: torch.device) -> bool:
    """Return whether a device is the CPU, the software device or a simulated GPU, which is recognized by its name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device).startswith("Simulated")
    return device.type in ("cpu", "soft")
