"""Solvers of linear systems: residuals, and known solutions in whole numbers.

The residual of a backward stable solver is at most p(n)*u*||A||*||X|| (Higham, Accuracy and Stability, 9.3); the bound
here is 100*(n + 8)*u.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from .oracle import Array, assert_equal, assert_within, numbers, tensor, types
from .spectra import SIZES, assert_close, hermitian, of_shape, orthogonal, regular, rounding, values

TYPE = types(torch.float32, torch.float64, torch.complex64, torch.complex128)
EDGES: list[Any] = [*SIZES, *(pytest.param(size, marks=pytest.mark.requires(silicon=True)) for size in (511, 1024))]
SIZE = pytest.mark.parametrize("size", EDGES)


def assert_solves(a: Array, found: torch.Tensor, b: Array, bound: float) -> None:
    """Check the residual of the solution of a system, of one matrix or a batch."""
    x = numbers(found)
    off = np.linalg.norm(a @ x - b, axis=(-2, -1))
    allowed = bound * np.linalg.norm(a, axis=(-2, -1)) * np.linalg.norm(x, axis=(-2, -1))
    assert (off <= allowed).all(), f"the residual is {off.max():.3g}, beyond {allowed.max():.3g}"


@SIZE
@TYPE
def test_solve_and_inv_have_small_residuals(
    device: torch.device, rng: np.random.Generator, size: int, dtype: torch.dtype
) -> None:
    """`solve`, `lu_solve` and `inv` have small residuals.

    Systems have one or several right sides, on the left or the right, and `lu_solve` also solves adjoint systems.
    """
    a, b = regular(rng, size, dtype), rng.standard_normal((size, 3))
    x, y = tensor(a, dtype, device), tensor(b, dtype, device)
    bound = rounding(x, 100)

    assert_solves(a, torch.linalg.solve(x, y), b, bound)
    assert_solves(a, torch.linalg.solve(x, y[:, 0])[:, None], b[:, :1], bound)
    assert_solves(a.T, torch.linalg.solve(x, y.mT, left=False).mT, b, bound)
    packed, pivots = torch.linalg.lu_factor(x)
    assert_solves(a, torch.linalg.lu_solve(packed, pivots, y), b, bound)
    assert_solves(a.conj().T, torch.linalg.lu_solve(packed, pivots, y, adjoint=True), b, bound)
    assert_close(a @ numbers(torch.linalg.inv(x)), np.eye(size, dtype=a.dtype), bound, "A * inv(A)")


@TYPE
def test_solve_broadcasts_over_batches(device: torch.device, rng: np.random.Generator, dtype: torch.dtype) -> None:
    """`solve` broadcasts a batch of matrices with one right side, and vice versa; right sides may be empty."""
    a = np.stack([regular(rng, 9, dtype) for _ in range(4)])
    b = rng.standard_normal((9, 2))
    x, y = tensor(a, dtype, device), tensor(b, dtype, device)
    bound = rounding(x, 100)

    assert_solves(a, torch.linalg.solve(x, y), np.broadcast_to(b, (4, 9, 2)), bound)
    assert_solves(np.broadcast_to(a[0], (4, 9, 9)), torch.linalg.solve(x[0], y.expand(4, 9, 2)), b, bound)
    assert torch.linalg.solve(x, y[:, :0]).shape == (4, 9, 0)


def test_solve_of_a_singular_matrix_is_refused(device: torch.device) -> None:
    """`solve` and `inv` raise for a singular matrix; `solve_ex` and `inv_ex` return the number of the zero pivot."""
    x = torch.tensor([[1.0, 2.0, 0.0], [2.0, 4.0, 0.0], [0.0, 0.0, 1.0]], device=device)
    x[1] = 0

    assert torch.linalg.inv_ex(x).info.item() > 0
    assert torch.linalg.solve_ex(x, x.new_ones(3, 1)).info.item() > 0
    for run in (torch.linalg.inv, lambda given: torch.linalg.solve(given, given.new_ones(3, 1))):
        with pytest.raises(torch.linalg.LinAlgError, match="singular"):
            run(x)


@pytest.mark.parametrize("size", [1, 2, 7, 16, 33, 65, 129])
@pytest.mark.parametrize("upper", [False, True], ids=["lower", "upper"])
@TYPE
def test_solve_triangular_of_whole_numbers_is_exact(
    device: torch.device, rng: np.random.Generator, size: int, upper: bool, dtype: torch.dtype
) -> None:
    """Substitution with a unit diagonal and few entries beside it has whole solutions, without rounding.

    The other triangle and, with `unitriangular`, the diagonal are not read: both are NaN.
    """
    # Blocks may be inverted first. Only every other row has an entry beside the diagonal, so inverses are whole too.
    a = np.eye(size)
    for row in range(1, size, 2):
        a[row, row - 1 - 2 * int(rng.integers(0, (row + 1) // 2))] = rng.choice([-1.0, 1.0])
    a = a.T if upper else a
    x = rng.integers(-9, 10, (size, 4)).astype(np.float64)
    if dtype.is_complex:
        x = x + 1j * rng.integers(-9, 10, (size, 4))
    kept = np.triu(np.ones((size, size), bool)) if upper else np.tril(np.ones((size, size), bool))
    given = tensor(np.where(kept, a, np.nan), dtype, device)
    without = given.clone()
    without.diagonal().fill_(float("nan"))

    assert_equal(torch.linalg.solve_triangular(given, tensor(a @ x, dtype, device), upper=upper), x)
    assert_equal(
        torch.linalg.solve_triangular(without, tensor(a @ x, dtype, device), upper=upper, unitriangular=True), x
    )
    for matrix, unit in ((given, False), (without, True)):
        b = tensor(x.T @ a, dtype, device)
        found = torch.linalg.solve_triangular(matrix, b, upper=upper, left=False, unitriangular=unit)
        assert_equal(found, x.T)
    assert_equal(torch.linalg.solve_triangular(given.mT, tensor(a.T @ x, dtype, device), upper=not upper), x)


@pytest.mark.parametrize("size", [1, 5, 33, 70])
@TYPE
def test_cholesky_solve_has_a_small_residual(
    device: torch.device, rng: np.random.Generator, size: int, dtype: torch.dtype
) -> None:
    """`cholesky_solve` with the factor of either side has a small residual."""
    a, b = hermitian(rng, values(rng, size, low=0.5), dtype), rng.standard_normal((size, 3))
    x, y = tensor(a, dtype, device), tensor(b, dtype, device)
    bound = rounding(x, 100)

    assert_solves(a, torch.cholesky_solve(y, torch.linalg.cholesky(x)), b, bound)
    assert_solves(a, torch.cholesky_solve(y, torch.linalg.cholesky(x, upper=True), upper=True), b, bound)


#: `gelsy`, the default on the CPU, reads memory that torch does not initialize: see the case below.
DRIVERS = [
    "gels",
    *(pytest.param(each, marks=pytest.mark.requires(not_={"device": "cuda"})) for each in ("gelsd", "gelss")),
]


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize(
    "shape", [(5, 5), (20, 7), (7, 20), (65, 33), (3, 1)], ids=lambda shape: "x".join(map(str, shape))
)
@TYPE
def test_lstsq_gives_the_known_solution(
    device: torch.device, rng: np.random.Generator, shape: tuple[int, int], driver: str, dtype: torch.dtype
) -> None:
    """Each driver gives the least-squares solution of a matrix of full rank, the shortest one if several exist.

    The right side is A x plus a part that is orthogonal to the columns of A.
    """
    rows, columns = shape
    rank = min(shape)
    left, right = orthogonal(rng, rows, dtype), orthogonal(rng, columns, dtype)[:, :rank]
    a = (left[:, :rank] * values(rng, rank, low=0.5)) @ right.conj().T
    expected = right @ rng.standard_normal((rank, 2))
    b = a @ expected + left[:, rank:] @ rng.standard_normal((rows - rank, 2))

    found = torch.linalg.lstsq(tensor(a, dtype, device), tensor(b, dtype, device), driver=driver)

    bound = rounding(tensor(a, dtype, torch.device("cpu")), 1000)
    assert_within(found.solution, expected, bound * (np.abs(expected).max() + np.abs(b).max()))


@pytest.mark.xfail(
    torch.__version__ < (2, 15),
    reason="gelsy gets pivots of the matrix before (https://github.com/pytorch/pytorch/issues/187411)",
    raises=AssertionError,
    strict=False,
)
@pytest.mark.requires(not_={"device": "cuda"})
@types(torch.float32, torch.float64)
def test_lstsq_gelsy_finds_the_rank_of_each_matrix_of_a_batch(device: torch.device, dtype: torch.dtype) -> None:
    """The rank of a matrix does not depend on the matrix before it in the batch."""
    x = torch.zeros(2, 3, 3, dtype=dtype, device=device)
    x[0] = torch.eye(3)
    x[1, 0, 1] = x[1, 1, 2] = 1

    assert torch.linalg.lstsq(x, x.new_ones(2, 3, 1), driver="gelsy").rank.tolist() == [3, 2]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 16, 40])
@TYPE
def test_matrix_exp_of_known_matrices(
    device: torch.device, rng: np.random.Generator, size: int, dtype: torch.dtype
) -> None:
    """The exponential is that of the eigenvalues, one over a factorial for shifts, and a rotation for its generator."""
    spectrum = values(rng, size)
    q = orthogonal(rng, size, dtype)
    for scale in (1e-5, 1.0, 4.0):  # in float64, a norm near 0.01 takes eight terms: see below
        x = tensor((q * (spectrum * scale)) @ q.conj().T, dtype, device)
        expected = (q * np.exp(spectrum * scale)) @ q.conj().T
        # The exponential of a Hermitian matrix changes by its norm times the change of the matrix.
        assert_close(numbers(torch.linalg.matrix_exp(x)), expected, rounding(x, 200), f"exp({scale} A)")
    shift = np.eye(size, k=1)
    found = numbers(torch.linalg.matrix_exp(tensor(shift, dtype, device)))
    factorials = np.cumprod(np.maximum(np.arange(size), 1.0))
    wanted = sum(np.eye(size, k=place) / factorials[place] for place in range(size))
    assert np.abs(found - wanted).max() <= rounding(tensor(shift, dtype, device), 20)


@types(torch.float32, torch.float64)
def test_matrix_exp_of_a_turn_is_a_rotation(device: torch.device, dtype: torch.dtype) -> None:
    """The exponential of [[0, -t], [t, 0]] has the cosine and the sine of t, for a batch of t."""
    angles = np.array([0.0, 1e-3, 0.5, 1.0, 3.0, 10.0])
    a = np.zeros((6, 2, 2))
    a[:, 1, 0], a[:, 0, 1] = angles, -angles

    found = torch.linalg.matrix_exp(tensor(a, dtype, device))

    c, s = np.cos(angles), np.sin(angles)
    expected = np.stack([np.stack([c, -s], -1), np.stack([s, c], -1)], -2)
    assert_within(found, expected, rounding(found, 200))


@pytest.mark.xfail(
    torch.__version__ < (2, 15),
    reason="a wrong coefficient of the eight terms (https://github.com/pytorch/pytorch/issues/196592)",
    raises=AssertionError,
    strict=True,
)
@types(torch.float32, torch.float64)
def test_matrix_exp_by_eight_terms_is_a_rotation(device: torch.device, dtype: torch.dtype) -> None:
    """For one matrix with a norm for which eight terms of the series are enough, the exponential is also a rotation."""
    angle = numbers(torch.tensor(0.5 if dtype == torch.float32 else 0.04, dtype=dtype)).item()
    x = torch.tensor([[0.0, -angle], [angle, 0.0]], dtype=dtype, device=device)

    c, s = np.cos(angle), np.sin(angle)
    assert_within(torch.linalg.matrix_exp(x), np.array([[c, -s], [s, c]]), rounding(x, 20))


@TYPE
def test_tensorsolve_and_tensorinv(device: torch.device, rng: np.random.Generator, dtype: torch.dtype) -> None:
    """Systems whose unknowns have several dimensions are those of the flattened matrix."""
    a, b = regular(rng, 12, dtype), rng.standard_normal((3, 4))
    x = tensor(a.reshape(3, 4, 12), dtype, device)
    found = torch.linalg.tensorsolve(x, tensor(b, dtype, device))
    assert_solves(a, found.reshape(12, 1), b.reshape(12, 1), 1e3 * rounding(found[None]))
    inverse = torch.linalg.tensorinv(tensor(a.reshape(3, 4, 12), dtype, device), ind=2)
    assert_close(
        a @ numbers(inverse).reshape(12, 12), np.eye(12, dtype=a.dtype), 1e3 * rounding(found[None]), "A * inv"
    )
    assert_close(of_shape(rng, 2, 2, np.ones(2), dtype)[:0], np.zeros((0, 2)), 0, "nothing")
