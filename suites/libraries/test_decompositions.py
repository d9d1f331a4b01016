"""Eigenvalues, singular values and factorizations: known spectra, residuals and orthogonality.

A backward stable algorithm gives the exact decomposition of a matrix that is off by p(n)*u*||A|| (Higham, Accuracy and
Stability; LAPACK Users' Guide, 4.7). The bound here is 10*(n + 8)*u*||A||. By Weyl's inequality, each eigenvalue of a
Hermitian matrix and each singular value is within it. The factors' product is within it of A, and the columns of
orthogonal factors are orthonormal within it. The matrices are generated in NumPy from their known spectra.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from .oracle import Array, assert_equal, assert_within, numbers, tensor, types
from .spectra import SIZES, assert_close, assert_unitary, hermitian, of_shape, orthogonal, regular, rounding, values

TYPE = types(torch.float32, torch.float64, torch.complex64, torch.complex128)
#: On a GPU, also sizes for which libraries have other algorithms.
EDGES: list[Any] = [
    *SIZES,
    *(pytest.param(size, marks=pytest.mark.requires(silicon=True)) for size in (512, 1025)),
]
SIZE = pytest.mark.parametrize("size", EDGES)
RECTANGLES: list[Any] = [
    *((1, 1), (1, 7), (7, 1), (5, 3), (3, 5), (33, 17), (17, 33), (64, 64), (100, 31)),
    *(pytest.param(each, marks=pytest.mark.requires(silicon=True)) for each in ((513, 129), (300, 1000))),
]
RECTANGLE = pytest.mark.parametrize("shape", RECTANGLES, ids=lambda shape: "x".join(map(str, shape)))


@SIZE
@TYPE
def test_eigh_and_eigvalsh_give_the_known_spectrum(
    device: torch.device, rng: np.random.Generator, size: int, dtype: torch.dtype
) -> None:
    """`eigh` gives increasing eigenvalues and orthonormal vectors, from either triangle; `eigvalsh` only the values."""
    spectrum = values(rng, size)
    a = hermitian(rng, spectrum, dtype)
    x = tensor(a, dtype, device)
    bound = rounding(x) * np.abs(spectrum).max()

    for uplo, kept in (("L", np.tril(a)), ("U", np.triu(a))):
        found, vectors = torch.linalg.eigh(tensor(kept, dtype, device), UPLO=uplo)
        assert_within(found, spectrum, bound)
        assert_unitary(vectors, "eigh")
        v = numbers(vectors)
        assert_close((v * numbers(found)) @ v.conj().T, a, rounding(x), "V * L * V^H")
    assert_within(torch.linalg.eigvalsh(x), spectrum, bound)


def matched(found: Array, expected: Array) -> Array:
    """Return the distance of each found number to the nearest expected one that is still unmatched."""
    left = list(expected)
    off = []
    for value in found:
        nearest = int(np.argmin(np.abs(np.array(left) - value)))
        off.append(abs(left.pop(nearest) - value))
    return np.array(off)


@SIZE
@TYPE
def test_eig_and_eigvals_give_the_known_spectrum(
    device: torch.device, rng: np.random.Generator, size: int, dtype: torch.dtype
) -> None:
    """`eig` of a normal matrix gives its known eigenvalues, real ones in pairs, with the residual A V = V L.

    The eigenvalues of a normal matrix move by no more than the matrix (Bauer and Fike).
    """
    if dtype.is_complex:
        spectrum = values(rng, size) * np.exp(1j * rng.uniform(0, 6, size))
        q = orthogonal(rng, size, dtype)
        a: Array = (q * spectrum) @ q.conj().T
    else:
        blocks, pairs = np.zeros((size, size)), size // 2
        for pair in range(pairs):
            r, angle = 1 + pair / pairs, rng.uniform(0.2, 3.0)
            c, s = r * np.cos(angle), r * np.sin(angle)
            blocks[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = [[c, -s], [s, c]]
        if size % 2:
            blocks[-1, -1] = 2.5
        q = orthogonal(rng, size, dtype)
        a = q @ blocks @ q.T
        diagonal, off = np.diag(blocks), np.array([blocks[2 * p + 1, 2 * p] for p in range(pairs)])
        spectrum = np.concatenate(
            [diagonal[: 2 * pairs : 2] + 1j * off, diagonal[: 2 * pairs : 2] - 1j * off, diagonal[2 * pairs :]]
        )
    x = tensor(a, dtype, device)

    found, vectors = torch.linalg.eig(x)
    alone = torch.linalg.eigvals(x)

    largest = np.abs(spectrum).max()
    assert found.dtype == vectors.dtype == dtype.to_complex()
    assert (matched(numbers(found), spectrum) <= rounding(x) * largest).all()
    assert (matched(numbers(alone), spectrum) <= rounding(x) * largest).all()
    v = numbers(vectors)
    assert (np.abs(np.linalg.norm(v, axis=0) - 1) <= rounding(x)).all()
    assert np.linalg.norm(a @ v - v * numbers(found)) <= rounding(x) * largest * size**0.5


@RECTANGLE
@TYPE
def test_svd_and_svdvals_give_the_known_values(
    device: torch.device, rng: np.random.Generator, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    """`svd` gives decreasing values and orthonormal factors, full or reduced; `svdvals` gives the same values."""
    rows, columns = shape
    rank = min(shape)
    spectrum = values(rng, rank, low=0.5)[::-1]
    a = of_shape(rng, rows, columns, spectrum, dtype)
    x = tensor(a, dtype, device)

    for full in (False, True):
        u, s, vh = torch.linalg.svd(x, full_matrices=full)
        assert u.shape == (rows, rows if full else rank)
        assert vh.shape == (columns if full else rank, columns)
        assert_within(s, spectrum, rounding(x) * spectrum[0])
        assert_unitary(u, "U")
        assert_unitary(vh.mH, "V")
        assert_close((numbers(u)[:, :rank] * numbers(s)) @ numbers(vh)[:rank], a, rounding(x), "U * S * V^H")
    assert_within(torch.linalg.svdvals(x), spectrum, rounding(x) * spectrum[0])


@pytest.mark.requires(device="cuda", silicon=True)
@pytest.mark.parametrize("driver", ["gesvd", "gesvdj", "gesvda"])
@types(torch.float32, torch.float64)
def test_svd_by_each_driver_of_cusolver(
    device: torch.device, rng: np.random.Generator, driver: str, dtype: torch.dtype
) -> None:
    """Each driver of cuSOLVER gives the known values, and the approximate one within the square root of the bound."""
    spectrum = values(rng, 40, low=0.5)[::-1]
    a = of_shape(rng, 90, 40, spectrum, dtype)
    x = tensor(a, dtype, device)

    u, s, vh = torch.linalg.svd(x, full_matrices=False, driver=driver)

    bound = rounding(x) if driver != "gesvda" else rounding(x) ** 0.5
    assert_within(s, spectrum, bound * spectrum[0])
    assert_close((numbers(u) * numbers(s)) @ numbers(vh), a, bound, "U * S * V^H")


@RECTANGLE
@TYPE
def test_qr_factors_a_matrix(
    device: torch.device, rng: np.random.Generator, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    """`qr` gives orthonormal columns and a triangle in each mode, and their product is the matrix."""
    rows, columns = shape
    a = of_shape(rng, rows, columns, values(rng, min(shape), low=0.5), dtype)
    x = tensor(a, dtype, device)

    for mode in ("reduced", "complete"):
        q, r = torch.linalg.qr(x, mode=mode)
        assert q.shape[1] == r.shape[0] == (rows if mode == "complete" else min(shape))
        assert_unitary(q, "Q")
        assert_equal(r, np.triu(numbers(r)))
        assert_close(numbers(q) @ numbers(r), a, rounding(x), "Q * R")
    only = torch.linalg.qr(x, mode="r").R
    assert_close(np.abs(numbers(only)), np.abs(numbers(torch.linalg.qr(x).R)), rounding(x), "R")
    reflections, tau = torch.geqrf(x)
    if rows >= columns:
        product = torch.linalg.householder_product(reflections, tau)
        assert_close(numbers(product) @ np.triu(numbers(reflections)[:columns]), a, rounding(x), "Q * R of geqrf")
        rotated = torch.ormqr(reflections, tau, x, left=True, transpose=True)
        assert_close(numbers(rotated)[:columns], np.triu(numbers(reflections)[:columns]), rounding(x), "Q^H * A")


@SIZE
@TYPE
def test_cholesky_factors_a_positive_matrix(
    device: torch.device, rng: np.random.Generator, size: int, dtype: torch.dtype
) -> None:
    """`cholesky` gives a triangle with a positive diagonal, lower or upper, whose square is the matrix."""
    a = hermitian(rng, values(rng, size, low=0.5), dtype)
    x = tensor(a, dtype, device)

    lower, upper = torch.linalg.cholesky(x), torch.linalg.cholesky(x, upper=True)

    low, up = numbers(lower), numbers(upper)
    assert_equal(lower, np.tril(low))
    assert_equal(upper, np.triu(up))
    assert (np.diag(low).real > 0).all()
    assert_close(low @ low.conj().T, a, rounding(x), "L * L^H")
    assert_close(up.conj().T @ up, a, rounding(x), "U^H * U")
    inverse = numbers(torch.cholesky_inverse(lower))
    assert_close(inverse @ a, np.eye(size, dtype=a.dtype), 10 * rounding(x), "the inverse by cholesky_inverse")


@TYPE
def test_cholesky_of_an_indefinite_matrix_is_refused(device: torch.device, dtype: torch.dtype) -> None:
    """`cholesky` raises for a matrix that is not positive; `cholesky_ex` gives the order of the first such minor."""
    x = torch.eye(5, dtype=dtype, device=device)
    x[3, 3] = -1

    assert torch.linalg.cholesky_ex(x).info.item() == 4
    with pytest.raises(torch.linalg.LinAlgError, match="4"):
        torch.linalg.cholesky(x)


@RECTANGLE
@TYPE
def test_lu_factors_a_matrix(
    device: torch.device, rng: np.random.Generator, shape: tuple[int, int], dtype: torch.dtype
) -> None:
    """`lu` gives a permutation, a lower triangle with a unit diagonal and entries up to one, and an upper triangle."""
    a = of_shape(rng, *shape, values(rng, min(shape), low=0.5), dtype)
    x = tensor(a, dtype, device)

    p, lower, upper = torch.linalg.lu(x)
    packed, pivots = torch.linalg.lu_factor(x)

    low, up, swaps = numbers(lower), numbers(upper), numbers(p).real
    assert sorted(swaps.argmax(1).tolist()) == list(range(shape[0]))
    assert swaps.sum() == shape[0]
    assert_equal(lower, np.tril(low))
    assert_equal(upper, np.triu(up))
    assert (np.diag(low) == 1).all()
    # LAPACK chooses the pivot of complex numbers by |re| + |im|, so that a modulus may exceed one.
    assert (np.abs(low) <= (2**0.5 if dtype.is_complex else 1) + rounding(x)).all()
    assert_close(swaps @ low @ up, a, 10 * rounding(x), "P * L * U")
    unpacked = torch.lu_unpack(packed, pivots)
    product = numbers(unpacked[0]) @ numbers(unpacked[1]) @ numbers(unpacked[2])
    assert_close(product, a, 10 * rounding(x), "P * L * U of lu_factor")


@pytest.mark.parametrize("size", [1, 2, 5, 17, 40])
@types(torch.float32, torch.float64)
def test_ldl_factors_an_indefinite_matrix(
    device: torch.device, rng: np.random.Generator, size: int, dtype: torch.dtype
) -> None:
    """`ldl_factor` of a symmetric matrix and `ldl_solve` solve systems with a residual within the bound."""
    a, b = hermitian(rng, values(rng, size), dtype), rng.standard_normal((size, 3))
    x = tensor(a, dtype, device)

    factors, pivots = torch.linalg.ldl_factor(x)
    found = numbers(torch.linalg.ldl_solve(factors, pivots, tensor(b, dtype, device)))

    assert np.linalg.norm(a @ found - b) <= 10 * rounding(x) * np.linalg.norm(a) * (np.linalg.norm(found) + 1)


@pytest.mark.parametrize("kind", ["eigh", "eigvalsh", "svd", "svdvals", "qr", "cholesky", "inv", "det", "eigvals"])
@TYPE
def test_batched_decompositions_are_those_of_each_matrix(
    device: torch.device, rng: np.random.Generator, kind: str, dtype: torch.dtype
) -> None:
    """A batch of matrices, also transposed or of size zero, gives the result of each of its matrices alone."""
    spectra = [values(rng, 12, low=0.5) * scale for scale in (1.0, 2.0, 0.5, 3.0, 1.5, 0.7)]
    a = np.stack([hermitian(rng, each, dtype) for each in spectra]).reshape(2, 3, 12, 12)
    x = tensor(a, dtype, device)
    run: Any = getattr(torch.linalg, kind)

    def reduced(matrix: torch.Tensor) -> Array:
        """Return a part that has no free signs."""
        made = run(matrix)
        if kind == "svd":
            return numbers(made.S)
        if kind == "eigh":
            return numbers(made.eigenvalues)
        if kind == "qr":
            return np.abs(numbers(made.R))
        return np.sort_complex(numbers(made)) if kind == "eigvals" else numbers(made)

    whole, turned = reduced(x), reduced(x.mT.contiguous().mT)

    scale = np.abs(whole).max()
    for i in range(2):
        for j in range(3):
            alone = reduced(x[i, j].clone())
            assert np.abs(whole[i, j] - alone).max() <= 100 * rounding(x) * scale
            assert np.abs(turned[i, j] - alone).max() <= 100 * rounding(x) * scale
    assert reduced(x[:0]).size == 0


@SIZE
@TYPE
def test_det_and_slogdet_are_the_product_of_the_spectrum(
    device: torch.device, rng: np.random.Generator, size: int, dtype: torch.dtype
) -> None:
    """`det`, `slogdet` and `logdet` follow from the eigenvalues, with the sign of their product.

    The relative error of each eigenvalue is the bound divided by the smallest eigenvalue.
    """
    spectrum = np.abs(values(rng, size, low=0.5)) / 1.5
    spectrum[: size // 2] *= -1
    x = tensor(hermitian(rng, spectrum, dtype), dtype, device)
    bound = rounding(x) * size * np.abs(spectrum).max() / np.abs(spectrum).min()

    sign, log = torch.linalg.slogdet(x)

    assert abs(numbers(sign) - np.prod(np.sign(spectrum))) <= bound
    assert abs(numbers(log) - np.log(np.abs(spectrum)).sum()) <= bound
    if size <= 64:
        assert abs(numbers(torch.linalg.det(x)) - spectrum.prod()) <= bound * abs(spectrum.prod()) * 1.1


@pytest.mark.parametrize("size", [2, 3, 4, 6])
@types(torch.float32, torch.float64)
def test_det_of_whole_numbers(device: torch.device, rng: np.random.Generator, size: int, dtype: torch.dtype) -> None:
    """The determinant of a product of triangles of whole numbers is the product of their diagonals."""
    low, up = np.tril(rng.integers(-2, 3, (size, size)), -1) + np.eye(size), np.triu(rng.integers(-2, 3, (size, size)))
    np.fill_diagonal(up, rng.choice([-2, -1, 1, 2, 3], size))
    expected = float(np.prod(np.diag(up)))
    x = tensor(low @ up, dtype, device)

    assert numbers(torch.linalg.det(x)) == pytest.approx(expected, rel=1e4 * rounding(x))


@pytest.mark.parametrize("size", [4, 20])
@TYPE
@pytest.mark.types("float64")
def test_norms_rank_and_condition_follow_from_the_spectrum(
    device: torch.device, rng: np.random.Generator, size: int, dtype: torch.dtype
) -> None:
    """Matrix norms, `cond`, `matrix_rank` and `pinv` follow from the known singular values of a matrix."""
    spectrum = values(rng, size, low=0.5)[::-1].copy()
    a = of_shape(rng, size + 3, size, spectrum, dtype)
    x = tensor(a, dtype, device)
    bound = 10 * rounding(x)

    expected = {2: spectrum[0], -2: spectrum[-1], "nuc": spectrum.sum(), "fro": np.linalg.norm(spectrum)}
    for order, value in expected.items():
        assert numbers(torch.linalg.matrix_norm(x, ord=order)) == pytest.approx(value, rel=bound)  # type: ignore[call-overload]
    assert numbers(torch.linalg.cond(x)) == pytest.approx(spectrum[0] / spectrum[-1], rel=bound)
    assert torch.linalg.matrix_rank(x).item() == size
    low = of_shape(rng, size + 3, size, spectrum[: size - 2], dtype)
    assert torch.linalg.matrix_rank(tensor(low, dtype, device)).item() == size - 2
    assert_close(numbers(torch.linalg.pinv(x)) @ a, np.eye(size, dtype=a.dtype), bound, "pinv(A) * A")
    assert_close(regular(rng, size, dtype)[:0], a[:0, :size], 0, "nothing")
