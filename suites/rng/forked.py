"""A context that restores the global generators."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch


def forked(device: torch.device) -> AbstractContextManager[None]:
    """Return `fork_rng` for the CPU and for all devices of the device's kind."""
    if device.type == "cpu":
        return torch.random.fork_rng(devices=[])
    return torch.random.fork_rng(devices=range(torch.accelerator.device_count()), device_type=device.type)
