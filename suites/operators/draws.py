"""Random numbers: types and shapes, ranges, and mean and variance of many draws within six standard deviations."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from .comparison import WrongValueError, on_host
from .references import formats
from .references.formats import Array

COUNT = 20_001


@dataclass(frozen=True, slots=True)
class Draw:
    """A distribution: how to draw `COUNT` numbers like a tensor, and their mean, variance, kurtosis bound and range."""

    draw: Callable[[torch.Tensor], torch.Tensor]
    mean: float
    variance: float
    low: float = -math.inf
    high: float = math.inf
    fourth: float = 10.0


def _ones(x: torch.Tensor) -> torch.Tensor:
    return torch.ones_like(x)


def _named(name: str, *arguments: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: getattr(x.clone(), name)(*arguments)


def _new(function: Callable[..., torch.Tensor], *arguments: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: function(*arguments, x.shape, dtype=x.dtype, device=x.device)


#: By operator. The numbers follow from the definition of the distribution.
DRAWS = {
    "uniform": Draw(_named("uniform_", 2, 5), 3.5, 0.75, 2, 5),
    "normal.in_place": Draw(_named("normal_", 1.5, 0.5), 1.5, 0.25),
    "normal": Draw(lambda x: torch.normal(x * 0 + 1.5, x * 0 + 0.5), 1.5, 0.25),
    "normal.number_mean": Draw(lambda x: torch.normal(1.5, x * 0 + 0.5), 1.5, 0.25),
    "exponential": Draw(_named("exponential_", 2.0), 0.5, 0.25, 0, fourth=20),
    "log_normal": Draw(_named("log_normal_", 0.0, 0.25), math.exp(0.03125),
    (math.exp(0.0625) - 1) * math.exp(0.0625), 0),
    "geometric": Draw(_named("geometric_", 0.4), 2.5, 0.6 / 0.16, 1, fourth=20),
    "cauchy": Draw(lambda x: x.clone().cauchy_(0.0, 1.0).atan() / math.pi + 0.5, 0.5, 1 / 12, 0, 1),
    "bernoulli": Draw(lambda x: torch.bernoulli(x * 0 + 0.3), 0.3, 0.21, 0, 1),
    "randn": Draw(_new(torch.randn), 0.0, 1.0),
    "randn_like": Draw(torch.randn_like, 0.0, 1.0),
    "rand_like": Draw(torch.rand_like, 0.5, 1 / 12, 0, 1),
    "randint": Draw(_new(torch.randint, 2, 12), 6.5, 8.25, 2, 11),
    "randint_like": Draw(lambda x: torch.randint_like(x, 2, 12), 6.5, 8.25, 2, 11),
    "multinomial": Draw(
        lambda x: torch.multinomial(x.flatten()[:3] * 0 + torch.tensor([1.0, 2.0, 1.0], device=x.device,
        dtype=x.dtype), COUNT, True),
        1.0, 0.5, 0, 2,
    ),
    "nn.functional.dropout": Draw(lambda x: F.dropout(_ones(x), 0.25), 1.0, 1 / 3, 0, 4 / 3),
    "nn.functional.dropout2d": Draw(lambda x: F.dropout2d(_ones(x)[None, :, None, None], 0.25), 1.0, 1 / 3, 0, 4 / 3),
    "nn.functional.dropout3d": Draw(lambda x: F.dropout3d(_ones(x)[None, :, None, None, None], 0.25), 1.0, 1 / 3, 0,
    4 / 3),
    "nn.functional.alpha_dropout": Draw(lambda x: F.alpha_dropout(torch.zeros_like(x), 0.25, training=True), 0.0,
    0.4359),
    "nn.functional.feature_alpha_dropout.with_train": Draw(
        lambda x: F.feature_alpha_dropout(torch.zeros_like(x)[None, :, None], 0.25, training=True), 0.0, 0.4359
    ),
    "nn.functional.rrelu": Draw(lambda x: F.rrelu(-_ones(x), 0.1, 0.5, training=True), -0.3, 0.16 / 12, -0.5, -0.1),
}  # fmt: skip


def verify(name: str, dtype: torch.dtype, device: torch.device) -> None:
    """Raise WrongValueError if the numbers that the operator draws have another distribution, or are drawn twice."""
    draw = DRAWS[name]
    like = torch.zeros(COUNT, dtype=dtype, device=device)
    found = formats.read(on_host(draw.draw(like))).reshape(-1)
    if dtype.is_complex:
        if name.startswith("randn"):
            _check(name, np.concatenate([found.real, found.imag]), draw, 0.5, dtype)
        return
    _check(name, found, draw, draw.variance, dtype)


def _check(name: str, found: Array, draw: Draw, variance: float, dtype: torch.dtype) -> None:
    slack = (
        4
        * formats.unit(dtype)
        * (
            1 + max(abs(each) for each in (draw.low, draw.high) if math.isfinite(each))
            if math.isfinite(draw.low) and math.isfinite(draw.high)
            else 1
        )
    )
    if not np.isfinite(found).all():
        raise WrongValueError(f"{name}: a number is not finite")
    found = found.astype(np.float64)
    if (found < draw.low - slack).any() or (found > draw.high + slack).any():
        raise WrongValueError(
            f"{name}: numbers from {found.min():.6g} to {found.max():.6g}, expected {draw.low} to {draw.high}"
        )
    count = len(found)
    spread = math.sqrt(variance / count)
    bias = 2 * formats.unit(dtype) * (abs(draw.mean) + math.sqrt(variance))
    if abs(found.mean() - draw.mean) > 6 * spread + bias:
        raise WrongValueError(f"{name}: mean {found.mean():.6g}, expected {draw.mean:.6g} ± {spread:.2g}")
    spread = variance * math.sqrt(draw.fourth / count)
    if abs(found.var() - variance) > 6 * spread + 4 * bias:
        raise WrongValueError(f"{name}: variance {found.var():.6g}, expected {variance:.6g} ± {spread:.2g}")
    if np.array_equal(found[: count // 2], found[count // 2 : count // 2 * 2]):
        raise WrongValueError(f"{name}: the numbers repeat")
