"""Products of 8-bit types: whole numbers (`torch._int_mm`) and float8 (`torch._scaled_mm`), exactly.

Float8 holds whole numbers up to 16 (e4m3) or 4 (e5m2), products are added in float32, and scales are powers of two.
Each result that the output type holds is therefore exact.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from ._torch_private import int_mm, scaled_mm
from .oracle import Array, assert_equal, assert_within, name, numbers, tensor

#: More than 16 rows, and multiples of 8, as the library for CUDA requires.
WHOLE = [(24, 8, 8), (32, 16, 16), (40, 72, 24), (136, 264, 120), (1024, 128, 512), (17, 1032, 8)]
#: Multiples of 16.
SHAPES = [(16, 16, 16), (48, 80, 32), (128, 272, 144), (33, 512, 16), (1, 2048, 48), (512, 128, 256)]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
PAIRS = [(left, right) for left in FLOAT8 for right in FLOAT8 if (left, right) != (torch.float8_e5m2,) * 2]
PAIR = pytest.mark.parametrize(("left", "right"), PAIRS, ids=[f"{name(a)}-{name(b)}" for a, b in PAIRS])
OUT = pytest.mark.parametrize("out", [torch.float32, torch.bfloat16, torch.float16], ids=name)
ON_CUDA = {"device": "cuda", "fp8": True, "silicon": True}
HAS_FP8 = pytest.mark.requires(any=[ON_CUDA, {"not_": {"device": "cuda"}}])
#: Row-wise scales on CUDA are for Hopper and later.
HAS_ROWS = pytest.mark.requires(any=[{**ON_CUDA, "compute_capability": ">=9.0"}, {"not_": {"device": "cuda"}}])


def by_size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


@pytest.mark.parametrize("shape", WHOLE, ids=by_size)
@pytest.mark.parametrize("layout", ["columns", "rows"])
def test_int_mm_is_exact(
    device: torch.device, rng: np.random.Generator, shape: tuple[int, int, int], layout: str
) -> None:
    """A product of int8 matrices is exact in int32, up to -128 times -128; the second matrix has either order."""
    rows, inner, columns = shape
    a, b = (rng.integers(-128, 128, each) for each in ((rows, inner), (inner, columns)))
    a[0], b[:, 0] = -128, -128
    x, y = tensor(a, torch.int8, device), tensor(b, torch.int8, device)

    found = int_mm(x, y if layout == "rows" else y.t().contiguous().t())

    assert found.dtype == torch.int32
    assert_equal(found, a @ b)


def sparse_ones(rng: np.random.Generator, shape: tuple[int, int], keep: int) -> Array:
    """Return ones and minus ones, `keep` in each row, and zeros."""
    signs = rng.choice([-1.0, 1.0], shape)
    return np.where(rng.random(shape).argsort(1) < keep, signs, 0.0)


def of_columns(values: Array, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the second factor in column-major order, as the library for CUDA requires."""
    return tensor(np.ascontiguousarray(values.T), torch.float32, device).to(dtype).t()


@HAS_FP8
@PAIR
@OUT
@pytest.mark.parametrize("shape", SHAPES, ids=by_size)
def test_scaled_mm_with_scales_of_tensors_is_exact(
    device: torch.device,
    rng: np.random.Generator,
    shape: tuple[int, int, int],
    left: torch.dtype,
    right: torch.dtype,
    out: torch.dtype,
) -> None:
    """`_scaled_mm` with one scale for each matrix gives the product times both scales.

    Sums are of at most 64 ones times numbers up to 4, so that the output holds each.
    """
    rows, inner, columns = shape
    a, b = sparse_ones(rng, (rows, inner), 64), rng.integers(-4, 5, (inner, columns)).astype(np.float64)
    x, y = tensor(a, torch.float32, device).to(left), of_columns(b, right, device)
    scales = [torch.tensor(scale, device=device) for scale in (0.5, 4.0)]

    found = scaled_mm(x, y, scales[0], scales[1], out)

    assert found.dtype == out
    assert_equal(found, 2 * (a @ b))


@HAS_ROWS
@pytest.mark.parametrize("shape", SHAPES, ids=by_size)
def test_scaled_mm_with_scales_of_rows_and_columns_is_exact(
    device: torch.device, rng: np.random.Generator, shape: tuple[int, int, int]
) -> None:
    """With a scale for each row and each column, entry (i, j) is scaled by the i-th and the j-th."""
    rows, inner, columns = shape
    a, b = sparse_ones(rng, (rows, inner), 64), rng.integers(-4, 5, (inner, columns)).astype(np.float64)
    x, y = (
        tensor(a, torch.float32, device).to(torch.float8_e4m3fn),
        of_columns(b, torch.float8_e4m3fn, device),
    )
    of_row, of_column = 2.0 ** rng.integers(-3, 4, (rows, 1)), 2.0 ** rng.integers(-3, 4, (1, columns))

    found = scaled_mm(
        x, y, tensor(of_row, torch.float32, device), tensor(of_column, torch.float32, device), torch.bfloat16
    )

    assert_equal(found, (a @ b) * of_row * of_column)


@HAS_FP8
@pytest.mark.parametrize("shape", SHAPES[1:4], ids=by_size)
def test_scaled_mm_of_reals_is_within_the_bound(
    device: torch.device, rng: np.random.Generator, shape: tuple[int, int, int]
) -> None:
    """A product of float8 numbers of all sizes is within the bound of its additions.

    Tensor cores before Blackwell add products of float8 with 14 bits, which `use_fast_accum=False` moves to float32
    every few steps (DeepSeek-V3, 3.3.2): 2^-13 for each of the sums between.
    """
    rows, inner, columns = shape
    a, b = rng.standard_normal((rows, inner)), rng.standard_normal((inner, columns))
    x, y = tensor(a, torch.float32, device).to(torch.float8_e4m3fn), of_columns(b, torch.float8_e4m3fn, device)
    one = torch.tensor(1.0, device=device)
    exact, other = numbers(x.cpu().to(torch.float32)), numbers(y.cpu().to(torch.float32))

    found = scaled_mm(x, y, one, one, torch.float32)

    roundoff = 2.0**-13 if device.type == "cuda" else 2.0**-23
    assert_within(found, exact @ other, (inner * 2.0**-23 + 8 * roundoff) * (np.abs(exact) @ np.abs(other)))
