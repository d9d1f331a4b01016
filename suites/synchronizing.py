"""Waits for the work of a device, which may be the CPU."""

from __future__ import annotations

import torch


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all of its work. The CPU needs no wait."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
