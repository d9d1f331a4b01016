"""Small things to train with a gradient scaler, and a plain model of how its scale moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

#: Constructors of optimisers that have a fused form, with settings under which a step moves every weight.
FUSED: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "SGD": torch.optim.SGD,
    "Adagrad": torch.optim.Adagrad,
}


@dataclass
class Scale:
    """What a scaler's scale and its count of good steps should be, in Python's floats."""

    value: float
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    good: int = 0

    def update(self, *, overflow: bool) -> None:
        """One iteration: a scale with an overflow in it backs off, `interval` without one in a row let it grow."""
        if overflow:
            self.value, self.good = self.value * self.backoff, 0
            return
        self.good += 1
        if self.good == self.interval:
            self.value, self.good = self.value * self.growth, 0


def scales(first: Scale, overflows: Iterable[bool]) -> Iterator[tuple[float, int]]:
    """Scale and count after each iteration."""
    for overflow in overflows:
        first.update(overflow=overflow)
        yield first.value, first.good


def weight(device: torch.device, *shape: int) -> torch.Tensor:
    """A weight to train: ones."""
    return torch.ones(shape or (4,), device=device, requires_grad=True)


def push(scaler: torch.amp.GradScaler, target: torch.Tensor, gradient: float | torch.Tensor) -> None:
    """Give a weight a gradient by a scaled backward pass: what it comes to after unscaling."""
    scaler.scale((target * gradient).sum()).backward()
