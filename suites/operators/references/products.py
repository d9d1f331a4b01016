"""Products of matrices, distances, transforms, and the decompositions that have one result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from . import formats
from .formats import Array
from .interpreter import Host, interprets

for _name in ("mm", "bmm", "mv", "dot"):
    interprets(_name, arguments="result")(lambda a, b, out_dtype=None: np.matmul(a, b))
interprets("vdot", arguments="result")(lambda a, b: np.vdot(a, b))


@interprets("addmm", "baddbmm", "addmv", arguments="result")
def _addmm(x: Array, a: Array, b: Array, *, beta: Any = 1, alpha: Any = 1) -> Array:
    product = np.matmul(a, b) * _like(alpha, a)
    shape = product.shape
    return np.broadcast_to(product if beta == 0 else product + x * _like(beta, a), shape).astype(product.dtype)


def _like(scale: Any, a: Array) -> Any:
    return scale if a.dtype.kind in "fc" else np.asarray(scale).astype(a.dtype)


@interprets("addbmm", arguments="result")
def _addbmm(x: Array, a: Array, b: Array, *, beta: Any = 1, alpha: Any = 1) -> Array:
    product = np.matmul(a, b).sum(0, dtype=a.dtype) * _like(alpha, a)
    return product if beta == 0 else product + x * _like(beta, a)


@interprets("addr", arguments="result")
def _addr(x: Array, a: Array, b: Array, *, beta: Any = 1, alpha: Any = 1) -> Array:
    if a.dtype.kind == "b":
        return (
            np.logical_or(np.logical_and(beta, x), np.logical_and(np.outer(a, b), alpha))
            if beta
            else np.outer(a, b) & bool(alpha)
        )
    product = np.outer(a, b) * _like(alpha, a)
    return product if beta == 0 else product + x * _like(beta, a)


@interprets("_scaled_mm", arguments="host")
def _scaled_mm(
    a: Host, b: Host, scale_a: Host, scale_b: Host, bias: Any = None, scale_result: Any = None,
    out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
) -> Host:  # fmt: skip
    found = (a.array * scale_a.array) @ (b.array * scale_b.array)
    found = found if bias is None else found + bias.array
    dtype = out_dtype or a.dtype
    if dtype.itemsize == 1:  # a product saturates
        found = np.clip(
            found * (1.0 if scale_result is None else scale_result.array),
            -formats.largest(dtype),
            formats.largest(dtype),
        )
    return Host(found, dtype)


@interprets("_scaled_mm_v2", arguments="host")
def _scaled_mm_v2(
    a: Host, b: Host, scale_a: Any, recipe_a: Any, swizzle_a: Any, scale_b: Any, recipe_b: Any, swizzle_b: Any,
    bias: Any = None, out_dtype: Any = None, contraction_dim: Any = (), use_fast_accum: bool = False,
) -> Host:  # fmt: skip
    return _scaled_mm(a, b, scale_a[0], scale_b[0], bias, None, out_dtype)


@interprets("_cdist_forward")
def _cdist(a: Array, b: Array, p: float, mode: Any = None) -> Array:
    return _minkowski(a[..., :, None, :] - b[..., None, :, :], p)


def _minkowski(difference: Array, p: float) -> Array:
    size = np.abs(difference)
    if p == 0:
        return (size != 0).sum(-1).astype(np.float64)
    if np.isinf(p):
        return size.max(-1, initial=0.0)
    return (size**p).sum(-1) ** (1 / p)


def _minkowski_gradient(difference: Array, distance: Array, p: float) -> Array:
    """Return the derivative of the distance by each difference; 0 where the distance is 0."""
    if p == 0:
        return np.zeros_like(difference)
    if np.isinf(p):
        return np.sign(difference) * (np.abs(difference) == distance)
    safe = np.where(distance == 0, 1, distance)
    if p == 1:
        return np.sign(difference)
    found = np.sign(difference) * np.abs(difference) ** (p - 1) / safe ** (p - 1)
    return np.where((distance == 0) | ~np.isfinite(found), 0, found)


@interprets("_cdist_backward")
def _cdist_backward(grad: Array, a: Array, b: Array, p: float, distance: Array) -> Array:
    slope = _minkowski_gradient(a[..., :, None, :] - b[..., None, :, :], distance[..., None], p)
    return (grad[..., None] * slope).sum(-2)


@interprets("_pdist_forward")
def _pdist(x: Array, p: float = 2) -> Array:
    rows, columns = np.triu_indices(len(x), 1)
    return _minkowski(x[rows] - x[columns], p)


@interprets("_pdist_backward")
def _pdist_backward(grad: Array, x: Array, p: float, distance: Array) -> Array:
    rows, columns = np.triu_indices(len(x), 1)
    slope = grad[:, None] * _minkowski_gradient(x[rows] - x[columns], distance[:, None], p)
    found = np.zeros_like(x)
    np.add.at(found, rows, slope)
    np.add.at(found, columns, -slope)
    return found


def _transform(x: Array, dims: Sequence[int], sign: int) -> Array:
    """Return the discrete Fourier transform by the matrix of its definition, one dimension after the other."""
    for dim in dims:
        count = x.shape[dim]
        turns = np.outer(np.arange(count), np.arange(count)) % count
        x = np.moveaxis(np.moveaxis(x, dim, -1) @ np.exp(sign * 2j * np.pi * turns / count), -1, dim)
    return x


def _scale(x: Array, sizes: Sequence[int], dims: Sequence[int], normalization: int) -> float:
    count = float(np.prod([sizes[dim] for dim in dims]))
    return {0: 1.0, 1: 1 / np.sqrt(count), 2: 1 / count}[normalization]


@interprets("_fft_c2c")
def _c2c(x: Array, dim: Sequence[int], normalization: int, forward: bool) -> Array:
    return _transform(x, dim, -1 if forward else 1) * _scale(x, x.shape, dim, normalization)


@interprets("_fft_r2c")
def _r2c(x: Array, dim: Sequence[int], normalization: int, onesided: bool) -> Array:
    found = _transform(x + 0j, dim, -1) * _scale(x, x.shape, dim, normalization)
    if not onesided:
        return found
    last = dim[-1] % x.ndim
    return found[(slice(None),) * last + (slice(x.shape[last] // 2 + 1),)]


@interprets("_fft_c2r")
def _c2r(x: Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> Array:
    x = _transform(x, dim[:-1], 1)
    last = dim[-1] % x.ndim
    lines = np.moveaxis(x, last, -1)[..., : last_dim_size // 2 + 1]
    count = last_dim_size
    mirrored = np.conj(lines[..., 1 : (count + 1) // 2])[..., ::-1]
    edge = lines.copy()
    edge[..., 0] = edge[..., 0].real
    if count % 2 == 0:
        edge[..., -1] = edge[..., -1].real
    full = np.moveaxis(np.concatenate([edge, mirrored], -1), -1, last)
    found = _transform(full, [last], 1).real
    return found * _scale(found, found.shape, dim, normalization)


interprets("linalg_inv_ex")(lambda x, *, check_errors=False: (np.linalg.inv(x), np.zeros(x.shape[:-2], np.int32)))
interprets("linalg_matrix_exp")(lambda x: _matrix_exp(x))


def _matrix_exp(x: Array) -> Array:
    steps = max(0, int(np.ceil(np.log2(max(1e-30, np.abs(x).sum(-1).max(initial=0))))) + 6)
    x = x / 2.0**steps
    term = total = np.broadcast_to(np.eye(x.shape[-1], dtype=x.dtype), x.shape)
    for k in range(1, 16):
        term = term @ x / k
        total = total + term
    for _ in range(steps):
        total = total @ total
    return total


@interprets("_linalg_det", arguments="host")
def _det(x: Host) -> Any:
    return Host(np.linalg.det(x.array), x.dtype), *_lu(x, transposed=_in_order(x))


def _in_order(x: Host) -> bool:
    """Return whether torch saves the factors of the transposed matrix for the gradient of a determinant."""
    return x.is_contiguous() and not x.is_complex()


def _lu(x: Host, *, transposed: bool = False) -> tuple[Host, Host]:
    factors, pivots = factor(np.swapaxes(x.array, -1, -2) if transposed else x.array)
    return Host(factors, x.dtype), Host(pivots, torch.int32)


@interprets("_linalg_slogdet", arguments="host")
def _slogdet(x: Host) -> Any:
    sign, size = np.linalg.slogdet(x.array)
    real = {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(x.dtype, x.dtype)
    return (
        Host(np.asarray(sign, formats.wide(x.dtype)), x.dtype),
        Host(np.asarray(size), real),
        *_lu(x, transposed=_in_order(x)),
    )


@interprets("linalg_lu_factor_ex", arguments="host")
def _lu_factor_ex(x: Host, *, pivot: bool = True, check_errors: bool = False) -> Any:
    factors, pivots = factor(x.array, pivot)
    return Host(factors, x.dtype), Host(pivots, torch.int32), Host(np.zeros(x.shape[:-2], np.int32), torch.int32)


@interprets("linalg_lu", arguments="host")
def _linalg_lu(x: Host, *, pivot: bool = True) -> Any:
    factors, pivots = factor(x.array, pivot)
    with_p = unpack(factors, pivots)
    return tuple(Host(each, x.dtype) for each in with_p)


@interprets("lu_unpack", arguments="host")
def _lu_unpack(data: Host, pivots: Host, unpack_data: bool = True, unpack_pivots: bool = True) -> Any:
    parts = unpack(data.array, pivots.array)
    none = Host(np.zeros(0), data.dtype)
    p = Host(parts[0], data.dtype) if unpack_pivots else none
    return (p, Host(parts[1], data.dtype), Host(parts[2], data.dtype)) if unpack_data else (p, none, none)


def factor(x: Array, pivot: bool = True) -> tuple[Array, Array]:
    """Return L and U in one matrix, and the exchanged rows, counted from 1, with LAPACK's choice of pivots."""
    rows, columns = x.shape[-2:]
    found = x.copy()
    pivots = np.zeros((*x.shape[:-2], min(rows, columns)), np.int32)
    for place in np.ndindex(*x.shape[:-2]):
        a = found[place]
        for k in range(min(rows, columns)):
            chosen = k + int(np.argmax(np.abs(a[k:, k].real) + np.abs(a[k:, k].imag))) if pivot else k
            pivots[(*place, k)] = chosen + 1
            a[[k, chosen]] = a[[chosen, k]]
            if a[k, k] != 0:
                a[k + 1 :, k] /= a[k, k]
                a[k + 1 :, k + 1 :] -= np.outer(a[k + 1 :, k], a[k, k + 1 :])
    return found, pivots


def permutation(pivots: Array, rows: int) -> Array:
    """Return the matrices P with A = P L U."""
    found = np.zeros((*pivots.shape[:-1], rows, rows))
    for place in np.ndindex(*pivots.shape[:-1]):
        order = np.arange(rows)
        for k, chosen in enumerate(pivots[place]):
            order[[k, chosen - 1]] = order[[chosen - 1, k]]
        found[place][order, np.arange(rows)] = 1
    return found


def unpack(factors: Array, pivots: Array) -> tuple[Array, Array, Array]:
    """Return P, L and U."""
    rows, columns = factors.shape[-2:]
    count = min(rows, columns)
    lower = np.tril(factors[..., :count], -1) + np.eye(rows, count)
    return (
        permutation(pivots, rows).astype(factors.dtype),
        lower.astype(factors.dtype),
        np.triu(factors[..., :count, :]),
    )


@interprets("linalg_lu_solve", arguments="result")
def _lu_solve(factors: Array, pivots: Array, b: Array, *, left: bool = True, adjoint: bool = False) -> Array:
    p, lower, upper = unpack(factors, pivots.real.astype(np.int32))
    a = p @ lower @ upper
    a = np.conj(np.swapaxes(a, -1, -2)) if adjoint else a
    if left:
        return np.linalg.solve(*_batched(a, b))
    a, b = _batched(np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2))
    return np.swapaxes(np.linalg.solve(a, b), -1, -2)


def _batched(a: Array, b: Array) -> tuple[Array, Array]:
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return np.broadcast_to(a, lead + a.shape[-2:]), np.broadcast_to(b, lead + b.shape[-2:])


@interprets("_linalg_solve_ex", arguments="host")
def _solve_ex(a: Host, b: Host, *, left: bool = True, check_errors: bool = False) -> Any:
    x, y = a.array, b.array
    vector = y.ndim == 1 or (y.ndim == x.ndim - 1 and y.shape == x.shape[:-1])
    y = y[..., None] if vector else y
    if left:
        found = np.linalg.solve(*_batched(x, y))
    else:
        found = np.swapaxes(np.linalg.solve(*_batched(np.swapaxes(x, -1, -2), np.swapaxes(y, -1, -2))), -1, -2)
    found = found[..., 0] if vector else found
    factors, pivots = _lu(a)
    return Host(found, b.dtype), factors, pivots, Host(np.zeros(x.shape[:-2], np.int32), torch.int32)


@interprets("linalg_solve_triangular")
def _solve_triangular(a: Array, b: Array, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Array:
    a = np.triu(a) if upper else np.tril(a)
    if unitriangular:
        a = a - a * np.eye(a.shape[-1]) + np.eye(a.shape[-1])
    if left:
        return np.linalg.solve(*_batched(a, b))
    return np.swapaxes(np.linalg.solve(*_batched(np.swapaxes(a, -1, -2), np.swapaxes(b, -1, -2))), -1, -2)


@interprets("triangular_solve")
def _triangular_solve(
    b: Array, a: Array, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Any:
    whole, b = _batched(a, b)
    a = np.triu(whole) if upper else np.tril(whole)
    if unitriangular:
        a = a - a * np.eye(a.shape[-1]) + np.eye(a.shape[-1])
    return np.linalg.solve(np.swapaxes(a, -1, -2) if transpose else a, b), whole.copy()


@interprets("linalg_cholesky_ex")
def _cholesky_ex(x: Array, *, upper: bool = False, check_errors: bool = False) -> Any:
    return _cholesky(x, upper), np.zeros(x.shape[:-2], np.int32)


@interprets("cholesky")
def _cholesky(x: Array, upper: bool = False) -> Array:
    x = np.conj(np.swapaxes(x, -1, -2)) if upper else x
    lower = np.tril(x, -1)
    diagonal = np.einsum("...ii->...i", x).real
    symmetric = lower + np.conj(np.swapaxes(lower, -1, -2)) + diagonal[..., None] * np.eye(x.shape[-1])
    found = np.linalg.cholesky(symmetric)
    return np.conj(np.swapaxes(found, -1, -2)) if upper else found


@interprets("cholesky_inverse")
def _cholesky_inverse(x: Array, upper: bool = False) -> Array:
    x = np.conj(np.swapaxes(np.triu(x), -1, -2)) if upper else np.tril(x)
    return np.linalg.inv(x @ np.conj(np.swapaxes(x, -1, -2)))


@interprets("_cholesky_solve_helper", "cholesky_solve")
def _cholesky_solve(b: Array, x: Array, upper: bool = False) -> Array:
    x = np.conj(np.swapaxes(np.triu(x), -1, -2)) if upper else np.tril(x)
    return np.linalg.solve(*_batched(x @ np.conj(np.swapaxes(x, -1, -2)), b))


@interprets("_linalg_eigh", arguments="host")
def _eigh(x: Host, UPLO: str = "L", compute_v: bool = True) -> Any:  # noqa: N803
    values, vectors = np.linalg.eigh(x.array, UPLO.upper())
    real = {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(x.dtype, x.dtype)
    return Host(values, real), Host(vectors if compute_v else np.zeros(0), x.dtype)


def _complex_of(dtype: torch.dtype) -> torch.dtype:
    return {torch.float32: torch.complex64, torch.float64: torch.complex128}.get(dtype, dtype)


@interprets("linalg_eig", arguments="host")
def _eig(x: Host) -> Any:
    values, vectors = np.linalg.eig(x.array)
    kind = _complex_of(x.dtype)
    return Host(values.astype(complex), kind), Host(vectors.astype(complex), kind)


@interprets("linalg_eigvals", arguments="host")
def _eigvals(x: Host) -> Any:
    return Host(np.linalg.eigvals(x.array).astype(complex), _complex_of(x.dtype))


@interprets("_linalg_svd", arguments="host")
def _svd(x: Host, full_matrices: bool = False, compute_uv: bool = True, *, driver: Any = None) -> Any:
    real = {torch.complex64: torch.float32, torch.complex128: torch.float64}.get(x.dtype, x.dtype)
    if not compute_uv:
        none = Host(np.zeros(0), x.dtype)
        return none, Host(np.linalg.svd(x.array, compute_uv=False), real), none
    u, s, vh = np.linalg.svd(x.array, full_matrices)
    return Host(u, x.dtype), Host(s, real), Host(vh, x.dtype)


@interprets("linalg_qr", arguments="host")
def _qr(x: Host, mode: str = "reduced") -> Any:
    if mode == "r":
        return Host(np.zeros(0), x.dtype), Host(np.linalg.qr(x.array, "r"), x.dtype)
    q, r = np.linalg.qr(x.array, mode)
    return Host(q, x.dtype), Host(r, x.dtype)


@interprets("linalg_householder_product", "orgqr", arguments="raw")
def _householder_product(a: Array, tau: Array) -> Array:
    rows, columns = a.shape[-2:]
    found = np.zeros_like(a)
    for place in np.ndindex(*a.shape[:-2]):
        q = np.eye(rows, dtype=a.dtype)
        for k in range(tau.shape[-1]):
            v = np.concatenate([np.zeros(k), [1], a[place][k + 1 :, k]])
            q = q @ (np.eye(rows) - tau[place][k] * np.outer(v, np.conj(v)))
        found[place] = q[:, :columns]
    return found


@interprets("ormqr")
def _ormqr(a: Array, tau: Array, other: Array, left: bool = True, transpose: bool = False) -> Array:
    rows = a.shape[-2]
    full = np.concatenate([a, np.zeros((*a.shape[:-1], rows - a.shape[-1]))], -1) if rows > a.shape[-1] else a
    q = _householder_product(full[..., :rows], tau)
    q = np.conj(np.swapaxes(q, -1, -2)) if transpose else q
    return q @ other if left else other @ q


@interprets("_linalg_check_errors", arguments="host")
def _check_errors(info: Host, api: str, *, is_matrix: bool) -> None:
    if info.array.any():
        raise RuntimeError(f"{api}: the reference found a singular matrix")


@interprets("linalg_pinv.atol_rtol_tensor")
def _pinv(x: Array, *, atol: Any = None, rtol: Any = None, hermitian: bool = False) -> Array:
    if x.size == 0:
        return np.zeros((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype)
    if hermitian:
        lower = np.tril(x, -1)
        x = (
            lower
            + np.conj(np.swapaxes(lower, -1, -2))
            + np.einsum("...ii->...i", x).real[..., None] * np.eye(x.shape[-1])
        )
    u, s, vh = np.linalg.svd(x, full_matrices=False)
    top = s.max(-1, initial=0.0)
    rtol = np.zeros(()) if rtol is None and atol is not None and (atol > 0).any() else rtol
    rtol = np.asarray(max(x.shape[-2:]) * 1.2e-7) if rtol is None else rtol
    limit = np.maximum(0.0 if atol is None else atol, rtol * top)[..., None]
    inverse = np.where(s > limit, 1 / np.where(s > limit, s, 1), 0)
    return np.conj(np.swapaxes(vh, -1, -2)) * inverse[..., None, :] @ np.conj(np.swapaxes(u, -1, -2))


@interprets("_trilinear")
def _trilinear(a: Array, b: Array, c: Array, ea: Any, eb: Any, ec: Any, dims: Any, unroll_dim: int = 1) -> Array:
    for each in ea:
        a = np.expand_dims(a, each)
    for each in eb:
        b = np.expand_dims(b, each)
    for each in ec:
        c = np.expand_dims(c, each)
    return (a * b * c).sum(tuple(dims))
