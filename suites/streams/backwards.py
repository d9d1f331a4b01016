"""Autograd functions for backward passes over several streams.

A backward pass runs each function on the stream of its forward. The engine makes streams wait for each other where a
gradient passes from one to the next, and makes the caller's stream wait at the end. The cases put a sleep before the
work that the engine must order, so that a missing wait gives wrong values.
"""

from __future__ import annotations

from typing import Any

import torch

from .apis import Api
from .busy import sleep_on


class Late(torch.autograd.Function):
    """`x * factor`, whose backward sleeps on its stream before it multiplies.

    Each backward appends the id of its current stream to `seen`.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float, api: Api, seen: list[int]) -> torch.Tensor:
        ctx.factor, ctx.api, ctx.seen = factor, api, seen
        return x * factor

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        (gradient,) = gradients
        current = ctx.api.current_stream(gradient.device)
        ctx.seen.append(current.stream_id)
        sleep_on(current)
        return gradient * ctx.factor, None, None, None


def late(x: torch.Tensor, factor: float, api: Api, seen: list[int]) -> torch.Tensor:
    result: torch.Tensor = Late.apply(x, factor, api, seen)  # type: ignore[no-untyped-call]
    return result
