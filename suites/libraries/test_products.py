"""Products of matrices and vectors, from matrices of one element to the tails of tiles.

Whole numbers are chosen such that each product and each partial sum is exact in the type, in any order of additions, so
that the result is exact: one flipped bit, one lost term or one wrong element fails the case. Real numbers reveal the
type of the computation: each entry is within the bound of rounding theory (`oracle.allowance`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from .oracle import (
    DIGITS,
    Array,
    allowance,
    assert_equal,
    assert_within,
    factors,
    most,
    numbers,
    reals,
    tensor,
    types,
    whole,
)

Shape = tuple[int, int, int]

#: Rows, inner size, columns: single elements, primes, one below and above powers of two, long and flat.
SHAPES: dict[str, list[Shape]] = {
    "single": [(1, 1, 1), (1, 257, 1), (257, 1, 127), (1, 64, 65)],
    "odd": [(7, 13, 11), (31, 33, 65), (2, 1021, 3), (5, 3, 509)],
    "tiles": [(64, 127, 63), (129, 128, 255), (16, 16, 16)],
}


def by_size(shape: Shape) -> str:
    return "x".join(map(str, shape))


TYPE = types(*DIGITS)


@dataclass(frozen=True, slots=True)
class Product:
    """A product of torch, the same in NumPy, and the shapes of its factors."""

    run: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    expect: Callable[[Array, Array], Array]
    left: Callable[[Shape], tuple[int, ...]]
    right: Callable[[Shape], tuple[int, ...]]


def _matrices(run: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], expect: Any = np.matmul) -> Product:
    return Product(run, expect, lambda s: (s[0], s[1]), lambda s: (s[1], s[2]))


def _batches(run: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], expect: Any = np.matmul) -> Product:
    return Product(run, expect, lambda s: (3, s[0], s[1]), lambda s: (3, s[1], s[2]))


def _vectors(run: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], expect: Any = np.dot) -> Product:
    return Product(run, expect, lambda s: (s[1],), lambda s: (s[1],))


PRODUCTS = {
    "mm": _matrices(torch.mm),
    "matmul": _matrices(torch.matmul),
    "linear": _matrices(lambda a, b: torch.nn.functional.linear(a, b.t())),
    "linear_bias": _matrices(
        lambda a, b: torch.nn.functional.linear(a, b.t(), b.new_full((b.shape[1],), 0) + 1), lambda a, b: a @ b + 1
    ),
    "addmm": _matrices(lambda a, b: torch.addmm(a.new_full((1, b.shape[1]), 1), a, b), lambda a, b: a @ b + 1),
    "einsum": _matrices(lambda a, b: torch.einsum("ik,kj->ji", a, b), lambda a, b: (a @ b).T),
    "tensordot": _matrices(lambda a, b: torch.tensordot(a, b, dims=1)),
    "multi_dot": _matrices(lambda a, b: torch.linalg.multi_dot([a, b])),
    "bmm": _batches(torch.bmm),
    "baddbmm": _batches(
        lambda a, b: torch.baddbmm(a.new_full((1, 1, b.shape[2]), 1), a, b), lambda a, b: np.matmul(a, b) + 1
    ),
    "matmul_broadcast": Product(torch.matmul, np.matmul, lambda s: (2, 1, s[0], s[1]), lambda s: (3, s[1], s[2])),
    "einsum_batched": _batches(
        lambda a, b: torch.einsum("bik,bkj->bij", a, b),
    ),
    "mv": Product(torch.mv, np.matmul, lambda s: (s[0], s[1]), lambda s: (s[1],)),
    "addmv": Product(
        lambda a, b: torch.addmv(a.new_full((1,), 1), a, b),
        lambda a, b: np.matmul(a, b) + 1,
        lambda s: (s[0], s[1]),
        lambda s: (s[1],),
    ),
    "vector_matrix": Product(torch.matmul, np.matmul, lambda s: (s[1],), lambda s: (s[1], s[2])),
    "dot": _vectors(torch.dot),
    "inner": _vectors(torch.inner),
    "vdot": _vectors(torch.vdot, np.vdot),
}
KIND = pytest.mark.parametrize("kind", PRODUCTS)


@KIND
@pytest.mark.parametrize("shapes", SHAPES)
@TYPE
def test_product_of_whole_numbers_is_exact(
    device: torch.device, rng: np.random.Generator, kind: str, shapes: str, dtype: torch.dtype
) -> None:
    """Each entry of a product is the exact sum of its products, if no rounding is needed."""
    product = PRODUCTS[kind]
    for shape in SHAPES[shapes]:
        a, b = factors(rng, product.left(shape), product.right(shape), dtype)
        if "bias" in kind or "add" in kind:  # these add one, for which the type needs room
            a = a * (np.abs(a) < 2) if most(dtype, shape[1]) else a * (rng.random(a.shape) < 0.5)

        found = product.run(tensor(a, dtype, device), tensor(b, dtype, device))

        assert found.dtype == dtype
        assert_equal(found, np.asarray(product.expect(a, b)))


@KIND
@pytest.mark.parametrize("shape", [(5, 7, 3), (33, 129, 31)], ids=by_size)
@TYPE
def test_product_of_reals_is_within_the_bound(
    device: torch.device, rng: np.random.Generator, kind: str, shape: Shape, dtype: torch.dtype
) -> None:
    """Each entry of a product of normal numbers is within the bound of rounding theory for its type.

    A product computed in a narrower type exceeds the bound.
    """
    product = PRODUCTS[kind]
    a, b = reals(rng, product.left(shape), dtype), reals(rng, product.right(shape), dtype)

    found = product.run(a.to(device), b.to(device))

    sizes = np.asarray(product.expect(np.abs(numbers(a)), np.abs(numbers(b))))
    expected = np.asarray(product.expect(numbers(a), numbers(b)))
    assert_within(found, expected, allowance(dtype, shape[1] + 1) * sizes)


# ---- layouts ----


def _padded(x: torch.Tensor) -> torch.Tensor:
    """Return the same numbers with a leading dimension that is larger than the row, and odd."""
    around = x.new_full((*x.shape[:-1], x.shape[-1] + 3 + x.shape[-1] % 2), 77)
    around[..., : x.shape[-1]] = x
    return around[..., : x.shape[-1]]


def _turned(x: torch.Tensor) -> torch.Tensor:
    """Return the same numbers in column-major order."""
    return x.mT.contiguous().mT


def _shifted(x: torch.Tensor) -> torch.Tensor:
    """Return the same numbers, starting one element after an aligned address."""
    around = x.new_full((x.numel() + 1,), 77)
    around[1:] = x.flatten()
    return around[1:].view(x.shape)


def _spread(x: torch.Tensor) -> torch.Tensor:
    """Return the same numbers, with a gap after each, so that no dimension is dense."""
    around = x.new_full((*x.shape, 2), 77)
    around[..., 0] = x
    return around[..., 0]


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows": lambda x: x,
    "columns": _turned,
    "padded_rows": _padded,
    "padded_columns": lambda x: _padded(x.mT.contiguous()).mT,
    "shifted": _shifted,
    "spread": _spread,
    "reversed_twice": lambda x: x.flip(-1).flip(-1),
}
LAYOUT_TYPES = types(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64)


@pytest.mark.parametrize("left", LAYOUTS)
@LAYOUT_TYPES
def test_mm_and_bmm_of_each_pair_of_layouts_are_exact(
    device: torch.device, rng: np.random.Generator, left: str, dtype: torch.dtype
) -> None:
    """Transposes, leading dimensions, alignments and gaps change no entry, in products of one matrix or a batch.

    The elements outside the factors are 77, so that reading them is visible.
    """
    a, b = factors(rng, (3, 19, 37), (3, 37, 23), dtype)
    x = LAYOUTS[left](tensor(a, dtype, device))
    for right in LAYOUTS.values():
        y = right(tensor(b, dtype, device))

        assert_equal(torch.bmm(x, y), a @ b)
        assert_equal(torch.mm(x[1], y[2]), a[1] @ b[2])
        assert_equal(torch.mv(x[1], y[1, :, 5]), a[1] @ b[1, :, 5])


@TYPE
def test_mm_of_conjugates_and_transposes(device: torch.device, rng: np.random.Generator, dtype: torch.dtype) -> None:
    """Products of adjoints, which libraries take as a flag, equal those of the conjugated transposes."""
    a, b = factors(rng, (17, 29), (29, 17), dtype)
    x, y = tensor(a, dtype, device), tensor(b, dtype, device)

    assert_equal(x.mH.mH @ y, a @ b)
    assert_equal(y.mH @ x.mH, (a @ b).conj().T)
    assert_equal(x.conj() @ y.conj(), (a @ b).conj())
    assert_equal((x @ y).mT, (a @ b).T)


@TYPE
def test_mm_out_writes_its_target_and_nothing_beside(
    device: torch.device, rng: np.random.Generator, dtype: torch.dtype
) -> None:
    """`out=` may be a part of a larger matrix, row-major or column-major: nothing else is written."""
    a, b = factors(rng, (31, 40), (40, 29), dtype)
    x, y = tensor(a, dtype, device), tensor(b, dtype, device)
    expected = np.full((37, 37), 5, (a @ b).dtype)
    expected[2:33, 3:32] = a @ b

    for turned in (False, True):
        around = torch.full((37, 37), 5, dtype=dtype, device=device)
        around = around.t() if turned else around
        torch.mm(x, y, out=around[2:33, 3:32])
        assert_equal(around, expected)


# ---- factors of the sum ----

FACTORS = [(1, 1), (0, 1), (1, 0), (2, -1), (-3, 2), (0, 0)]


@pytest.mark.parametrize(("beta", "alpha"), FACTORS, ids=[f"beta={beta},alpha={alpha}" for beta, alpha in FACTORS])
@TYPE
def test_addmm_and_baddbmm_scale_both_terms(
    device: torch.device, rng: np.random.Generator, beta: int, alpha: int, dtype: torch.dtype
) -> None:
    """`addmm`, `baddbmm`, `addbmm`, `addmv` and `addr` give beta * input + alpha * product, exactly."""
    a, b = whole(rng, (2, 9, 20), dtype, 800), whole(rng, (2, 20, 11), dtype, 800)
    a, b = np.clip(a.real, -1, 1), np.clip(b.real, -1, 1)
    c = np.round(a[:, :, :11] + 2)
    x, y, z = (tensor(each, dtype, device) for each in (a, b, c))
    scales = {"beta": beta, "alpha": alpha}

    assert_equal(torch.addmm(z[0], x[0], y[0], **scales), beta * c[0] + alpha * (a[0] @ b[0]))
    assert_equal(torch.baddbmm(z, x, y, **scales), beta * c + alpha * (a @ b))
    assert_equal(torch.addbmm(z[0], x, y, **scales), beta * c[0] + alpha * (a @ b).sum(0))
    assert_equal(torch.addmv(z[0, :, 0], x[0], y[0, :, 0], **scales), beta * c[0, :, 0] + alpha * (a[0] @ b[0, :, 0]))
    assert_equal(torch.addr(z[0], x[0, :, 0], y[0, 0], **scales), beta * c[0] + alpha * np.outer(a[0, :, 0], b[0, 0]))


@TYPE
def test_addmm_with_beta_zero_ignores_nan(device: torch.device, rng: np.random.Generator, dtype: torch.dtype) -> None:
    """With beta = 0, `addmm`, `baddbmm`, `addbmm`, `addmv` and `addr` ignore their input, also NaN and infinity in it.

    Source: the documentation of each.
    """
    a, b = factors(rng, (2, 9, 20), (2, 20, 11), dtype)
    x, y = tensor(a, dtype, device), tensor(b, dtype, device)
    for value in (float("nan"), float("inf")):
        z = torch.full((2, 9, 11), value, dtype=dtype, device=device)

        assert_equal(torch.addmm(z[0], x[0], y[0], beta=0), a[0] @ b[0])
        assert_equal(torch.baddbmm(z, x, y, beta=0), a @ b)
        assert_equal(torch.addbmm(z[0], x, y, beta=0), (a @ b).sum(0))
        assert_equal(torch.addmv(z[0, :, 0], x[0], y[0, :, 0], beta=0), a[0] @ b[0, :, 0])
        assert_equal(torch.addr(z[0], x[0, :, 0], y[0, 0], beta=0), np.outer(a[0, :, 0], b[0, 0]))


@TYPE
def test_products_of_no_terms_are_zero(device: torch.device, dtype: torch.dtype) -> None:
    """A product with an inner size of zero is zero, or the scaled input if one is added; without rows it is empty."""
    x, y = torch.empty(3, 0, dtype=dtype, device=device), torch.empty(0, 4, dtype=dtype, device=device)
    added = torch.full((3, 4), 3, dtype=dtype, device=device)

    assert_equal(x @ y, np.zeros((3, 4)))
    assert_equal(torch.bmm(x[None], y[None]), np.zeros((1, 3, 4)))
    assert_equal(torch.addmm(added, x, y, beta=2), np.full((3, 4), 6.0))
    assert_equal(torch.dot(x[0], y[:, 0]), np.zeros(()))
    assert (y @ x.new_empty(4, 5)).shape == (0, 5)


@types(torch.float64, torch.float32, torch.complex128)
def test_products_propagate_infinity_and_nan(device: torch.device, dtype: torch.dtype) -> None:
    """One NaN makes only its row NaN; infinity times zero is NaN, and times a positive number it is infinity."""
    x = torch.ones(5, 33, dtype=dtype, device=device)
    y = torch.ones(33, 3, dtype=dtype, device=device)
    x[1, 32] = float("nan")
    x[3, 0] = float("inf")
    y[0, 2] = 0

    found = numbers((x @ y).real)

    assert np.isnan(found[1]).all()
    assert np.isfinite(found[[0, 2, 4]]).all()
    if not dtype.is_complex:
        assert found[3, 0] == found[3, 1] == np.inf
    assert np.isnan(found[3, 2])


# ---- long sums ----


@pytest.mark.parametrize(
    "shape",
    [(16, 65_536, 16), (1, 262_147, 1), (3, 100_003, 5), (1, 65_537, 8)],
    ids=by_size,
)
@TYPE
def test_mm_of_long_sums_is_exact(
    device: torch.device, rng: np.random.Generator, shape: Shape, dtype: torch.dtype
) -> None:
    """Products with few entries of many terms, which libraries split along the sum, lose no part and add none twice."""
    rows, inner, columns = shape
    a, b = factors(rng, (rows, inner), (inner, columns), dtype)

    found = tensor(a, dtype, device) @ tensor(b, dtype, device)

    assert_equal(found, a @ b)


@pytest.mark.parametrize("size", [1_000_003, (1 << 20) + 1])
@types(torch.float64, torch.float32)
def test_dot_of_a_million_terms_is_exact(
    device: torch.device, rng: np.random.Generator, size: int, dtype: torch.dtype
) -> None:
    """A dot product of a million whole numbers is exact, wherever the library splits it."""
    a, b = (rng.integers(-3, 4, size).astype(np.float64) for _ in range(2))

    found = torch.dot(tensor(a, dtype, device), tensor(b, dtype, device))

    assert_equal(found, np.asarray(a @ b))


# ---- batches ----


@pytest.mark.parametrize("batch", [0, 1, 2, 63, 257, 1025])
@types(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64)
def test_bmm_of_many_matrices(device: torch.device, rng: np.random.Generator, batch: int, dtype: torch.dtype) -> None:
    """Each product of a batch is that of its own matrices, and an empty batch gives an empty result."""
    a, b = factors(rng, (batch, 5, 9), (batch, 9, 4), dtype)

    assert_equal(torch.bmm(tensor(a, dtype, device), tensor(b, dtype, device)), a @ b)


@types(torch.float64, torch.float32, torch.bfloat16)
def test_bmm_of_one_matrix_for_the_batch(device: torch.device, rng: np.random.Generator, dtype: torch.dtype) -> None:
    """A matrix that is expanded along the batch, with a stride of zero, is used for each product."""
    a, b = factors(rng, (7, 12, 33), (33, 6), dtype)
    x, y = tensor(a, dtype, device), tensor(b, dtype, device)

    assert_equal(torch.bmm(x, y.expand(7, 33, 6)), a @ b)
    assert_equal(torch.bmm(x[:1].expand(7, 12, 33), y.expand(7, 33, 6)), np.broadcast_to(a[0] @ b, (7, 12, 6)))


# ---- gradients ----


@pytest.mark.parametrize("kind", ["mm", "linear", "bmm", "mv", "dot", "einsum_batched", "matmul_broadcast"])
@types(torch.float64, torch.float32)
def test_gradients_of_products_are_exact(
    device: torch.device, rng: np.random.Generator, kind: str, dtype: torch.dtype
) -> None:
    """The gradients of sum(product * weights) are the products of the weights with the other factor.

    The expected gradient is a difference: the function is linear in each factor, so one step in each of some elements
    gives it exactly in whole numbers.
    """
    product, shape = PRODUCTS[kind], (4, 9, 5)
    a, b = (rng.integers(-9, 10, each(shape)).astype(np.float64) for each in (product.left, product.right))
    weights = rng.integers(-9, 10, np.shape(product.expect(a, b))).astype(np.float64)
    x, y = (tensor(each, dtype, device).requires_grad_() for each in (a, b))

    (product.run(x, y) * tensor(np.asarray(weights), dtype, device)).sum().backward()

    for leaf, values, at in ((x, a, 0), (y, b, 1)):
        assert leaf.grad is not None
        found = numbers(leaf.grad)
        for place in rng.permutation(values.size)[:20]:
            step = np.zeros_like(values)
            step.flat[place] = 1
            rise = product.expect(*((step, b) if at == 0 else (a, step)))
            assert found.flat[place] == (rise * weights).sum()


# ---- TF32 ----


@pytest.mark.requires(device="cuda", tf32=True)
@pytest.mark.parametrize("shape", [(64, 127, 63), (512, 512, 512)], ids=by_size)
def test_mm_with_tf32_of_small_whole_numbers_is_exact(
    device: torch.device, rng: np.random.Generator, shape: Shape
) -> None:
    """With TF32, whole numbers of up to ten bits are not rounded, so products are exact, as they are without it."""
    rows, inner, columns = shape
    a, b = factors(rng, (rows, inner), (inner, columns), torch.float32)
    x, y = tensor(a, torch.float32, device), tensor(b, torch.float32, device)

    for precision in ("ieee", "tf32"):
        torch.backends.cuda.matmul.fp32_precision = precision
        assert_equal(x @ y, a @ b)
        assert_equal(torch.bmm(x[None], y[None]), (a @ b)[None])
        assert_equal(torch.addmm(y.new_ones(columns), x, y), a @ b + 1)


@TYPE
def test_outer_kron_and_matrix_power_are_exact(
    device: torch.device, rng: np.random.Generator, dtype: torch.dtype
) -> None:
    """Products of other forms of whole numbers are exact too: `outer`, `kron`, `matrix_power`, `chain`, `bilinear`."""
    a, b = whole(rng, (6, 7), dtype, 64), whole(rng, (5, 3), dtype, 64)
    x, y = tensor(a, dtype, device), tensor(b, dtype, device)
    assert_equal(torch.outer(x[0], y[0]), np.outer(a[0], b[0]))
    assert_equal(torch.kron(x, y), np.kron(a, b))
    square = np.clip(a[:6, :6].real, -1, 1)
    if dtype.itemsize > 2:
        assert_equal(torch.linalg.matrix_power(tensor(square, dtype, device), 5), np.linalg.matrix_power(square, 5))
