"""Custom operators for the cases about custom operators, defined once per process as an imported library would do.

Some break a rule on purpose; their names say which.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

LIBRARY = "conformance_autograd"


@custom_op(f"{LIBRARY}::scaled_sine", mutates_args=())
def scaled_sine(x: Tensor, factor: float) -> Tensor:
    return x.sin() * factor


@scaled_sine.register_fake
def _(x: Tensor, factor: float) -> Tensor:
    return torch.empty_like(x)


def _scaled_sine_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, ctx.factor = inputs
    ctx.save_for_backward(x)


def _scaled_sine_backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return gradient * ctx.saved_tensors[0].cos() * ctx.factor, None


scaled_sine.register_autograd(_scaled_sine_backward, setup_context=_scaled_sine_context)


@custom_op(f"{LIBRARY}::parts", mutates_args=())
def parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum, the elementwise squares and the index of the maximum."""
    return x.sum(), x * x, x.argmax()


@parts.register_fake
def _(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.new_empty(()), torch.empty_like(x), x.new_empty((), dtype=torch.int64)


def _parts_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(inputs[0])
    ctx.mark_non_differentiable(output[2])


def _parts_backward(ctx: Any, of_sum: Tensor, of_square: Tensor, _: Any) -> Tensor:
    (x,) = ctx.saved_tensors
    gradient: Tensor = of_sum.expand_as(x) + 2 * x * of_square
    return gradient


parts.register_autograd(_parts_backward, setup_context=_parts_context)


@custom_op(f"{LIBRARY}::weighted_sum", mutates_args=())
def weighted_sum(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    return torch.stack([one * weight for one, weight in zip(tensors, weights, strict=True)]).sum(0)


@weighted_sum.register_fake
def _(tensors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    return torch.empty_like(tensors[0])


def _weighted_sum_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.weights = inputs[1]


def _weighted_sum_backward(ctx: Any, gradient: Tensor) -> tuple[list[Tensor], None]:
    return [gradient * weight for weight in ctx.weights], None


weighted_sum.register_autograd(_weighted_sum_backward, setup_context=_weighted_sum_context)


@custom_op(f"{LIBRARY}::add_into", mutates_args={"target"})
def add_into(target: Tensor, x: Tensor) -> None:
    target.add_(x)


@custom_op(f"{LIBRARY}::without_formula", mutates_args=())
def without_formula(x: Tensor) -> Tensor:
    return x * 2


@without_formula.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@custom_op(f"{LIBRARY}::undeclared_change", mutates_args=())
def undeclared_change(x: Tensor) -> Tensor:
    x.add_(1)
    return x.clone()


@custom_op(f"{LIBRARY}::wrong_fake", mutates_args=())
def wrong_fake(x: Tensor) -> Tensor:
    return x.t().clone()


@wrong_fake.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@custom_op(f"{LIBRARY}::raising", mutates_args=())
def raising(x: Tensor, what: str) -> Tensor:
    return x.clone()


@raising.register_fake
def _(x: Tensor, what: str) -> Tensor:
    return torch.empty_like(x)


def _raising_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.what = inputs[1]


def _raising_backward(ctx: Any, gradient: Tensor) -> Any:
    if ctx.what == "too few":
        return gradient
    if ctx.what == "wrong shape":
        return gradient.new_ones(7), None
    raise ValueError(f"asked for: {ctx.what}")


raising.register_autograd(_raising_backward, setup_context=_raising_context)
