"""Custom functions that several test modules share."""

from __future__ import annotations

from typing import Any

import torch


class Square(torch.autograd.Function):
    """`x * x`, with the gradient computed from the saved tensor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        result: torch.Tensor = 2 * x * gradients[0]
        return result


def square(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = Square.apply(x)  # type: ignore[no-untyped-call]
    return result


def apply(function: type[torch.autograd.Function], *inputs: Any) -> Any:
    """Return `function.apply(*inputs)`; torch's stub for `apply` is untyped."""
    return function.apply(*inputs)  # type: ignore[no-untyped-call]
