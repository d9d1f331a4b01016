"""Work with known answers: matrix products, convolutions and Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812

from ..known_answers import expected_convolution, expected_product, integers


@dataclass(frozen=True, slots=True)
class Work:
    """Work that can be repeated, and its result: `expected` is contiguous and not complex."""

    run: Callable[[], torch.Tensor]
    expected: torch.Tensor


def _product(dtype: torch.dtype) -> Callable[[torch.device, int, bool], Work]:
    def make(device: torch.device, seed: int, full: bool) -> Work:
        n, k, m = (8192, 8192, 8192) if full else (96, 64, 80)
        if full and dtype.itemsize >= 4:
            n, k, m = 4096, 4096, 4096
        a, b = integers((n, k), seed, device, dtype), integers((k, m), seed + 1, device, dtype)
        out = torch.empty(n, m, device=device, dtype=dtype)
        return Work(lambda: torch.mm(a, b, out=out), expected_product(a, b, dtype))

    return make


def _convolution(device: torch.device, seed: int, full: bool) -> Work:
    """Return a float32 convolution.

    Some algorithms round, so a part of one result is compared with float64; then results are compared by bits.
    """
    batch, channels, size = (32, 256, 56) if full else (2, 8, 14)
    x = integers((batch, channels, size, size), seed, device, torch.float32)
    weight = integers((channels, channels, 3, 3), seed + 1, device, torch.float32)
    first = F.conv2d(x, weight, padding=1)
    exact = expected_convolution(x[:1], weight[:8])
    assert (first[:1, :8].cpu().double() - exact).abs().max() < 0.01 * math.sqrt(9 * channels)
    return Work(lambda: F.conv2d(x, weight, padding=1), first.contiguous())


def _transform(device: torch.device, seed: int, full: bool) -> Work:
    """Return the transform of an impulse, a wave of known frequency.

    Later transforms are compared with the first by bits.
    """
    length, place = (1 << 24, 12_345) if full else (1 << 12, 123 + seed % 1000)
    x = torch.zeros(length, dtype=torch.complex64, device=device)
    x[place] = 1
    first = torch.fft.fft(x)
    turns = torch.arange(length, dtype=torch.int64).mul_(place).remainder_(length).double() / length
    exact = torch.polar(torch.ones(length, dtype=torch.float64), -2 * math.pi * turns)
    assert (first.cpu().to(torch.complex128) - exact).abs().max() < 1e-6 * math.log2(length)
    return Work(lambda: torch.view_as_real(torch.fft.fft(x)), torch.view_as_real(first).contiguous())


#: All work, by name.
WORKS: dict[str, Callable[[torch.device, int, bool], Work]] = {
    "product_fp64": _product(torch.float64),
    "product_fp32": _product(torch.float32),
    "product_fp16": _product(torch.float16),
    "product_bf16": _product(torch.bfloat16),
    "convolution": _convolution,
    "fft": _transform,
}
