"""Products and convolutions of small integers, whose results floating-point types hold exactly.

No tolerance is needed, so a single wrong bit of a result is found: the sum of k products of integers up to 2 is an
integer up to 4 k, which float32 accumulates exactly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


def integers(shape: tuple[int, ...], seed: int, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return random integers from -2 to 2, the same on every device of a kind."""
    if device.type == "cpu":
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(-2, 3, shape, generator=generator).to(dtype)
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator, device=device).to(dtype)


def expected_product(a: torch.Tensor, b: torch.Tensor, out: torch.dtype) -> torch.Tensor:
    """Return the exact product of integers, rounded to `out`, on the device of `a`.

    The CPU computes a small product term by term, without a matrix product. The device computes a large one in float64,
    and the CPU checks some of its rows.
    """
    if a.numel() + b.numel() < 1 << 20:
        terms = a.cpu().to(torch.int64)[:, :, None] * b.cpu().to(torch.int64)[None]
        return terms.sum(1).to(out).to(a.device)
    exact = a.double() @ b.double()
    rows = torch.arange(0, a.shape[0], max(1, a.shape[0] // 8), device=a.device)
    assert torch.equal(exact[rows].cpu(), a[rows].cpu().double() @ b.cpu().double())
    return exact.to(out)


def expected_convolution(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return a 3 by 3 convolution with padding 1, computed by the CPU in float64 as a sum of nine shifted products."""
    height, width = x.shape[2:]
    padded = torch.zeros(*x.shape[:2], height + 2, width + 2, dtype=torch.float64)
    padded[:, :, 1:-1, 1:-1] = x.cpu()
    taps = weight.cpu().double()
    found = torch.zeros(x.shape[0], weight.shape[0], height, width, dtype=torch.float64)
    for row in range(3):
        for column in range(3):
            shifted = padded[:, :, row : row + height, column : column + width]
            found += torch.einsum("bchw,oc->bohw", shifted, taps[:, :, row, column])
    return found


@contextlib.contextmanager
def exact_sums(*, tf32: bool = False) -> Iterator[None]:
    """Make 16-bit products accumulate in full precision, and convolutions always use the same algorithm.

    `tf32`: float32 products round their operands to TF32, which also holds small integers.
    """
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction
    precision = matmul.fp32_precision
    matmul.allow_fp16_reduced_precision_reduction = matmul.allow_bf16_reduced_precision_reduction = False
    if tf32:
        matmul.fp32_precision = "tf32"
    try:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            yield
    finally:
        if tf32:
            matmul.fp32_precision = precision
        matmul.allow_fp16_reduced_precision_reduction, matmul.allow_bf16_reduced_precision_reduction = before
