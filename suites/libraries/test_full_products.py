"""Products of sizes that fill a chip, checked by Freivalds' method.

A wrong product C of A and B differs from the right one in C r - A (B r) for a vector r. One wrong entry always gives a
difference, since no element of r is zero, and any wrong C gives one with a probability of at least one half for each
random r of ones and minus ones (R. Freivalds, 1977). Three vectors are used. The check costs three products of a matrix
and a vector, in NumPy.

The factors are whole numbers whose products are exact, so the comparison needs no tolerance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from .oracle import Array, factors, numbers, tensor, types

#: Sizes larger than one tile in each dimension, also around cache sizes, with tails.
HERE = [(301, 307, 311), (511, 64, 513), (1025, 333, 769), (384, 384, 384)]
#: Sizes that give each multiprocessor work, with and without tails.
FULL = [(4096, 4096, 4096), (8192, 8192, 8192), (4095, 4097, 8191), (16_411, 1031, 5003), (65_536, 128, 264)]
SIZES = [
    *HERE,
    *(pytest.param(each, marks=pytest.mark.requires(silicon=True, free_memory=">=6GiB")) for each in FULL),
]
SIZE = pytest.mark.parametrize("shape", SIZES, ids=lambda shape: "x".join(map(str, shape)))
TYPE = types(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64)

PRODUCTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "mm": torch.mm,
    "linear": lambda a, b: torch.nn.functional.linear(a, b.t().contiguous()),
    "bmm": lambda a, b: torch.bmm(a[None], b[None])[0],
    "addmm": lambda a, b: torch.addmm(a.new_zeros(b.shape[1]), a, b),
}


def assert_product(found: torch.Tensor, a: Array, b: Array, rng: np.random.Generator) -> None:
    """Check a product of whole numbers with three random vectors, and name the first wrong row."""
    r = rng.choice([-1.0, 1.0], (b.shape[-1], 3)) * np.array([1.0, 2.0, 3.0])
    off = numbers(found) @ r - a @ (b @ r)
    wrong = np.argwhere((off != 0).any(-1))
    assert not len(wrong), f"{len(wrong)} of {off.shape[-2]} rows are wrong, first {wrong[0].tolist()}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", PRODUCTS)
@SIZE
@TYPE
def test_product_of_a_full_size_has_no_wrong_entry(
    device: torch.device, rng: np.random.Generator, shape: tuple[int, int, int], kind: str, dtype: torch.dtype
) -> None:
    """Each entry of a product of whole numbers is exact, at sizes at which all parts of a chip take part."""
    rows, inner, columns = shape
    a, b = factors(rng, (rows, inner), (inner, columns), dtype)

    found = PRODUCTS[kind](tensor(a, dtype, device), tensor(b, dtype, device))

    assert found.shape == (rows, columns)
    assert_product(found, a, b, rng)


@pytest.mark.parametrize("transposed", ["left", "right", "both"])
@types(torch.float64, torch.float32, torch.bfloat16)
def test_mm_of_large_transposes_has_no_wrong_entry(
    device: torch.device, rng: np.random.Generator, transposed: str, dtype: torch.dtype
) -> None:
    """Each entry of a product of transposed factors, for which libraries have separate kernels, is exact."""
    a, b = factors(rng, (517, 331), (331, 401), dtype)
    x, y = tensor(a, dtype, device), tensor(b, dtype, device)
    if transposed != "right":
        x = x.t().contiguous().t()
    if transposed != "left":
        y = y.t().contiguous().t()

    assert_product(x @ y, a, b, rng)


@pytest.mark.requires(silicon=True, tf32=True, free_memory=">=6GiB")
@pytest.mark.parametrize("shape", FULL[:3], ids=lambda shape: "x".join(map(str, shape)))
def test_mm_with_tf32_of_a_full_size_has_no_wrong_entry(
    device: torch.device, rng: np.random.Generator, shape: tuple[int, int, int]
) -> None:
    """Each entry of a product with TF32 is exact, since its ten bits hold these whole numbers."""
    rows, inner, columns = shape
    a, b = factors(rng, (rows, inner), (inner, columns), torch.float32)
    torch.backends.cuda.matmul.fp32_precision = "tf32"

    assert_product(tensor(a, torch.float32, device) @ tensor(b, torch.float32, device), a, b, rng)


def test_freivalds_method_finds_one_wrong_entry(device: torch.device, rng: np.random.Generator) -> None:
    """Control: a product with one entry that is one too large is found, wherever the entry is."""
    a, b = factors(rng, (64, 32), (32, 48), torch.float32)
    for place in ((0, 0), (63, 47), (17, 31)):
        found: Any = tensor(a @ b, torch.float32, device)
        found[place] += 1
        with pytest.raises(AssertionError, match="1 of 64 rows are wrong"):
            assert_product(found, a, b, rng)
