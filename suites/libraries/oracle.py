"""NumPy arrays for comparison with tensors: exact whole numbers, error bounds, and the numbers of a tensor.

NumPy computes the expected values, in float64 or in Python's integers, with its own libraries. A wrong kernel of torch
can therefore not be on both sides of a comparison.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from ..bfloat16 import BF16_PRODUCTS

Array = np.ndarray[Any, Any]

#: Types of products, with the bits of their significand.
DIGITS = {
    torch.float64: 53,
    torch.float32: 24,
    torch.float16: 11,
    torch.bfloat16: 8,
    torch.complex64: 24,
    torch.complex128: 53,
}


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def types(*dtypes: torch.dtype) -> pytest.MarkDecorator:
    """Parametrize by `dtype`."""
    marked = [pytest.param(each, marks=BF16_PRODUCTS) if each == torch.bfloat16 else each for each in dtypes]
    return pytest.mark.parametrize("dtype", marked, ids=name)


def unit(dtype: torch.dtype) -> float:
    """Return the unit roundoff, the largest relative error of rounding to nearest."""
    return torch.finfo(dtype).eps / 2


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """Return the type in which libraries add products of a type: float32 for 16-bit types."""
    real = dtype.to_real()
    return torch.float32 if real.itemsize == 2 else real


def gamma(terms: float, roundoff: float) -> float:
    """Return the bound of a sum of products, relative to their magnitudes: k*u/(1 - k*u).

    Source: Higham, Accuracy and Stability, 3.1.
    """
    return terms * roundoff / (1 - terms * roundoff)


def allowance(dtype: torch.dtype, terms: float) -> float:
    """Return the bound of an entry relative to the sum of the magnitudes of its products.

    The products are added in the accumulator of the type, and the sum is rounded to the type. A further added term is
    one more rounding. A library may round a partial sum of a 16-bit type every 256 terms. A complex product takes two
    more real ones. NumPy's own sum, in float64, has the same bound in its type.
    """
    factor = 4 if dtype.is_complex else 1
    parts = 2 + terms // 256 if dtype.itemsize == 2 else 1
    return gamma(factor * terms + 2, unit(accumulator(dtype))) + parts * unit(dtype) + gamma(factor * terms, 2.0**-53)


def numbers(x: torch.Tensor) -> Array:
    """Return the elements of a tensor, exactly, as NumPy has them. bfloat16 becomes float32 by its bits."""
    x = x.detach().cpu().resolve_conj().resolve_neg()
    if x.dtype == torch.bfloat16:
        high: Array = x.contiguous().view(torch.int16).numpy().astype(np.uint16).astype(np.uint32) << 16
        return high.view(np.float32).astype(np.float64)
    found: Array = x.numpy()
    return found.astype(np.float64) if found.dtype in (np.float16, np.float32) else found


def tensor(values: Array, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return a tensor on the device with an array's numbers, rounded to the type."""
    return torch.from_numpy(np.array(values, order="C")).to(dtype).to(device)


def most(dtype: torch.dtype, terms: int, inputs: int = 127) -> int:
    """Return the largest m such that `terms` products of whole numbers up to m are exact in a type, in any order."""
    factor = 2 if dtype.is_complex else 1
    return min(math.isqrt(2 ** DIGITS[dtype] // (factor * max(terms, 1))), inputs)


def whole(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype, terms: int) -> Array:
    """Return whole numbers for which a sum of any `terms` products is exact in a type with enough digits.

    A type with too few digits gets ones and minus ones.
    """
    largest = most(dtype, terms)

    def drawn() -> Array:
        if not largest:
            return 2 * rng.integers(0, 2, shape, np.int8) - 1
        return rng.integers(-largest, largest + 1, shape, np.int16)

    found = np.empty(shape, np.complex128 if dtype.is_complex and largest else np.float64)
    found.real = drawn()
    if np.iscomplexobj(found):
        found.imag = drawn()
    return found


def factors(
    rng: np.random.Generator, left: tuple[int, ...], right: tuple[int, ...], dtype: torch.dtype
) -> tuple[Array, Array]:
    """Return arrays of whole numbers whose matrix product, with each partial sum in any order, is exact in a type.

    If a row has more ones than the type can add, its other elements are zero, at random places.
    """
    terms = left[-1]
    a, b = whole(rng, left, dtype, terms), whole(rng, right, dtype, terms)
    if not most(dtype, terms):
        # One random choice of places, rotated by a random distance in each row, since a sort per row would take
        # seconds.
        kept = rng.permutation(terms) < 2 ** DIGITS[dtype]
        turned = np.lib.stride_tricks.sliding_window_view(np.tile(kept, 2), terms)
        a *= turned[rng.integers(0, terms, left[:-1])]
    return a, b


def reals(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor on the host of normal numbers."""
    values: Array = rng.standard_normal(shape)
    if dtype.is_complex:
        values = values + 1j * rng.standard_normal(shape)
    return torch.from_numpy(values).to(dtype)


def assert_equal(found: torch.Tensor, expected: Array) -> None:
    """Check that each number is the expected one, and name the first wrong one."""
    values = numbers(found)
    assert values.shape == expected.shape
    wrong = np.argwhere(~(values == expected))
    assert not len(wrong), (
        f"{len(wrong)} of {values.size} differ, first {tuple(wrong[0])}: "
        f"{values[tuple(wrong[0])]!r}, expected {expected[tuple(wrong[0])]!r}"
    )


def assert_within(found: torch.Tensor, expected: Array, bound: Any) -> None:
    """Check that each number is within a bound of the expected one, and name the worst. NaN is within no bound."""
    values = numbers(found)
    assert values.shape == expected.shape
    off, allowed = np.abs(values - expected), np.broadcast_to(bound, expected.shape)
    wrong = ~(off <= allowed)
    if wrong.any():
        excess = np.where(np.isnan(off), np.inf, off / np.where(allowed > 0, allowed, 1e-300))
        worst = np.unravel_index(int(excess.argmax()), excess.shape)
        raise AssertionError(
            f"{int(wrong.sum())} of {values.size} exceed the bound, worst {tuple(map(int, worst))}: {values[worst]!r}, "
            f"expected {expected[worst]!r} within {allowed[worst]:.3g}"
        )
