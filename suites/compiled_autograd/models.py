"""Small models for backward passes, and their gradients."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn


def network(device: torch.device) -> nn.Sequential:
    """Return two linear layers of size four, each followed by a ReLU."""
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU()).to(device)


def smooth(device: torch.device) -> nn.Sequential:
    """Return a linear layer followed by a sigmoid, so that no gradient is 0 by chance."""
    return nn.Sequential(nn.Linear(4, 4), nn.Sigmoid()).to(device)


def rows(number: int, device: torch.device) -> torch.Tensor:
    """Return random rows of four numbers, drawn on the host so that every device gets the same ones."""
    return torch.randn(number, 4).to(device)


def gradients(model: nn.Module) -> Iterator[torch.Tensor]:
    """Yield the gradients of all parameters. Each parameter must have one."""
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, f"{name} has no gradient"
        yield parameter.grad


def train(model: nn.Module, x: torch.Tensor) -> Iterator[torch.Tensor]:
    """Run a backward pass of the sum of `model(x)` and yield the gradients."""
    model(x).sum().backward()
    yield from gradients(model)
