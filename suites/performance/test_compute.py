"""Speed of matrix products of each type, of a convolution and of attention, with checks of their results.

A product of small integers of the same size has the exact result. The result that was timed is within the bounds of
rounding, and equals the first one bit by bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from .. import known_answers
from ..known_answers import expected_convolution, expected_product, integers
from ..sizes import SIZES
from ._torch_private import scaled_mm
from .measuring import Speed

pytestmark = [pytest.mark.serial, pytest.mark.parametrize("full", SIZES)]

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _scaled(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    one = torch.ones((), device=a.device)
    return scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)


#: For each product: its type, the type of its result, its full size, and the error of an entry of a product of standard
#: normal numbers, as a fraction of the square root of the number of terms.
PRODUCTS: dict[str, tuple[torch.dtype, torch.dtype, int, float]] = {
    "fp64": (torch.float64, torch.float64, 4096, 2.0**-40),
    "fp32": (torch.float32, torch.float32, 4096, 2.0**-12),
    "tf32": (torch.float32, torch.float32, 8192, 2.0**-7),
    "fp16": (torch.float16, torch.float16, 8192, 2.0**-7),
    "bf16": (torch.bfloat16, torch.bfloat16, 8192, 2.0**-5),
    "fp8": (torch.float8_e4m3fn, torch.bfloat16, 8192, 2.0**-4),
}
#: The capability that a real GPU needs for each type.
NEEDS = {"tf32": "tf32", "bf16": "bf16", "fp8": "fp8"}


@pytest.fixture
def exact_sums(request: pytest.FixtureRequest) -> Iterator[None]:
    with known_answers.exact_sums(tf32=request.node.callspec.params.get("kind") == "tf32"):
        yield


@pytest.mark.usefixtures("exact_sums")
@pytest.mark.types("float64")
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            kind,
            marks=pytest.mark.requires(any=[{"silicon": False}, {NEEDS[kind]: True}]) if kind in NEEDS else (),
        )
        for kind in PRODUCTS
    ],
)
def test_product(device: torch.device, speed: Speed, full: bool, kind: str) -> None:
    """Operations per second of a product of square matrices, whose result is correct."""
    dtype, out, size, error = PRODUCTS[kind]
    size = size if full else 64
    multiply: Product = _scaled if kind == "fp8" else torch.mm
    a, b = (integers((size, size), seed, device, dtype) for seed in (1, 2))
    assert torch.equal(multiply(a, b.t()), expected_product(a.to(_wide(a)), b.t().to(_wide(b)), out))

    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    first = multiply(a, b.t())
    exact = a.to(torch.float64) @ b.t().to(torch.float64)
    assert (first.double() - exact).abs().max() <= error * math.sqrt(size)
    del exact
    results: list[torch.Tensor] = []

    def work() -> None:
        results[:] = [multiply(a, b.t())]

    speed(f"product_{kind}", work, 2 * size**3)

    assert torch.equal(results[0], first)


def _wide(tensor: torch.Tensor) -> torch.dtype:
    """Return a type of the tensor's values in which the CPU and the device convert and compute everything."""
    return torch.float32 if tensor.dtype.itemsize == 1 else tensor.dtype


@pytest.mark.usefixtures("exact_sums")
@pytest.mark.requires(any=[{"silicon": False}, {"bf16": True}])
def test_convolution(device: torch.device, speed: Speed, full: bool) -> None:
    """Operations per second of a 3 by 3 convolution in bf16, channels last, whose result is correct."""
    batch, channels, size = (64, 256, 56) if full else (2, 8, 14)
    x = torch.randn(batch, channels, size, size, device=device).bfloat16().to(memory_format=torch.channels_last)
    weight = torch.randn(channels, channels, 3, 3, device=device).bfloat16().to(memory_format=torch.channels_last)
    results = [F.conv2d(x, weight, padding=1)]
    first = results[0].clone()
    some = slice(batch - 1, batch)
    exact = expected_convolution(x[some], weight)
    assert (first[some].cpu().double() - exact).abs().max() <= 2.0**-5 * math.sqrt(9 * channels)

    def work() -> None:
        results[:] = [F.conv2d(x, weight, padding=1)]

    speed("convolution_bf16", work, 2 * batch * size**2 * channels**2 * 9)

    assert torch.equal(results[0], first)


@pytest.mark.usefixtures("exact_sums")
@pytest.mark.requires(any=[{"silicon": False}, {"bf16": True}])
def test_attention(device: torch.device, speed: Speed, full: bool) -> None:
    """Operations per second of scaled dot product attention in bf16, whose result is correct for each head."""
    batch, heads, length, width = (8, 16, 4096, 128) if full else (2, 2, 32, 16)
    q, k, v = (torch.randn(batch, heads, length, width, device=device).bfloat16() for _ in range(3))
    results = [F.scaled_dot_product_attention(q, k, v)]
    first = results[0].clone()
    for sample in range(batch):
        weights = (q[sample].float() @ k[sample].float().mT / math.sqrt(width)).softmax(-1)
        exact = weights @ v[sample].float()
        assert (first[sample].float() - exact).abs().max() <= 2.0**-6 * exact.abs().max()
    del weights, exact

    def work() -> None:
        results[:] = [F.scaled_dot_product_attention(q, k, v)]

    speed("attention_bf16", work, 4 * batch * heads * length**2 * width)

    assert torch.equal(results[0], first)
