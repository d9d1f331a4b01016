"""make_graphed_callables: a training loop on captured graphs learns what the eager loop does."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn


def _losses(model: nn.Module, layers: Callable[..., Any], batches: list[torch.Tensor]) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for batch in batches:
        loss = layers(batch).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Train both ways."""
    torch.manual_seed(0)
    eager = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4)).cuda()
    model = copy.deepcopy(eager)
    batches = [torch.randn(8, 16, device="cuda") for _ in range(10)]
    graphed = torch.cuda.make_graphed_callables(model, (torch.randn(8, 16, device="cuda"),))
    torch.testing.assert_close(_losses(model, graphed, batches), _losses(eager, eager, batches), rtol=1e-4, atol=1e-5)
    print("done")


if __name__ == "__main__":
    main()
