"""A kernel compiled from source text and used as a custom operator, registered once per process."""

from __future__ import annotations

import torch
from torch.library import custom_op

from . import _torch_private as private

ADDED = """
extern "C" __global__ void added(const float* a, const float* b, float* c, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) c[i] = a[i] + b[i];
}
"""


def shape(n: int, threads: int = 256) -> dict[str, tuple[int, int, int]]:
    """Return a one-dimensional grid with one thread per element."""
    return {"grid": (-(-n // threads), 1, 1), "block": (threads, 1, 1)}


@custom_op("harness_kernels::added", mutates_args=(), device_types="cuda")
def added(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the sum of two contiguous float tensors of the same shape."""
    result = torch.empty_like(a)
    private.compiled(ADDED, "added")(**shape(a.numel()), args=[a, b, result, a.numel()])
    return result


@added.register_fake
def _(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    assert a.shape == b.shape
    return torch.empty_like(a)
