"""Layers to profile. Only their tensors matter, not their values."""

from __future__ import annotations

import torch
from torch import nn


class Gain(nn.Module):
    """Multiplies each feature by a learned factor: a module with a parameter that no torch layer holds."""

    def __init__(self, features: int, device: torch.device) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, features, device=device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the result. The input and the result are (batch, features)."""
        return x * self.gain


class LateLinear(nn.Module):
    """A linear layer that creates its parameters at the first call."""

    weight: nn.Parameter
    bias: nn.Parameter

    def __init__(self, features: int, results: int, device: torch.device) -> None:
        super().__init__()
        self.features, self.results, self.device = features, results, device

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the result, (batch, results). The input is (batch, features)."""
        if not self._parameters:
            self.weight = nn.Parameter(torch.full((self.results, self.features), 0.25, device=self.device))
            self.bias = nn.Parameter(torch.zeros(self.results, device=self.device))
        return nn.functional.linear(x, self.weight, self.bias)


def linear(features: int, results: int, device: torch.device, bias: bool = True) -> nn.Linear:
    """Return a torch linear layer on a device."""
    return nn.Linear(features, results, bias=bias, device=device)


def perceptron(device: torch.device) -> nn.Sequential:
    """Return two linear layers with bias and a custom one between them: three input features, one result."""
    return nn.Sequential(linear(3, 5, device), Gain(5, device), nn.Tanh(), linear(5, 1, device))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Run one training step, and return the loss. Gradients are cleared at its start, so they outlive it."""
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), target)
    loss.backward()
    optimizer.step()
    return loss
