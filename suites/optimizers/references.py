"""The published formulas of each optimizer, for one number, in Python floats (float64).

Each class has the settings and the state of one weight; `step` takes the weight and its gradient and returns the new
weight. The classes follow the papers and torch's documented formulas, without regard to speed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol


class Reference(Protocol):
    """An optimizer of one weight."""

    def step(self, weight: float, gradient: float) -> float:
        """Return the weight after one more step."""


@dataclass
class Common:
    """The common settings, and the number of steps."""

    lr: float
    weight_decay: float = 0.0
    maximize: bool = False
    steps: int = field(default=0, init=False)

    def begin(self, weight: float, gradient: float) -> float:
        """Count the step, and return the gradient for descent including coupled weight decay."""
        self.steps += 1
        return (-gradient if self.maximize else gradient) + self.weight_decay * weight


@dataclass
class Sgd(Common):
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False
    buffer: float | None = field(default=None, init=False)

    def step(self, weight: float, gradient: float) -> float:
        g = self.begin(weight, gradient)
        if self.momentum:
            first = self.buffer is None
            self.buffer = g if first else self.momentum * (self.buffer or 0.0) + (1 - self.dampening) * g
            g = g + self.momentum * self.buffer if self.nesterov else self.buffer
        return weight - self.lr * g


@dataclass
class Moments(Common):
    """Keeps running means of the gradient and of its square."""

    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decoupled_weight_decay: bool = False
    first: float = field(default=0.0, init=False)
    second: float = field(default=0.0, init=False)

    def decayed(self, weight: float, gradient: float) -> tuple[float, float]:
        """Count the step, and return the weight after decoupled decay, if used, and the gradient."""
        if not self.decoupled_weight_decay:
            return weight, self.begin(weight, gradient)
        self.steps += 1
        return weight * (1 - self.lr * self.weight_decay), -gradient if self.maximize else gradient

    def remember(self, g: float) -> None:
        self.first = self.betas[0] * self.first + (1 - self.betas[0]) * g
        self.second = self.betas[1] * self.second + (1 - self.betas[1]) * g * g

    def correction(self, which: int) -> float:
        """Return the bias correction of a running mean that started at zero."""
        return 1 - self.betas[which] ** self.steps


@dataclass
class Adam(Moments):
    amsgrad: bool = False
    largest: float = field(default=0.0, init=False)

    def step(self, weight: float, gradient: float) -> float:
        weight, g = self.decayed(weight, gradient)
        self.remember(g)
        self.largest = max(self.largest, self.second)
        second = self.largest if self.amsgrad else self.second
        root = math.sqrt(second / self.correction(1)) + self.eps
        return weight - self.lr * self.first / self.correction(0) / root


@dataclass
class AdamW(Adam):
    weight_decay: float = 0.01
    decoupled_weight_decay: bool = True


@dataclass
class Adamax(Moments):
    largest: float = field(default=0.0, init=False)

    def step(self, weight: float, gradient: float) -> float:
        g = self.begin(weight, gradient)
        self.remember(g)
        self.largest = max(self.betas[1] * self.largest, abs(g) + self.eps)
        return weight - self.lr * self.first / (self.correction(0) * self.largest)


@dataclass
class NAdam(Moments):
    momentum_decay: float = 0.004
    product: float = field(default=1.0, init=False)

    def momentum(self, step: int) -> float:
        return self.betas[0] * (1 - 0.5 * 0.96 ** (step * self.momentum_decay))

    def step(self, weight: float, gradient: float) -> float:
        weight, g = self.decayed(weight, gradient)
        self.remember(g)
        now, after = self.momentum(self.steps), self.momentum(self.steps + 1)
        self.product *= now
        mean = after * self.first / (1 - self.product * after) + (1 - now) * g / (1 - self.product)
        return weight - self.lr * mean / (math.sqrt(self.second / self.correction(1)) + self.eps)


@dataclass
class RAdam(Moments):
    def step(self, weight: float, gradient: float) -> float:
        weight, g = self.decayed(weight, gradient)
        self.remember(g)
        mean = self.first / self.correction(0)
        longest = 2 / (1 - self.betas[1]) - 1
        length = longest - 2 * self.steps * self.betas[1] ** self.steps / self.correction(1)
        if length <= 5:
            return weight - self.lr * mean
        rectified = math.sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
        return weight - self.lr * mean * rectified * math.sqrt(self.correction(1)) / (math.sqrt(self.second) + self.eps)


@dataclass
class Adagrad(Common):
    lr_decay: float = 0.0
    initial_accumulator_value: float = 0.0
    eps: float = 1e-10
    total: float | None = field(default=None, init=False)

    def step(self, weight: float, gradient: float) -> float:
        g = self.begin(weight, gradient)
        before = self.initial_accumulator_value if self.total is None else self.total
        self.total = before + g * g
        rate = self.lr / (1 + (self.steps - 1) * self.lr_decay)
        return weight - rate * g / (math.sqrt(self.total) + self.eps)


@dataclass
class Adadelta(Common):
    rho: float = 0.9
    eps: float = 1e-6
    squares: float = field(default=0.0, init=False)
    updates: float = field(default=0.0, init=False)

    def step(self, weight: float, gradient: float) -> float:
        g = self.begin(weight, gradient)
        self.squares = self.rho * self.squares + (1 - self.rho) * g * g
        update = math.sqrt(self.updates + self.eps) / math.sqrt(self.squares + self.eps) * g
        self.updates = self.rho * self.updates + (1 - self.rho) * update * update
        return weight - self.lr * update


@dataclass
class RMSprop(Common):
    alpha: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0
    centered: bool = False
    squares: float = field(default=0.0, init=False)
    mean: float = field(default=0.0, init=False)
    buffer: float = field(default=0.0, init=False)

    def step(self, weight: float, gradient: float) -> float:
        g = self.begin(weight, gradient)
        self.squares = self.alpha * self.squares + (1 - self.alpha) * g * g
        self.mean = self.alpha * self.mean + (1 - self.alpha) * g
        spread = self.squares - self.mean**2 if self.centered else self.squares
        self.buffer = self.momentum * self.buffer + g / (math.sqrt(spread) + self.eps)
        return weight - self.lr * self.buffer


@dataclass
class Asgd(Common):
    lambd: float = 1e-4
    alpha: float = 0.75
    t0: float = 1e6
    average: float = field(default=0.0, init=False)

    def step(self, weight: float, gradient: float) -> float:
        g = self.begin(weight, gradient)
        rate = self.lr / (1 + self.lambd * self.lr * (self.steps - 1)) ** self.alpha
        share = 1 / max(1, self.steps - 1 - self.t0)
        weight = weight * (1 - self.lambd * rate) - rate * g
        self.average += (weight - self.average) * share
        return weight


@dataclass
class Rprop(Common):
    etas: tuple[float, float] = (0.5, 1.2)
    step_sizes: tuple[float, float] = (1e-6, 50.0)
    size: float | None = field(default=None, init=False)
    before: float = field(default=0.0, init=False)

    def step(self, weight: float, gradient: float) -> float:
        g = self.begin(weight, gradient)
        agree = g * self.before
        factor = self.etas[1] if agree > 0 else self.etas[0] if agree < 0 else 1.0
        size = (self.lr if self.size is None else self.size) * factor
        self.size = min(max(size, self.step_sizes[0]), self.step_sizes[1])
        self.before = 0.0 if agree < 0 else g
        return weight - self.size * ((self.before > 0) - (self.before < 0))
