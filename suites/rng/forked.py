"""A block after which the global generators are what they were."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch


def forked(device: torch.device) -> AbstractContextManager[None]:
    """`fork_rng` of the host and of every device of that kind which the case was given."""
    if device.type == "cpu":
        return torch.random.fork_rng(devices=[])
    return torch.random.fork_rng(devices=range(torch.accelerator.device_count()), device_type=device.type)
