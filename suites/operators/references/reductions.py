"""Sums, products, extrema, norms, scans and sorts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from . import formats
from .formats import Array
from .interpreter import Host, interprets


def axes(x: Array, dim: Any) -> tuple[int, ...]:
    """Return the dimensions of a reduction: all for None and for an empty list."""
    if dim is None or (not isinstance(dim, int) and len(dim) == 0):
        return tuple(range(x.ndim))
    dims = [dim] if isinstance(dim, int) else dim
    return tuple(each % x.ndim for each in dims) if x.ndim else ()


def _by_dtype(x: Array, dtype: Any) -> Array:
    from . import formats
    from .shapes import _cast

    if dtype is not None:
        return _cast(x, dtype)
    return x.astype(np.int64) if x.dtype.kind in "biu" else x.astype(formats.wide_of(x))


@interprets("sum")
def _sum(x: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
    return _by_dtype(x, dtype).sum(axes(x, dim), keepdims=keepdim)


@interprets("nansum")
def _nansum(x: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
    return np.nansum(_by_dtype(x, dtype), axes(x, dim), keepdims=keepdim)


@interprets("mean")
def _mean(x: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
    return _by_dtype(x, dtype).mean(axes(x, dim), keepdims=keepdim)


@interprets("prod")
def _prod(x: Array, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
    return _by_dtype(x, dtype).prod(axes(x, dim), keepdims=keepdim)


@interprets("var", "var.correction", "var.dim")
def _var(x: Array, dim: Any = None, unbiased: Any = True, keepdim: bool = False, correction: Any = None) -> Array:
    return _variance(x, dim, unbiased, keepdim, correction)[0]


def _variance(x: Array, dim: Any, unbiased: Any, keepdim: bool, correction: Any) -> tuple[Array, Array]:
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    correction = correction if correction is not None else float(bool(unbiased))
    which = axes(x, dim)
    count = math.prod(x.shape[each] for each in which)
    mean = x.mean(which, keepdims=True)
    squares = (np.abs(x - mean) ** 2).sum(which, keepdims=keepdim)
    divisor = max(0, count - correction)
    return squares / np.float64(divisor), mean if keepdim else mean.squeeze(which)


@interprets("std", "std.correction", "std.dim")
def _std(*given: Any, **named: Any) -> Array:
    return np.sqrt(_var(*given, **named))


@interprets("var_mean")
def _var_mean(x: Array, dim: Any = None, unbiased: Any = True, keepdim: bool = False, correction: Any = None) -> Any:
    return _variance(x, dim, unbiased, keepdim, correction)


@interprets("std_mean")
def _std_mean(*given: Any, **named: Any) -> Any:
    var, mean = _var_mean(*given, **named)
    return np.sqrt(var), mean


interprets("amax")(lambda x, dim=(), keepdim=False: x.max(axes(x, dim), keepdims=keepdim))
interprets("amin")(lambda x, dim=(), keepdim=False: x.min(axes(x, dim), keepdims=keepdim))
interprets("all")(
    lambda x, dim=None, keepdim=False: x.astype(bool).all(axes(x, dim) if dim != [] else (), keepdims=keepdim)
)
interprets("any")(
    lambda x, dim=None, keepdim=False: x.astype(bool).any(axes(x, dim) if dim != [] else (), keepdims=keepdim)
)


@interprets("aminmax")
def _aminmax(x: Array, *, dim: Any = None, keepdim: bool = False) -> Any:
    which = axes(x, dim)
    return x.min(which, keepdims=keepdim), x.max(which, keepdims=keepdim)


@interprets("argmax")
def _argmax(x: Array, dim: Any = None, keepdim: bool = False) -> Array:
    if not x.ndim:
        return np.int64(0)
    return np.asarray(np.argmax(x, dim, keepdims=keepdim) if dim is not None or keepdim else np.argmax(x))


@interprets("argmin")
def _argmin(x: Array, dim: Any = None, keepdim: bool = False) -> Array:
    if not x.ndim:
        return np.int64(0)
    return np.asarray(np.argmin(x, dim, keepdims=keepdim) if dim is not None or keepdim else np.argmin(x))


interprets("max.default", "max")(lambda x: x.max())
interprets("min.default", "min")(lambda x: x.min())
interprets("max.other", arguments="result")(np.maximum)
interprets("min.other", arguments="result")(np.minimum)


@interprets("max.dim")
def _max_dim(x: Array, dim: int, keepdim: bool = False) -> Any:
    return (x, _argmax(x, dim, keepdim)) if not x.ndim else (x.max(dim, keepdims=keepdim), _argmax(x, dim, keepdim))


@interprets("min.dim")
def _min_dim(x: Array, dim: int, keepdim: bool = False) -> Any:
    return (x, _argmin(x, dim, keepdim)) if not x.ndim else (x.min(dim, keepdims=keepdim), _argmin(x, dim, keepdim))


@interprets("linalg_vector_norm")
def _vector_norm(x: Array, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Array:
    which = axes(x, dim)
    size = np.abs(x)
    if not x.ndim:
        return (size != 0).astype(np.float64) if ord == 0 else size
    if ord == math.inf:
        return size.max(which, keepdims=keepdim)
    if ord == -math.inf:
        return size.min(which, keepdims=keepdim)
    if ord == 0:
        return (size != 0).sum(which, keepdims=keepdim).astype(np.float64)
    top = 1.0
    return (size**ord).sum(which, keepdims=keepdim) ** (1 / ord) * top


@interprets("cumsum")
def _cumsum(x: Array, dim: int, dtype: Any = None) -> Array:
    return np.cumsum(_by_dtype(x, dtype), dim) if x.ndim else _by_dtype(x, dtype)


@interprets("cumprod")
def _cumprod(x: Array, dim: int, dtype: Any = None) -> Array:
    return np.cumprod(_by_dtype(x, dtype), dim) if x.ndim else _by_dtype(x, dtype)


def _running(x: Array, dim: int, better: Any) -> Any:
    if not x.ndim:
        return x.copy(), np.zeros((), np.int64)
    lines = np.moveaxis(x, dim, 0)
    best, where = lines.copy(), np.zeros(lines.shape, np.int64)
    for place in range(1, len(lines)):
        take = better(lines[place], best[place - 1]) | (np.isnan(lines[place]) if x.dtype.kind == "f" else False)
        if x.dtype.kind == "f":
            take &= ~np.isnan(best[place - 1]) | np.isnan(lines[place])
        best[place] = np.where(take, lines[place], best[place - 1])
        where[place] = np.where(take, place, where[place - 1])
    return np.moveaxis(best, 0, dim), np.moveaxis(where, 0, dim)


interprets("cummax")(lambda x, dim: _running(x, dim, np.greater_equal))
interprets("cummin")(lambda x, dim: _running(x, dim, np.less_equal))


@interprets("_logcumsumexp", "logcumsumexp")
def _logcumsumexp(x: Array, dim: int) -> Array:
    if not x.ndim:
        return x
    if np.iscomplexobj(x):
        top = np.where(np.isfinite(x.real), x.real, -np.inf).max(dim, keepdims=True, initial=-np.inf)
        top = np.where(np.isfinite(top), top, 0)
        return np.log(np.cumsum(np.exp(x - top), dim)) + top
    return np.logaddexp.accumulate(x, dim)


@interprets("logsumexp")
def _logsumexp(x: Array, dim: Any, keepdim: bool = False) -> Array:
    x = x.astype(np.float64) if x.dtype.kind in "biu" else x
    which = axes(x, dim)
    if x.size == 0:
        return np.log(np.exp(x).sum(which, keepdims=keepdim))
    top = x.real.max(which, keepdims=True)
    top = np.where(np.isfinite(top), top, 0)
    total = np.log(np.exp(x - top).sum(which, keepdims=True)) + top
    return total if keepdim else total.squeeze(which)


def softmax(x: Array, dim: int) -> Array:
    if not x.ndim:
        return np.ones_like(x)
    if x.size == 0:
        return x
    e = np.exp(x - x.max(dim, keepdims=True))
    return e / e.sum(dim, keepdims=True)


interprets("_softmax", arguments="result")(lambda x, dim, half_to_float: softmax(x, dim))
interprets("_log_softmax", arguments="result")(
    lambda x, dim, half_to_float: np.log(softmax(x, dim)) if not x.size else _log(x, dim)
)


def _log(x: Array, dim: int) -> Array:
    if not x.ndim:
        return np.zeros_like(x)
    top = x - x.max(dim, keepdims=True)
    return top - np.log(np.exp(top).sum(dim, keepdims=True))


interprets("_softmax_backward_data")(
    lambda g, y, dim, input_dtype: y * (g - (g * y).sum(dim if y.ndim else (), keepdims=True))
)
interprets("_log_softmax_backward_data")(
    lambda g, y, dim, input_dtype: g - np.exp(y) * g.sum(dim if y.ndim else (), keepdims=True)
)


@interprets("sort", "sort.stable")
def _sort(x: Array, *given: Any, stable: Any = None, dim: int = -1, descending: bool = False) -> Any:
    for each in given:
        if isinstance(each, bool):
            descending = each
        else:
            dim = each
    if not x.ndim:
        return x, np.zeros((), np.int64)
    if descending:
        order = np.flip(x.shape[dim] - 1 - np.argsort(np.flip(x, dim), dim, kind="stable"), dim)
    else:
        order = np.argsort(x, dim, kind="stable")
    return np.take_along_axis(x, order, dim), order.astype(np.int64)


@interprets("topk")
def _topk(x: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if not x.ndim:
        return x, np.zeros((), np.int64)
    values, order = _sort(x, dim=dim, descending=largest)
    return np.take(values, range(k), dim), np.take(order, range(k), dim)


@interprets("kthvalue")
def _kthvalue(x: Array, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    if not x.ndim:
        return x, np.zeros((), np.int64)
    values, order = _sort(x, dim=dim)
    values, order = np.take(values, [k - 1], dim), np.take(order, [k - 1], dim)
    return (values, order) if keepdim else (values.squeeze(dim), order.squeeze(dim))


def _middle(x: Array, skip: bool) -> tuple[Any, int]:
    if x.dtype.kind == "f" and np.isnan(x).any() and (not skip or np.isnan(x).all()):
        place = int(np.argmax(np.isnan(x)))
        return x[place], place
    kept = np.flatnonzero(~np.isnan(x)) if x.dtype.kind == "f" else np.arange(len(x))
    order = kept[np.argsort(x[kept], kind="stable")]
    place = int(order[(len(order) - 1) // 2])
    return x[place], place


interprets("median.default", "median")(lambda x: _middle(x.ravel(), False)[0] if x.size else np.asarray(np.nan))
interprets("nanmedian.default", "nanmedian")(lambda x: _middle(x.ravel(), True)[0] if x.size else np.asarray(np.nan))


def _median_dim(x: Array, dim: int, keepdim: bool, skip: bool) -> Any:
    if not x.ndim:
        return x, np.zeros((), np.int64)
    lines = np.moveaxis(x, dim, -1)
    found = [_middle(each, skip) for each in lines.reshape(-1, lines.shape[-1])] if x.size else []
    shape = lines.shape[:-1]
    values = np.array([each for each, _ in found], x.dtype).reshape(shape)
    places = np.array([each for _, each in found], np.int64).reshape(shape)
    return (np.expand_dims(values, dim), np.expand_dims(places, dim)) if keepdim else (values, places)


interprets("median.dim")(lambda x, dim, keepdim=False: _median_dim(x, dim, keepdim, False))
interprets("nanmedian.dim")(lambda x, dim, keepdim=False: _median_dim(x, dim, keepdim, True))


@interprets("mode")
def _mode(x: Array, dim: int = -1, keepdim: bool = False) -> Any:
    if not x.ndim:
        return x, np.zeros((), np.int64)
    lines = np.moveaxis(x, dim, -1)
    values, places = [], []
    for line in lines.reshape(-1, lines.shape[-1]):
        found, counts = np.unique(line, return_counts=True)
        values.append(found[np.argmax(counts)])
        places.append(np.flatnonzero(line == values[-1])[-1])
    a = np.array(values, x.dtype).reshape(lines.shape[:-1])
    b = np.array(places, np.int64).reshape(lines.shape[:-1])
    return (np.expand_dims(a, dim), np.expand_dims(b, dim)) if keepdim else (a, b)


interprets("count_nonzero", "count_nonzero.dim_IntList")(
    lambda x, dim=None: np.asarray(np.count_nonzero(x, axes(x, dim)), np.int64)
)


@interprets("histc")
def _histc(x: Array, bins: int = 100, min: float = 0, max: float = 0) -> Array:
    low, high = (x.min(), x.max()) if min == max and x.size else (min, max)
    if low == high:
        low, high = low - 1, high + 1
    return np.histogram(x[(x >= low) & (x <= high)].ravel(), bins, (low, high))[0].astype(x.dtype)


@interprets("histogram.bins_tensor")
def _histogram(x: Array, bins: Array, *, weight: Any = None, density: bool = False) -> Any:
    found = np.histogram(x.ravel(), bins, weights=None if weight is None else weight.ravel(), density=density)[0]
    return found.astype(np.float64), bins


@interprets("histogram.bin_ct")
def _histogram_count(x: Array, bins: int = 100, *, range: Any = None, weight: Any = None, density: bool = False) -> Any:
    low, high = range if range is not None else (x.min(), x.max()) if x.size else (0, 0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, bins + 1)
    return _histogram(x, edges, weight=weight, density=density)


@interprets("_histogramdd_bin_edges", arguments="host")
def _edges(x: Host, bins: Sequence[int], *, range: Any = None, weight: Any = None, density: bool = False) -> list[Host]:
    flat = x.array.reshape(-1, x.array.shape[-1])
    found = []
    for place, count in enumerate(bins):
        low, high = (
            (range[2 * place], range[2 * place + 1])
            if range is not None
            else (flat[:, place].min(), flat[:, place].max())
        )
        if low == high:
            low, high = low - 0.5, high + 0.5
        found.append(Host(np.linspace(low, high, count + 1), x.dtype))
    return found


@interprets("_histogramdd_from_bin_tensors")
def _histogramdd(x: Array, bins: Sequence[Array], *, weight: Any = None, density: bool = False) -> Array:
    flat = x.reshape(-1, x.shape[-1])
    weights = None if weight is None else weight.ravel()
    return np.histogramdd(flat, bins, weights=weights, density=density)[0]


@interprets("_histogramdd_from_bin_cts", arguments="host")
def _histogramdd_counts(
    x: Host, bins: Sequence[int], *, range: Any = None, weight: Any = None, density: bool = False
) -> Host:
    edges = [each.array for each in _edges(x, bins, range=range)]
    return Host(_histogramdd(x.array, edges, weight=None if weight is None else weight.array, density=density), x.dtype)


@interprets("bincount")
def _bincount(x: Array, weights: Any = None, minlength: int = 0) -> Array:
    return np.bincount(x.astype(np.int64), weights, minlength)


@interprets("allclose", arguments="host")
def _allclose(a: Host, b: Host, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> bool:
    with np.errstate(all="ignore"):
        return bool(np.allclose(a.array, b.array, rtol, atol, equal_nan))


def _batch_norm(x: Array, weight: Any, bias: Any, mean: Array, var: Array, eps: float) -> tuple[Array, Array]:
    shape = [1, -1] + [1] * (x.ndim - 2)
    inverse = 1 / np.sqrt(var + eps)
    found = (x - mean.reshape(shape)) * inverse.reshape(shape)
    found = found if weight is None else found * weight.reshape(shape)
    return found if bias is None else found + bias.reshape(shape), inverse


def _normalized(
    x: Host, weight: Any, bias: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float
) -> Any:
    """Compute batch normalization. In training, also update the running statistics in place."""
    values = x.array
    w, b = (None if each is None else each.array for each in (weight, bias))
    acc = weight.dtype if weight is not None else torch.float32 if formats.unit(x.dtype) > 1e-7 else x.dtype
    which = (0, *range(2, values.ndim))
    if not training:
        found, _ = _batch_norm(values, w, b, mean.array, var.array, eps)
        empty = Host(np.zeros(0), acc)
        return Host(found, x.dtype), empty, empty
    count = values.size // max(1, values.shape[1])
    m, v = values.mean(which), values.var(which)
    found, inverse = _batch_norm(values, w, b, m, v, eps)
    if mean is not None:
        mean.array[...] = (1 - momentum) * mean.array + momentum * m
        var.array[...] = (1 - momentum) * var.array + momentum * v * count / (count - 1)
    return Host(found, x.dtype), Host(m, acc), Host(inverse, acc)


interprets("_native_batch_norm_legit", "native_batch_norm", arguments="host")(_normalized)
interprets("_native_batch_norm_legit.no_stats", arguments="host")(
    lambda x, weight, bias, training, momentum, eps: _normalized(x, weight, bias, None, None, True, momentum, eps)
)
interprets("_native_batch_norm_legit_no_training", arguments="host")(
    lambda x, weight, bias, mean, var, momentum, eps: _normalized(x, weight, bias, mean, var, False, momentum, eps)
)


@interprets("_batch_norm_with_update", arguments="host")
def _with_update(x: Host, weight: Any, bias: Any, mean: Host, var: Host, momentum: float, eps: float) -> Any:
    reserve = Host(np.zeros(0, np.uint8), torch.uint8)
    return (*_normalized(x, weight, bias, mean, var, True, momentum, eps), reserve)


@interprets("_batch_norm_no_update", arguments="host")
def _no_update(x: Host, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float) -> Any:
    reserve = Host(np.zeros(0, np.uint8), torch.uint8)
    return (*_normalized(x, weight, bias, mean, var, False, momentum, eps), reserve)
