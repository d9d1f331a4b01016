"""A compiled transformer: Inductor's code for the forward and backward pass computes what eager code does."""

from __future__ import annotations

import copy

import torch
from torch import nn


def main() -> None:
    """Compare one training step."""
    torch.manual_seed(0)
    eager = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True).cuda()
    model = copy.deepcopy(eager)
    compiled = torch.compile(model)
    x = torch.randn(4, 16, 32, device="cuda")
    for module in (eager, compiled):
        module(x).square().mean().backward()
    for one, other in zip(eager.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)
    print("done")


if __name__ == "__main__":
    main()
