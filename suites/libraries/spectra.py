"""Matrices with known eigenvalues and singular values, generated in NumPy."""

from __future__ import annotations

import numpy as np
import torch

from .oracle import Array, numbers, unit

#: Sizes: single elements, and blocks of 16 and 32, with tails.
SIZES = (1, 2, 3, 5, 8, 17, 33, 64, 100)


def orthogonal(rng: np.random.Generator, size: int, dtype: torch.dtype) -> Array:
    """Return an orthogonal or unitary matrix, a product of three reflections."""
    found = np.eye(size, dtype=complex if dtype.is_complex else float)
    for _ in range(3):
        v = rng.standard_normal(size) + (1j * rng.standard_normal(size) if dtype.is_complex else 0)
        v /= np.linalg.norm(v)
        found -= 2 * np.outer(found @ v, v.conj())
    return found


def values(rng: np.random.Generator, size: int, low: float = -2.0) -> Array:
    """Return numbers between `low` and 3 in increasing order, none near zero or near another."""
    steps = np.linspace(low, 3.0, size + 1)[:size] if size > 1 else np.array([1.5])
    moved = steps + rng.uniform(0.02, 0.08, size) * (3.0 - low) / max(size, 2)
    return np.where(np.abs(moved) < 0.2 / size, moved + 0.4 / size, moved)


def hermitian(rng: np.random.Generator, spectrum: Array, dtype: torch.dtype) -> Array:
    """Return a symmetric or Hermitian matrix with these eigenvalues."""
    q = orthogonal(rng, len(spectrum), dtype)
    made: Array = (q * spectrum) @ q.conj().T
    return (made + made.conj().T) / 2


def of_shape(rng: np.random.Generator, rows: int, columns: int, spectrum: Array, dtype: torch.dtype) -> Array:
    """Return a matrix of a shape with these singular values."""
    rank = len(spectrum)
    left, right = orthogonal(rng, rows, dtype)[:, :rank], orthogonal(rng, columns, dtype)[:, :rank]
    found: Array = (left * spectrum) @ right.conj().T
    return found


def regular(rng: np.random.Generator, size: int, dtype: torch.dtype) -> Array:
    """Return a matrix with singular values between 1 and 3."""
    return of_shape(rng, size, size, np.sort(rng.uniform(1.0, 3.0, size))[::-1], dtype)


def rounding(x: torch.Tensor, factor: float = 10) -> float:
    """Return the bound of a backward stable algorithm relative to the 2-norm: factor * (n + 8) * u, n the larger edge.

    The 8 is for NumPy, which generates the matrices with some roundings in float64.
    """
    return factor * (max(x.shape[-2:]) + 8) * unit(x.dtype)


def assert_unitary(q: torch.Tensor, what: str) -> None:
    """Check that columns are orthonormal within n * u, in the 2-norm."""
    a = numbers(q)
    off = np.linalg.norm(a.conj().swapaxes(-1, -2) @ a - np.eye(a.shape[-1]), axis=(-2, -1))
    assert (off <= rounding(q) * a.shape[-1] ** 0.5).all(), (
        f"the columns of {what} are off orthonormal by {off.max():.3g}"
    )


def assert_close(found: Array, expected: Array, bound: float, what: str) -> None:
    """Check that the Frobenius norm of the error of each matrix is within a bound relative to the expected one."""
    assert found.shape == expected.shape
    off = np.linalg.norm(found - expected, axis=(-2, -1))
    allowed = bound * np.linalg.norm(expected, axis=(-2, -1))
    assert (off <= allowed).all(), f"{what} is off by {off.max():.3g}, beyond {np.max(allowed):.3g}"
