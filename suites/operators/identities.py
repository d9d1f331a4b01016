"""Identities for operators with several correct results: factors, indices of equal values, random numbers, memory.

Each function gets the sample (in the host's memory) and the results, as arrays, and raises `WrongValueError`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .comparison import WrongValueError, on_host, tensors
from .references import formats
from .references.formats import Array

#: The allowed difference of a checked identity, in roundings of the type times the size of the matrix and its norm.
_ROUNDINGS = 60.0


def _arrays(result: Any) -> list[Array]:
    return [formats.read(on_host(each)) for each in tensors(result)]


def _h(x: Array) -> Array:
    return np.conj(np.swapaxes(x, -1, -2))


def _equal(found: Array, wanted: Array, dtype: torch.dtype, what: str, size: float | None = None) -> None:
    """Raise WrongValueError unless matrices agree in norm."""
    if found.shape != wanted.shape:
        raise WrongValueError(f"{what}: shape {found.shape}, expected {wanted.shape}")
    if not found.size:
        return
    scale = np.abs(wanted).max() if size is None else size
    limit = _ROUNDINGS * formats.unit(dtype) * max(found.shape[-2:], default=1) * max(scale, formats.smallest(dtype))
    worst = np.abs(found - wanted).max()
    if not worst <= limit:
        raise WrongValueError(f"{what}: off by {worst:.3g}, allowed {limit:.3g}")


def _unitary(q: Array, dtype: torch.dtype, what: str) -> None:
    if q.size:
        _equal(_h(q) @ q, np.broadcast_to(np.eye(q.shape[-1]), (*q.shape[:-2], q.shape[-1], q.shape[-1])), dtype, what)


def _falling(values: Array, what: str) -> None:
    if (np.diff(values, axis=-1) > 0).any():
        raise WrongValueError(f"{what} are not in descending order")


def svd(sample: Any, result: Any) -> None:
    """Check that U and V have orthonormal columns, that U S V^H is the matrix, and that S equals NumPy's."""
    x = formats.read(sample.input)
    dtype = sample.input.dtype
    u, s, v = _arrays(result)
    _singular(x, u, s, _h(v), dtype)


def linalg_svd(sample: Any, result: Any) -> None:
    """Check that U and V have orthonormal columns, that U S V^H is the matrix, and that S equals NumPy's."""
    u, s, vh = _arrays(result)
    _singular(formats.read(sample.input), u, s, vh, sample.input.dtype)


def _singular(x: Array, u: Array, s: Array, vh: Array, dtype: torch.dtype) -> None:
    if not x.size:
        return
    _falling(s, "singular values")
    exact = np.linalg.svd(x, compute_uv=False)
    _equal(s, exact[..., : s.shape[-1]], dtype, "singular values", float(exact.max()))
    if not u.size or not u.any():
        return  # compute_uv=False
    _unitary(u, dtype, "U^H U")
    _unitary(_h(vh), dtype, "V^H V")
    k = s.shape[-1]
    _equal(u[..., :k] * s[..., None, :] @ vh[..., :k, :], x, dtype, "U S V^H", float(exact.max()))


def svd_lowrank(sample: Any, result: Any) -> None:
    """Check that the factors are orthonormal, and that the values are at most those of the matrix."""
    u, s, v = _arrays(result)
    dtype = tensors(result)[0].dtype
    _falling(s, "singular values")
    _unitary(u, dtype, "U^H U")
    _unitary(v, dtype, "V^H V")
    if not isinstance(sample.input, torch.Tensor) or sample.args or sample.kwargs.get("M") is not None:
        return
    x = formats.read(sample.input)
    exact = np.linalg.svd(x, compute_uv=False)[..., : s.shape[-1]]
    if (s > exact * (1 + 1e3 * formats.unit(dtype)) + 1e3 * formats.unit(dtype)).any():
        raise WrongValueError("a singular value is larger than that of the matrix")


def eig(sample: Any, result: Any) -> None:
    """Check that A v = w v for each pair, and that the vectors have length 1."""
    values, vectors = _arrays(result)
    x = formats.read(sample.input)
    dtype = sample.input.dtype
    if x.size:
        size = float(np.abs(x).max()) * x.shape[-1]
        _equal(x @ vectors, vectors * values[..., None, :], dtype, "A v - w v", size)
        _equal(np.linalg.norm(vectors, axis=-2), np.ones(values.shape), dtype, "length of eigenvectors")
        _equal(values.sum(-1), np.trace(x, axis1=-2, axis2=-1), dtype, "sum of eigenvalues", size * x.shape[-1])


def eigvals(sample: Any, result: Any) -> None:
    """Check that the eigenvalues equal NumPy's, in any order."""
    values = tensors(result)
    x = formats.read(sample.input)
    if not x.size:
        return
    found = formats.read(on_host(values[0]))
    exact = np.linalg.eigvals(x)
    size = float(np.abs(x).max()) * x.shape[-1]
    gap = np.abs(found[..., :, None] - exact[..., None, :])
    limit = 1e3 * _ROUNDINGS * formats.unit(sample.input.dtype) * x.shape[-1] * size
    worst = max(gap.min(-1).max(), gap.min(-2).max())
    if not worst <= limit:
        raise WrongValueError(f"eigenvalues: off by {worst:.3g}, allowed {limit:.3g}")
    _equal(found.sum(-1), np.trace(x, axis1=-2, axis2=-1), sample.input.dtype, "sum of eigenvalues", size * x.shape[-1])


def eigh(sample: Any, result: Any) -> None:
    """Check that A v = w v, that V is unitary, and that the values equal NumPy's in ascending order.

    Only one triangle of A counts.
    """
    values, vectors = _arrays(result)
    x = formats.read(sample.input)
    upper = (sample.args[0] if sample.args else sample.kwargs.get("UPLO", "L")).upper() == "U"
    dtype = sample.input.dtype
    if not x.size:
        return
    part = np.triu(x, 1) if upper else np.tril(x, -1)
    x = part + _h(part) + np.einsum("...ii->...i", x).real[..., None] * np.eye(x.shape[-1])
    exact = np.linalg.eigvalsh(x)
    size = float(np.abs(exact).max())
    _equal(values, exact, dtype, "eigenvalues", size)
    _unitary(vectors, dtype, "V^H V")
    _equal(x @ vectors, vectors * values[..., None, :], dtype, "A v - w v", size)


def qr(sample: Any, result: Any) -> None:
    """Check that Q has orthonormal columns, that R is upper triangular, and that Q R is the matrix."""
    q, r = _arrays(result)
    x = formats.read(sample.input)
    dtype = sample.input.dtype
    if np.tril(r, -1).any():
        raise WrongValueError("R is not upper triangular")
    if not q.size or not x.size:
        _equal(_h(r) @ r, _h(x) @ x, dtype, "R^H R")
        return
    _unitary(q, dtype, "Q^H Q")
    _equal(q @ r, x, dtype, "Q R", float(np.linalg.norm(x, 2, (-2, -1)).max()))


def geqrf(sample: Any, result: Any) -> None:
    """Check that the triangle is R of a QR: R^H R = A^H A."""
    a, _ = _arrays(result)
    x = formats.read(sample.input)
    if x.size:
        r = np.triu(a)[..., : min(x.shape[-2:]), :]
        _equal(_h(r) @ r, _h(x) @ x, sample.input.dtype, "R^H R")


def lstsq(sample: Any, result: Any) -> None:
    """Check that the solution satisfies the normal equations, and that the squared residuals are those of A X - B."""
    found, squares = _arrays(result)[:2]
    a, b = formats.read(sample.input), formats.read(sample.args[0])
    if not a.size or not b.size:
        return
    vector = b.ndim == a.ndim - 1
    b, found = (b[..., None], found[..., None]) if vector else (b, found)
    rest = a @ found - b
    size = float(np.linalg.norm(a, 2, (-2, -1)).max()) * max(
        1.0, float(np.abs(b).max()), float(np.abs(a @ found).max())
    )
    _equal(_h(a) @ rest, np.zeros_like(_h(a) @ rest), sample.input.dtype, "A^H (A x - b)", size * 100)
    if squares.size:
        _equal(squares, (np.abs(rest) ** 2).sum(-2), result[1].dtype, "the squares of the residuals", size**2)


def _ordered(values: Array, descending: bool) -> None:
    wrong = values[..., 1:] > values[..., :-1] if descending else values[..., 1:] < values[..., :-1]
    if wrong.any():
        raise WrongValueError("values are not in order")


def picks(sample: Any, result: Any, expected: Any, *, counts: bool = False) -> None:
    """Check that the values are correct, and that the indices point to them.

    Equal values may have any of their indices.
    """
    values, places = tensors(result)
    wanted = tensors(expected)[0]
    found, exact = formats.read(on_host(values)), formats.rounded(wanted.array, wanted.dtype)
    if found.shape != exact.shape or not np.array_equal(found, exact, equal_nan=found.dtype.kind in "fc"):
        raise WrongValueError("the values are wrong")
    check_places(sample, places, exact, _dim(sample, picked_first=counts))


def check_places(sample: Any, places: torch.Tensor, exact: Array, dim: int) -> None:
    """Raise WrongValueError unless the indices point to the values in the input."""
    x = formats.read(sample.input)
    index = formats.read(on_host(places))
    if not x.ndim or not x.size or not index.size:
        return
    if index.shape != exact.shape:
        raise WrongValueError(f"indices of shape {index.shape}, expected {exact.shape}")
    if index.ndim < x.ndim:
        index, exact = np.expand_dims(index, dim), np.expand_dims(exact, dim)
    taken = np.take_along_axis(x, index, dim)
    if not np.array_equal(taken, exact, equal_nan=taken.dtype.kind == "f"):
        raise WrongValueError("an index does not point to its value")
    line = np.sort(index, dim)
    if np.diff(line, axis=dim).size and (np.diff(line, axis=dim) == 0).any() and index.shape[dim] > 1:
        raise WrongValueError("an index comes twice")


def _dim(sample: Any, *, picked_first: bool = False) -> int:
    if "dim" in sample.kwargs:
        return int(sample.kwargs["dim"])
    if picked_first and not sample.args[1:]:
        return -1
    plain = [each for each in sample.args if isinstance(each, int) and not isinstance(each, bool)]
    return int(plain[-1]) if plain else -1


def argsort(sample: Any, result: Any) -> None:
    """Check that the indices are a permutation that sorts the values."""
    places = _arrays(result)[0]
    x = formats.read(sample.input)
    if not x.ndim or not x.size:
        return
    dim = sample.kwargs.get("dim", next((e for e in sample.args if isinstance(e, int) and not isinstance(e, bool)), -1))
    descending = sample.kwargs.get("descending", next((e for e in sample.args if isinstance(e, bool)), False))
    taken = np.take_along_axis(x, places, dim)
    _ordered(np.moveaxis(taken, dim, -1).astype(np.float64), bool(descending))
    if not np.array_equal(
        np.sort(places, dim),
        np.broadcast_to(
            np.moveaxis(np.arange(x.shape[dim])[:, None], 0, 0).reshape(
                [-1 if d == dim % x.ndim else 1 for d in range(x.ndim)]
            ),
            x.shape,
        ),
    ):
        raise WrongValueError("the indices are no permutation")


def resized(sample: Any, result: Any) -> None:
    """Check that the previous elements come first, in memory order."""
    x = formats.memory(sample.input.contiguous()).reshape(-1)
    found = tensors(result)[0]
    wanted = sample.args[0]
    shape = tuple(wanted.shape if isinstance(wanted, torch.Tensor) else wanted)
    if tuple(found.shape) != shape:
        raise WrongValueError(f"shape {tuple(found.shape)}, expected {shape}")
    count = min(found.numel(), x.size)
    left = formats.memory(on_host(found).contiguous()).reshape(-1)[:count]
    if sample.input.is_contiguous() and left.tobytes() != x[:count].tobytes():
        raise WrongValueError("elements changed")


def _ldl(packed: Array, pivots: Array, hermitian: bool) -> Array:
    """Return the matrix of LAPACK's factors in the lower triangle: P L D L^H P^T, with blocks of D of 1 or 2 rows."""
    found = np.empty_like(packed)
    for lead in np.ndindex(*packed.shape[:-2]):
        a, pivot = packed[lead], pivots[lead]
        n = len(a)
        lower, d, swaps = np.eye(n, dtype=a.dtype), np.zeros((n, n), a.dtype), []
        k = 0
        while k < n:
            size = 1 if pivot[k] > 0 else 2
            d[k, k] = a[k, k]
            if size == 2:
                d[k + 1, k + 1], d[k + 1, k] = a[k + 1, k + 1], a[k + 1, k]
                d[k, k + 1] = np.conj(a[k + 1, k]) if hermitian else a[k + 1, k]
            other = abs(int(pivot[k + size - 1])) - 1
            swaps.append((k + size - 1, other))
            column = np.eye(n, dtype=a.dtype)
            column[k + size :, k : k + size] = a[k + size :, k : k + size]
            permute = np.eye(n)
            permute[[k + size - 1, other]] = permute[[other, k + size - 1]]
            lower = lower @ permute @ column
            k += size
        found[lead] = lower @ d @ (np.conj(lower.T) if hermitian else lower.T)
    return found


def ldl_factor(sample: Any, result: Any) -> None:
    """Check that the product of the factors is the symmetric or Hermitian matrix, whose lower triangle counts."""
    packed, pivots = _arrays(result)[:2]
    x = formats.read(sample.input)
    hermitian = bool(sample.kwargs.get("hermitian", False))
    if not x.size:
        return
    part = np.tril(x, -1)
    diagonal = np.einsum("...ii->...i", x)
    diagonal = diagonal.real if hermitian else diagonal
    whole = part + (_h(part) if hermitian else np.swapaxes(part, -1, -2)) + diagonal[..., None] * np.eye(x.shape[-1])
    _equal(_ldl(packed, pivots, hermitian), whole, sample.input.dtype, "P L D L^H P^T")


def ldl_solve(sample: Any, result: Any) -> None:
    """Check that the matrix of the factors times the solution is the right side."""
    packed = formats.read(sample.input)
    pivots, b = (formats.read(each) for each in sample.args[:2])
    found = _arrays(result)[0]
    if not packed.size or not b.size:
        return
    a = _ldl(packed, pivots, bool(sample.kwargs.get("hermitian", False)))
    size = float(np.abs(a).max() * max(1.0, np.abs(found).max())) * a.shape[-1]
    product = a @ found
    _equal(product, np.broadcast_to(b, product.shape), sample.input.dtype, "A x - b", size)


def logcumsumexp(sample: Any, result: Any) -> None:
    """Check that the exponential of the result is the running sum of exponentials.

    The imaginary part may be off by 2 pi.
    """
    x = formats.read(sample.input)
    found = _arrays(result)[0]
    dtype = tensors(result)[0].dtype
    if not x.ndim or not x.size:
        _equal(found, x, dtype, "logcumsumexp")
        return
    dim = _dim(sample)
    with np.errstate(all="ignore"):
        finite = np.where(np.isfinite(x.real), x.real, -np.inf)
        top = np.maximum.accumulate(finite, dim)
        top = np.where(np.isfinite(top), top, 0)
        highest = top.max(dim, keepdims=True)
        wanted = np.cumsum(np.exp(x - highest), dim) * np.exp(highest - top)
        shown = np.exp(found - top)
        far = np.isfinite(wanted) & (np.exp(top - highest) > 1e-3)
        size = max(1.0, float(np.abs(np.where(np.isfinite(found), found, 0)).max()))
        _equal(np.where(far, shown, 0), np.where(far, wanted, 0), dtype, "exp(logcumsumexp)", size)
