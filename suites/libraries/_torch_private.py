"""Private names of torch: its products of 8-bit types, its gamma samples, and a switch of `flex_attention`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from suites.reaching import below, reach


def int_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the product of int8 matrices in int32."""
    found: torch.Tensor = reach("torch._int_mm")(a, b)
    return found


def scaled_mm(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, out: torch.dtype
) -> torch.Tensor:
    """Return the product of float8 matrices times their scales, in the type `out`."""
    found: torch.Tensor = reach("torch._scaled_mm")(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=out)
    return found


def standard_gamma(shape: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return samples of gamma distributions of these shapes and a rate of one."""
    found: torch.Tensor = reach("torch._standard_gamma")(shape, generator=generator)
    return found


def aten(name: str) -> Callable[..., Any]:
    """Return an overload of aten by its name, such as `_masked_softmax.default`; skip the case if torch has none."""
    found: Callable[..., Any] = below(torch.ops.aten, name)
    return found


@contextlib.contextmanager
def flex_attention_uncompiled() -> Iterator[None]:
    """Disable compilation by `flex_attention` in the block. Its advice to compile names this switch, for debugging."""
    module, name = reach("torch.nn.attention.flex_attention"), "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
    before = below(module, name)
    setattr(module, name, True)
    try:
        yield
    finally:
        setattr(module, name, before)
