"""Sparse matrices: conversions between layouts, products and sums, exactly, on whole numbers.

NumPy computes the expected values from the dense matrix. Matrices have empty rows and columns, a full one, and numbers
of nonzero elements on both sides of a warp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from .oracle import Array, assert_equal, numbers, tensor, types

#: The software device has no sparse tensors, and on the simulated CUDA most of their operators need cuSPARSE.
pytestmark = [
    pytest.mark.requires(any=[{"silicon": True}, {"not_": {"accelerator": True}}]),
    pytest.mark.filterwarnings("ignore:Sparse"),
]

TYPE = types(torch.float32, torch.float64, torch.complex64)
SHAPES = [(1, 1), (5, 7), (33, 31), (64, 129), (257, 100)]
SHAPE = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "coo": lambda x: x.to_sparse(),
    "csr": lambda x: x.to_sparse_csr(),
    "csc": lambda x: x.to_sparse_csc(),
}
LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)
#: On the CPU, torch does not free the memory that MKL allocates for the sum or the product of two CSR matrices.
MKL_LEAKS = pytest.mark.keeps("MKL's result of two CSR matrices (pytorch/pytorch#109445)", host="8MiB")
PAIR = pytest.mark.parametrize("layout", ["coo", pytest.param("csr", marks=MKL_LEAKS)])


def thin(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> Array:
    """Return a matrix of few whole numbers, with an empty row and column and a full row."""
    found: Array = np.where(rng.random(shape) < 0.15, rng.integers(1, 8, shape), 0).astype(np.float64)
    if dtype.is_complex:
        found = found + 1j * np.where(found, rng.integers(-7, 8, shape), 0)
    found[-1] = rng.integers(1, 8, shape[1])
    found[:, 0] = 0
    if shape[0] > 1:
        found[0] = 0
    return found


def dense(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return rng.integers(-7, 8, shape).astype(np.float64)


@LAYOUT
@SHAPE
@TYPE
def test_conversions_keep_each_element(
    device: torch.device, rng: np.random.Generator, shape: tuple[int, int], layout: str, dtype: torch.dtype
) -> None:
    """A conversion to a sparse layout and back, or to another one, keeps each element and counts the nonzero ones."""
    a = thin(rng, shape, dtype)

    x = LAYOUTS[layout](tensor(a, dtype, device))

    assert x._nnz() == np.count_nonzero(a)
    assert_equal(x.to_dense(), a)
    for other in ("coo", "csr", "csc"):
        assert_equal(LAYOUTS[other](x).to_dense(), a)
    assert_equal(x.cpu().to_dense(), a)


@TYPE
def test_blocks_keep_each_element(device: torch.device, rng: np.random.Generator, dtype: torch.dtype) -> None:
    """Block layouts hold the nonzero blocks, and give the matrix back."""
    a = np.kron(thin(rng, (9, 7), torch.float32) > 0, np.ones((2, 4))) * dense(rng, (18, 28))
    x = tensor(a, dtype, device)

    assert_equal(x.to_sparse_bsr((2, 4)).to_dense(), a)
    assert_equal(x.to_sparse_bsc((2, 4)).to_dense(), a)


@TYPE
def test_indices_are_those_of_the_elements(device: torch.device, rng: np.random.Generator, dtype: torch.dtype) -> None:
    """COO indices are sorted by row, and those of CSR and CSC count the elements of each row or column."""
    a = thin(rng, (33, 31), dtype)
    rows, columns = np.nonzero(a)
    x = tensor(a, dtype, device)

    coo, csr, csc = x.to_sparse(), x.to_sparse_csr(), x.to_sparse_csc()

    assert coo.is_coalesced()
    assert_equal(coo.indices(), np.stack([rows, columns]))
    assert_equal(coo.values(), a[rows, columns])
    assert_equal(csr.crow_indices(), np.concatenate([[0], np.cumsum((a != 0).sum(1))]))
    assert_equal(csr.col_indices(), columns)
    assert_equal(csc.ccol_indices(), np.concatenate([[0], np.cumsum((a != 0).sum(0))]))
    assert_equal(csc.values(), a.T[np.nonzero(a.T)])


@pytest.mark.parametrize("count", [0, 1, 31, 33, 1000, 5000])
@TYPE
def test_coalesce_adds_equal_indices(
    device: torch.device, rng: np.random.Generator, count: int, dtype: torch.dtype
) -> None:
    """`coalesce` adds the values of equal indices, and sorts the rest."""
    places, values = rng.integers(0, 17, (2, count)), dense(rng, (count,))
    expected = np.zeros((17, 17))
    np.add.at(expected, tuple(places), values)

    x = torch.sparse_coo_tensor(
        torch.from_numpy(places).to(device), tensor(values, dtype, device), (17, 17), check_invariants=True
    )
    found = x.coalesce()

    assert_equal(x.to_dense(), expected)
    assert_equal(found.to_dense(), expected)
    assert found._nnz() == len(np.unique(places, axis=1).T)
    flat = numbers(found.indices())[0] * 17 + numbers(found.indices())[1]
    assert (np.diff(flat) > 0).all()


@LAYOUT
@SHAPE
@TYPE
def test_products_with_dense_matrices_are_exact(
    device: torch.device, rng: np.random.Generator, shape: tuple[int, int], layout: str, dtype: torch.dtype
) -> None:
    """Products of a sparse matrix with matrices and vectors, and scaled sums of them, equal those of the dense one."""
    a, b = thin(rng, shape, dtype), dense(rng, (shape[1], 5))
    x, y = LAYOUTS[layout](tensor(a, dtype, device)), tensor(b, dtype, device)

    assert_equal(x @ y, a @ b)
    assert_equal(x @ y.t().contiguous().t(), a @ b)
    if layout != "csc":
        assert_equal(torch.mv(x, y[:, 0]), a @ b[:, 0])
        c = dense(rng, (shape[0], 5))
        assert_equal(torch.addmm(tensor(c, dtype, device), x, y, beta=2, alpha=-3), 2 * c - 3 * (a @ b))
    if layout == "coo":
        assert_equal(torch.sparse.mm(x, y), a @ b)
        assert_equal(x.t() @ tensor(c, dtype, device), a.T @ c)


@PAIR
@SHAPE
@types(torch.float32, torch.float64)
def test_products_of_sparse_matrices_are_exact(
    device: torch.device, rng: np.random.Generator, shape: tuple[int, int], layout: str, dtype: torch.dtype
) -> None:
    """A product of two sparse matrices is sparse, and equals that of the dense ones."""
    a, b = thin(rng, shape, dtype), thin(rng, (shape[1], 29), dtype)

    found = LAYOUTS[layout](tensor(a, dtype, device)) @ LAYOUTS[layout](tensor(b, dtype, device))

    assert found.layout == (torch.sparse_coo if layout == "coo" else torch.sparse_csr)
    assert_equal(found.to_dense(), a @ b)


@PAIR
@TYPE
def test_sums_of_sparse_matrices(
    device: torch.device, rng: np.random.Generator, layout: str, dtype: torch.dtype
) -> None:
    """Sums, differences and scaled sums of matrices with different elements, and products with a number, are exact."""
    a, b = thin(rng, (33, 31), dtype), thin(rng, (33, 31), dtype)
    x, y = (LAYOUTS[layout](tensor(each, dtype, device)) for each in (a, b))

    assert_equal((x + y).to_dense(), a + b)
    assert_equal(torch.add(x, y, alpha=-2).to_dense(), a - 2 * b)
    assert_equal((x * 3).to_dense(), 3 * a)
    assert_equal((-x).to_dense(), -a)


@TYPE
def test_coo_arithmetic_and_reductions(device: torch.device, rng: np.random.Generator, dtype: torch.dtype) -> None:
    """Elementwise products, transposes, sums, concatenation and selection of COO are exact."""
    a, b = thin(rng, (33, 31), dtype), thin(rng, (33, 31), dtype)
    x, y = tensor(a, dtype, device).to_sparse(), tensor(b, dtype, device).to_sparse()

    assert_equal((x * y).to_dense(), a * b)
    assert_equal(x.t().to_dense(), a.T)
    assert_equal(torch.sparse.sum(x), np.asarray(a.sum()))
    assert_equal(torch.sparse.sum(x, dim=0).to_dense(), a.sum(0))
    assert_equal(torch.sparse.sum(x, dim=1).to_dense(), a.sum(1))
    assert_equal(torch.cat([x, y], dim=1).to_dense(), np.concatenate([a, b], 1))
    picked = torch.tensor([3, 32, 3, 0], device=device)
    assert_equal(x.index_select(0, picked).to_dense(), a[[3, 32, 3, 0]])
    kept = tensor(dense(rng, (33, 31)), dtype, device)
    assert_equal(kept.sparse_mask(x).to_dense(), np.where(a != 0, numbers(kept), 0))


@types(torch.float32, torch.float64)
def test_sparse_softmax_is_over_the_elements_present(
    device: torch.device, rng: np.random.Generator, dtype: torch.dtype
) -> None:
    """`torch.sparse.softmax` treats absent elements as minus infinity."""
    a = thin(rng, (20, 17), dtype)
    x = tensor(a, dtype, device).to_sparse()

    found = numbers(torch.sparse.softmax(x, dim=1).to_dense())

    raised = np.where(a != 0, np.exp(a), 0.0)
    sums = raised.sum(1, keepdims=True)
    expected = np.divide(raised, sums, out=np.zeros_like(raised), where=sums > 0)
    assert np.abs(found - expected).max() <= 40 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dims", [1, 2])
@TYPE
def test_hybrid_tensors_keep_dense_rows(
    device: torch.device, rng: np.random.Generator, dims: int, dtype: torch.dtype
) -> None:
    """A tensor that is sparse in its first dimensions only keeps the dense rest of each element."""
    a = dense(rng, (9, 5, 4)) * (rng.random((9, 5, 1) if dims == 2 else (9, 1, 1)) < 0.4)
    x = tensor(a, dtype, device).to_sparse(dims)

    assert (x.sparse_dim(), x.dense_dim()) == (dims, 3 - dims)
    assert_equal(x.to_dense(), a)
    assert_equal((x + x).coalesce().to_dense(), 2 * a)


@types(torch.float32, torch.float64)
def test_gradient_of_a_sparse_product(device: torch.device, rng: np.random.Generator, dtype: torch.dtype) -> None:
    """The gradient of a sparse factor has only its elements, and that of a dense factor is full."""
    a, b, g = thin(rng, (12, 9), dtype), dense(rng, (9, 4)), dense(rng, (12, 4))
    x: Any = tensor(a, dtype, device).to_sparse().requires_grad_()
    y = tensor(b, dtype, device).requires_grad_()

    torch.sparse.mm(x, y).backward(tensor(g, dtype, device))

    assert y.grad is not None
    assert_equal(y.grad, a.T @ g)
    assert_equal(x.grad.to_dense(), np.where(a != 0, g @ b.T, 0))


@pytest.mark.requires(silicon=True, free_memory=">=4GiB")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse_product_of_a_full_size(device: torch.device, rng: np.random.Generator, layout: str) -> None:
    """A matrix of 200,003 rows and four million elements times 64 columns is exact."""
    rows, columns, count = 200_003, 150_001, 4_000_000
    places = np.stack([rng.integers(0, rows, count), rng.integers(0, columns, count)])
    values, b = dense(rng, (count,)), dense(rng, (columns, 64))
    expected = np.zeros((rows, 64))
    np.add.at(expected, places[0], values[:, None] * b[places[1]])
    x: Any = torch.sparse_coo_tensor(
        torch.from_numpy(places).to(device), tensor(values, torch.float32, device), (rows, columns)
    )
    x = x.coalesce()

    found = (x if layout == "coo" else x.to_sparse_csr()) @ tensor(b, torch.float32, device)

    assert_equal(found, expected)
