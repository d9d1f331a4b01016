"""Error bounds of products relative to float64: rounding theory's bound for each dtype, and for TF32 where enabled.

A sum of k products, in any order in a dtype with unit roundoff u, is within k*u/(1 - k*u) of the exact one, relative to
the sum of the products' magnitudes (Higham, Accuracy and Stability, 3.1). 16-bit inputs are exact in float32. They are
multiplied and added in float32, and rounded once at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest
import torch

from ..bfloat16 import BF16_PRODUCTS
from .lengths import FLOATING_TYPES, name, unit

PRODUCTS = [pytest.param(dtype, marks=BF16_PRODUCTS) if dtype == torch.bfloat16 else dtype for dtype in FLOATING_TYPES]
SHAPES = [(1, 1, 1), (5, 7, 3), (16, 16, 16), (24, 300, 8), (64, 1000, 48)]
#: Sizes larger than a tile in each dimension, and sizes that fill a chip. `suites/libraries` has larger ones.
LARGE = [
    (310, 33, 305),
    *(pytest.param(each, marks=pytest.mark.requires(silicon=True)) for each in ((1024, 1031, 1029), (129, 4097, 2047))),
]


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the product of matrices by elementwise multiplication and a sum, without a matrix product kernel."""
    return torch.stack([(row[:, None] * b).sum(0) for row in a])


def sizes(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the sums of the products' magnitudes."""
    return product(a.double().abs(), b.double().abs())


def bound(a: torch.Tensor, b: torch.Tensor, roundoff: float) -> torch.Tensor:
    k = a.shape[-1] * roundoff
    return k / (1 - k) * sizes(a, b)


@pytest.fixture
def exact_float32(device: torch.device) -> Iterator[None]:
    """Disable reduced precision on a GPU, so that float32 products use float32."""
    if device.type != "cuda":
        yield
        return
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    yield
    torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.usefixtures("exact_float32")
@pytest.mark.parametrize("dtype", PRODUCTS, ids=name)
@pytest.mark.parametrize("shape", [*SHAPES, *LARGE], ids=str)
def test_matmul_is_within_the_bound_of_its_dtype(
    device: torch.device, shape: tuple[int, int, int], dtype: torch.dtype
) -> None:
    """Each entry of a matrix product is within the bound of float32 (or float64) accumulation plus one rounding.

    Reduced-precision reductions of 16-bit dtypes, which cuBLAS may use, add one rounding for each of at most eight
    parts.
    """
    rows, inner, columns = shape
    a, b = torch.randn(rows, inner).to(dtype), torch.randn(inner, columns).to(dtype)
    # No wider dtype exists for float64, so it uses whole numbers, whose sums are exact.
    if dtype == torch.float64:
        a, b = (a * 100).round(), (b * 100).round()
    exact = product(a.double(), b.double()) if dtype != torch.float64 else product(a.long(), b.long()).double()

    found = (a.to(device) @ b.to(device)).cpu().double()

    if dtype == torch.float64:
        assert torch.equal(found, exact)
        return
    parts = 8 if dtype.itemsize == 2 else 0
    allowed = bound(a, b, unit(torch.float32)) + unit(dtype) * (exact.abs() + parts * sizes(a, b) / 8)
    assert ((found - exact).abs() <= allowed).all()


def entries(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the exact entries of a convolution, and the sums of the magnitudes of their products, with fractions."""
    windows = [column for each in torch.nn.functional.unfold(x, 3) for column in each.t().tolist()]
    kernels = weight.flatten(1).tolist()
    products = [[[Fraction(a) * Fraction(b) for a, b in zip(k, w, strict=True)] for w in windows] for k in kernels]
    exact = [[float(sum(entry)) for entry in row] for row in products]
    size = [[float(sum(map(abs, entry))) for entry in row] for row in products]
    shape = (weight.shape[0], x.shape[0], -1)
    both = (torch.tensor(rows, dtype=torch.float64).view(shape).transpose(0, 1) for rows in (exact, size))
    first, second = both
    return first, second


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=name)
def test_conv2d_is_within_the_bound_of_its_dtype(device: torch.device, dtype: torch.dtype) -> None:
    """Each entry of a convolution in float64, or in float32 with TF32 off, is within the bound for its 27 products.

    Transform or tiled algorithms in float32 may add a factor of 32. The expected values are exact sums, rounded once to
    float64.
    """
    x, weight = torch.randn(2, 3, 9, 9, dtype=dtype), torch.randn(4, 3, 3, 3, dtype=dtype)
    exact, size = entries(x, weight)

    if device.type == "cuda":
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False):
            found = torch.nn.functional.conv2d(x.to(device), weight.to(device))
    else:
        found = torch.nn.functional.conv2d(x.to(device), weight.to(device))

    factor = 32 if dtype == torch.float32 else 1
    allowed = factor * 27 * unit(dtype) * size + unit(torch.float64) * exact.abs()
    assert ((found.cpu().double().flatten(2) - exact).abs() <= allowed).all()


@pytest.mark.requires(device="cuda", tf32=True, silicon=True)
@pytest.mark.parametrize("shape", SHAPES[2:], ids=str)
def test_fp32_precision_tf32_matmul_has_ten_bit_inputs(device: torch.device, shape: tuple[int, int, int]) -> None:
    """With TF32, products are within 2^-9 of their magnitudes plus float32's bound, and an entry exceeds that bound.

    TF32 rounds or truncates each of the two inputs to ten mantissa bits, 2^-10 each. Without TF32, products are within
    float32's bound alone.
    """
    rows, inner, columns = (max(size, 64) for size in shape)
    a, b = torch.randn(rows, inner), torch.randn(inner, columns)
    exact = a.double() @ b.double()
    before = torch.backends.cuda.matmul.fp32_precision
    found = {}
    try:
        for precision in ("ieee", "tf32"):
            torch.backends.cuda.matmul.fp32_precision = precision
            found[precision] = (a.to(device) @ b.to(device)).cpu().double()
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    off = {precision: (result - exact).abs() for precision, result in found.items()}
    single = bound(a, b, unit(torch.float32))

    assert (off["ieee"] <= single).all()
    assert (off["tf32"] <= single + 2.0**-9 * 1.001 * sizes(a, b)).all()
    assert (off["tf32"] / sizes(a, b)).max() > 2.0**-18, "TF32 did not show"
    assert (off["tf32"].square().mean() > 16 * off["ieee"].square().mean()).item()


@pytest.mark.requires(device="cuda", tf32=True, cudnn=True, silicon=True)
def test_fp32_precision_tf32_conv2d_has_ten_bit_inputs(device: torch.device) -> None:
    """With TF32, a cuDNN convolution is within 2^-9 of its magnitudes plus float32's bound, with cuDNN's setting."""
    x, weight = torch.randn(4, 64, 16, 16), torch.randn(64, 64, 3, 3)
    windows = torch.nn.functional.unfold(x.double(), 3)
    kernel = weight.double().flatten(1)
    exact, size = kernel @ windows, kernel.abs() @ windows.abs()
    off = {}
    for allowed in (False, True):
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=allowed):
            found = torch.nn.functional.conv2d(x.to(device), weight.to(device))
        off[allowed] = (found.cpu().double().flatten(2) - exact).abs()

    # A transform algorithm in float32 may lose a factor of 32 on its bound for 576 products.
    single = 32 * 576 * unit(torch.float32) * size
    assert (off[False] <= single).all()
    assert (off[True] <= single + 2.0**-9 * 1.001 * size).all()
    assert off[True].square().mean() > 16 * off[False].square().mean()
