"""A generator with a seed."""

from __future__ import annotations

import torch


def seeded(device: torch.device, seed: int) -> torch.Generator:
    return torch.Generator(device=device).manual_seed(seed)
