"""Small training problems for the gradient scaler, and a plain model of its scale."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch

#: Constructors of optimizers with a fused variant, with settings under which a step changes every weight.
FUSED: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "SGD": torch.optim.SGD,
    "Adagrad": torch.optim.Adagrad,
}


@dataclass
class Scale:
    """The expected scale and count of finite steps, in Python floats."""

    value: float
    growth: float = 2.0
    backoff: float = 0.5
    interval: int = 2000
    good: int = 0

    def update(self, *, overflow: bool) -> None:
        """Apply one iteration: an overflow reduces the scale, and `interval` consecutive finite steps increase it."""
        if overflow:
            self.value, self.good = self.value * self.backoff, 0
            return
        self.good += 1
        if self.good == self.interval:
            self.value, self.good = self.value * self.growth, 0


def scales(first: Scale, overflows: Iterable[bool]) -> Iterator[tuple[float, int]]:
    """Yield the scale and the count after each iteration."""
    for overflow in overflows:
        first.update(overflow=overflow)
        yield first.value, first.good


def weight(device: torch.device, *shape: int) -> torch.Tensor:
    """Return a weight to train, filled with ones."""
    return torch.ones(shape or (4,), device=device, requires_grad=True)


def push(scaler: torch.amp.GradScaler, target: torch.Tensor, gradient: float | torch.Tensor) -> None:
    """Run a scaled backward pass that gives a weight this gradient after unscaling."""
    scaler.scale((target * gradient).sum()).backward()
