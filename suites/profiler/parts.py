"""An operator of `torch.library.custom_op` with two results and a gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch.library import custom_op


@custom_op("suites_profiler::parts", mutates_args=())
def parts(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sine and the cosine."""
    return x.sin(), x.cos()


@parts.register_fake
def _(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


def _save(ctx: Any, inputs: tuple[torch.Tensor], output: tuple[torch.Tensor, torch.Tensor]) -> None:  # noqa: ARG001
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, sine: torch.Tensor, cosine: torch.Tensor) -> torch.Tensor:
    (x,) = ctx.saved_tensors
    gradient: torch.Tensor = sine * x.cos() - cosine * x.sin()
    return gradient


parts.register_autograd(_backward, setup_context=_save)
