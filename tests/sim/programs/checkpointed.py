"""Activation checkpointing: less memory at the peak, and the same gradients, also with dropout."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint_sequential


def _step(layers: nn.Sequential, x: torch.Tensor, segments: int) -> tuple[int, list[torch.Tensor]]:
    layers.zero_grad()
    torch.cuda.reset_peak_memory_stats()
    torch.manual_seed(7)
    checkpoint_sequential(layers, segments, x, use_reentrant=False).sum().backward()
    gradients = [parameter.grad.clone() for parameter in layers.parameters() if parameter.grad is not None]
    return torch.cuda.max_memory_allocated(), gradients


def main() -> None:
    """Compare one segment with eight."""
    blocks = [nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Dropout(0.2)) for _ in range(8)]
    layers = nn.Sequential(*blocks).cuda()
    x = torch.randn(4096, 256, device="cuda", requires_grad=True)
    _step(layers, x, 1)
    whole, wanted = _step(layers, x, 1)
    peak, gradients = _step(layers, x, 8)
    assert peak < whole, (peak, whole)
    torch.testing.assert_close(gradients, wanted, rtol=1e-4, atol=1e-4)
    print("done")


if __name__ == "__main__":
    main()
