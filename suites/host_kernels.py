"""Which devices compute with the CPU's kernels: what is known to be wrong there is wrong on them too."""

from __future__ import annotations

import torch


def has_host_kernels(device: torch.device) -> bool:
    """Return whether a device is the CPU, the software device or a simulated GPU, whose name says that it is one."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device).startswith("Simulated")
    return device.type in ("cpu", "soft")
