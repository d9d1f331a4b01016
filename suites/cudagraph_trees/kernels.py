"""A user-defined Triton kernel. Only the cases that use it import this module, so that others do not need Triton."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _add_kernel(x_pointer, y_pointer, out_pointer, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    places = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    total = tl.load(x_pointer + places, mask=inside) + tl.load(y_pointer + places, mask=inside)
    tl.store(out_pointer + places, total, mask=inside)


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    _add_kernel[(triton.cdiv(x.numel(), 64),)](x, y, out, x.numel(), BLOCK=64)
    return out
