"""Gathers, scatters, searches and sets."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch

from .formats import Array
from .interpreter import Host, interprets


def _places(index: Array, dim: int) -> tuple[Any, ...]:
    """Return NumPy's index for `gather` and `scatter`: the element's own place, and `index` in `dim`."""
    grid = list(np.indices(index.shape, sparse=True))
    grid[dim % index.ndim] = index
    return tuple(grid)


@interprets("gather")
def _gather(x: Array, dim: int, index: Array, sparse_grad: bool = False) -> Array:
    if not x.ndim or not index.ndim:
        return x.reshape(-1)[index.reshape(-1)].reshape(index.shape)
    index = index.astype(np.int64)
    if index.size == 0:
        return np.zeros(index.shape, x.dtype)
    return x[_places(index, dim)]


_UFUNCS = {
    "add": np.add,
    "sum": np.add,
    "multiply": np.multiply,
    "prod": np.multiply,
    "amax": np.maximum,
    "amin": np.minimum,
}
_NEUTRAL = {"sum": 0, "prod": 1}


def _scattered(x: Array, dim: int, index: Array, source: Any, reduce: str | None = None) -> Array:
    found = np.atleast_1d(x).copy()
    index = np.atleast_1d(index)
    source = np.asarray(source, x.dtype)
    source = np.atleast_1d(source)[tuple(slice(size) for size in index.shape)] if source.ndim else source
    if index.size == 0:
        return x.copy()
    if reduce is None:
        found[_places(index, dim)] = source
    else:
        _UFUNCS[reduce].at(found, _places(index, dim), source)
    return found.reshape(x.shape)


@interprets("scatter", "scatter.src", "scatter.value")
def _scatter(x: Array, dim: int, index: Array, source: Any, *, reduce: str | None = None) -> Array:
    return _scattered(x, dim, index, source, reduce)


@interprets("scatter_add")
def _scatter_add(x: Array, dim: int, index: Array, source: Any) -> Array:
    return _scattered(x, dim, index, source, "add")


def _reduced(x: Array, source: Array, places: Any, reduce: str, include_self: bool) -> Array:
    found = x.copy()
    op = "sum" if reduce == "mean" else reduce
    touched = np.zeros(x.shape, bool)
    touched[places] = True
    if not include_self:
        lowest = {"amax": -np.inf, "amin": np.inf}.get(op)
        if lowest is not None and x.dtype.kind in "iu":
            lowest = np.iinfo(x.dtype).min if op == "amax" else np.iinfo(x.dtype).max
        if lowest is not None and x.dtype.kind == "b":
            lowest = op == "amin"
        found[touched] = _NEUTRAL.get(op, lowest)
    _UFUNCS[op].at(found, places, source)
    if reduce == "mean":
        count = np.full(x.shape, int(include_self), np.int64)
        np.add.at(count, places, 1)
        count[~touched] = 1
        found = found / count if found.dtype.kind in "fc" else np.floor_divide(found, count)
    return found.astype(x.dtype)


@interprets("scatter_reduce.two")
def _scatter_reduce(
    x: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True
) -> Array:
    flat, index, source = np.atleast_1d(x), np.atleast_1d(index), np.atleast_1d(source)
    if index.size == 0:
        return x.copy()
    source = source[tuple(slice(size) for size in index.shape)]
    return _reduced(flat, source, _places(index, dim), reduce, include_self).reshape(x.shape)


@interprets("index_reduce")
def _index_reduce(x: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True) -> Array:
    if not x.ndim:
        return _reduced(x.reshape(1), source.reshape(1), (index.reshape(1),), reduce, include_self).reshape(())
    places = (slice(None),) * (dim % x.ndim) + (index.reshape(-1),)
    return _reduced(x, source, places, reduce, include_self)


@interprets("index_add")
def _index_add(x: Array, dim: int, index: Array, source: Array, *, alpha: Any = 1) -> Array:
    found = np.atleast_1d(x).copy()
    source = np.atleast_1d(source)
    scaled = source if alpha == 1 else source * np.asarray(alpha).astype(found.dtype)
    np.add.at(found, (slice(None),) * (dim % found.ndim) + (np.atleast_1d(index),), scaled)
    return found.reshape(x.shape)


@interprets("index_copy")
def _index_copy(x: Array, dim: int, index: Array, source: Array) -> Array:
    found = np.atleast_1d(x).copy()
    found[(slice(None),) * (dim % found.ndim) + (np.atleast_1d(index),)] = np.atleast_1d(source)
    return found.reshape(x.shape)


@interprets("index_fill")
def _index_fill(x: Array, dim: int, index: Array, value: Any) -> Array:
    found = np.atleast_1d(x).copy()
    found[(slice(None),) * (dim % found.ndim) + (np.atleast_1d(index),)] = value
    return found.reshape(x.shape)


@interprets("index_select")
def _index_select(x: Array, dim: int, index: Array) -> Array:
    if not x.ndim:
        return x.copy()
    return np.take(x, np.atleast_1d(index), dim)


def _index(indices: Any, x: Array) -> tuple[Any, ...]:
    """Return NumPy's index for torch's, in which None selects all of a dimension."""
    listed: list[Any] = []
    for each in indices:
        if each is None:
            listed.append(slice(None))
        elif each.dtype == np.bool_ or (each.dtype == np.uint8):
            listed.extend(np.nonzero(each))
        else:
            listed.append(each)
    return tuple(listed)


def _front(x: Array, index: tuple[Any, ...]) -> tuple[list[int], bool]:
    arrays = [place for place, each in enumerate(index) if not isinstance(each, slice)]
    return arrays, bool(arrays) and arrays != list(range(arrays[0], arrays[-1] + 1))


@interprets("index.Tensor", "index", "_unsafe_index")
def _get(x: Array, indices: Any) -> Array:
    return x[_index(indices, x)]


@interprets("index_put", "_unsafe_index_put")
def _put(x: Array, indices: Any, values: Any, accumulate: bool = False) -> Array:
    found = x.copy()
    index = _index(indices, x)
    if accumulate:
        np.add.at(found, index, values)
    else:
        found[index] = values
    return found


@interprets("_index_put_impl_", "index_put_", arguments="host")
def _put_(x: Host, indices: Any, values: Any, accumulate: bool = False, unsafe: bool = False) -> Host:
    given = [None if each is None else each.array for each in indices]
    x.array[...] = _put(x.array, given, values.array, accumulate)
    return x


@interprets("take")
def _take(x: Array, index: Array) -> Array:
    return x.reshape(-1)[index]


@interprets("put")
def _put_flat(x: Array, index: Array, source: Array, accumulate: bool = False) -> Array:
    found = x.copy().reshape(-1)
    if accumulate:
        np.add.at(found, index.reshape(-1), source.reshape(-1))
    else:
        found[index.reshape(-1)] = source.reshape(-1)
    return found.reshape(x.shape)


interprets("masked_select")(lambda x, mask: np.broadcast_arrays(x, mask)[0][np.broadcast_arrays(x, mask)[1]])
interprets("masked_fill", arguments="raw")(lambda x, mask, value: np.where(mask, np.asarray(value).astype(x.dtype), x))
interprets("nonzero")(lambda x: np.argwhere(x).astype(np.int64))


@interprets("masked_scatter")
def _masked_scatter(x: Array, mask: Array, source: Array) -> Array:
    x, mask = np.broadcast_arrays(x, mask)
    found = x.copy()
    found[mask] = source.reshape(-1)[: int(mask.sum())]
    return found


@interprets("nonzero_static")
def _nonzero_static(x: Array, *, size: int, fill_value: int = -1) -> Array:
    found = np.full((size, x.ndim), fill_value, np.int64)
    rows = np.argwhere(x)[:size]
    found[: len(rows)] = rows
    return found


@interprets("searchsorted", "searchsorted.Tensor", "searchsorted.Scalar")
def _searchsorted(
    edges: Array, x: Any, *, out_int32: bool = False, right: bool = False, side: Any = None, sorter: Any = None
) -> Array:
    right = right or side == "right"
    way = "right" if right else "left"
    x = np.asarray(x)
    if sorter is not None:
        edges = np.take_along_axis(edges, sorter, -1)
    if edges.ndim == 1:
        return np.searchsorted(edges, x, way)
    rows = [
        np.searchsorted(e, v, way)
        for e, v in zip(edges.reshape(-1, edges.shape[-1]), x.reshape(-1, x.shape[-1]), strict=True)
    ]
    return np.stack(rows).reshape(x.shape)


@interprets("bucketize", "bucketize.Tensor")
def _bucketize(x: Any, edges: Array, *, out_int32: bool = False, right: bool = False) -> Array:
    return np.searchsorted(edges, np.asarray(x), "right" if right else "left")


@interprets("isin")
def _isin(a: Any, b: Any, *, assume_unique: bool = False, invert: bool = False) -> Array:
    return np.isin(a, b, invert=invert)


@interprets("_unique2", "unique_dim", arguments="host")
def _unique2(x: Host, sorted: Any = True, return_inverse: bool = False, return_counts: bool = False, *more: Any) -> Any:
    dim = None
    if more:  # unique_dim(x, dim, sorted, return_inverse, return_counts)
        dim = sorted
    if isinstance(sorted, int) and not isinstance(sorted, bool):
        dim = sorted
    values, inverse, counts = np.unique(x.array, return_inverse=True, return_counts=True, axis=dim)
    shape = x.shape if dim is None else (x.shape[dim],)
    return _found(values, inverse.reshape(shape), counts, x.dtype)


def _found(values: Array, inverse: Array, counts: Array, dtype: torch.dtype) -> tuple[Host, Host, Host]:
    return Host(values, dtype), Host(inverse.astype(np.int64), torch.int64), Host(counts.astype(np.int64), torch.int64)


@interprets("unique_consecutive", "unique_dim_consecutive", arguments="host")
def _unique_consecutive(
    x: Host, *given: Any, return_inverse: bool = False, return_counts: bool = False, dim: Any = None
) -> Any:
    plain = [each for each in given if isinstance(each, int) and not isinstance(each, bool)]
    dim = plain[0] if plain else dim
    rows = x.array.reshape(-1) if dim is None else np.moveaxis(x.array, dim, 0)
    flat = rows.reshape(len(rows), -1)
    new = np.r_[True, (flat[1:] != flat[:-1]).any(1)] if len(rows) else np.zeros(0, bool)
    inverse = np.cumsum(new) - 1
    counts = np.bincount(inverse) if len(rows) else np.zeros(0, np.int64)
    values = rows[new] if dim is None else np.moveaxis(rows[new], 0, dim)
    return _found(np.ascontiguousarray(values), inverse.reshape(x.shape) if dim is None else inverse, counts, x.dtype)


@interprets("repeat_interleave.Tensor")
def _repeat_interleave(repeats: Array, *, output_size: Any = None) -> Array:
    return np.repeat(np.arange(len(repeats)), repeats)


@interprets("embedding")
def _embedding(weight: Array, indices: Array, *_: Any, **__: Any) -> Array:
    return weight[indices]


@interprets("embedding_dense_backward")
def _embedding_backward(grad: Array, indices: Array, rows: int, padding: int, scale: bool) -> Array:
    found = np.zeros((rows, grad.shape[-1]), grad.dtype)
    flat = indices.reshape(-1)
    counts = np.bincount(flat, minlength=rows) if scale else np.ones(rows)
    kept = flat != padding
    np.add.at(found, flat[kept], grad.reshape(-1, grad.shape[-1])[kept] / counts[flat[kept], None])
    return found


@interprets("_embedding_bag", "_embedding_bag_forward_only", arguments="host")
def _embedding_bag(
    weight: Host, indices: Host, offsets: Host, scale_grad_by_freq: bool = False, mode: int = 0, sparse: bool = False,
    per_sample_weights: Any = None, include_last_offset: bool = False, padding_idx: int = -1,
) -> Any:  # fmt: skip
    w, flat = weight.array, indices.array.reshape(-1)
    starts = offsets.array.tolist()
    if not include_last_offset:
        starts = [*starts, len(flat)]
    rows, largest = [], []
    for start, end in itertools.pairwise(starts):
        taken = [place for place in range(start, end) if flat[place] != padding_idx]
        picked = w[flat[taken]] if taken else np.zeros((0, w.shape[1]))
        if per_sample_weights is not None:
            picked = picked * per_sample_weights.array[taken][:, None]
        if mode == 2:
            rows.append(picked.max(0) if len(picked) else np.zeros(w.shape[1]))
            largest.append(flat[taken][picked.argmax(0)] if len(picked) else np.zeros(w.shape[1], np.int64))
        else:
            rows.append(picked.sum(0) / (max(1, len(picked)) if mode == 1 else 1))
    found = np.stack(rows) if rows else np.zeros((0, w.shape[1]))
    empty = Host(np.zeros(0, np.int64), torch.int64)
    places = Host(np.stack(largest), torch.int64) if largest else empty
    return Host(found, weight.dtype), empty, empty, places


@interprets("segment_reduce")
def _segment_reduce(
    x: Array, reduce: str, *, lengths: Any = None, indices: Any = None, offsets: Any = None, axis: int = 0,
    unsafe: bool = False, initial: Any = None,
) -> Array:  # fmt: skip
    neutral = {"sum": 0.0, "mean": np.nan, "max": -np.inf, "min": np.inf, "prod": 1.0}[reduce]
    lead = x.shape[:axis]
    bounds = (
        offsets
        if offsets is not None
        else np.concatenate([np.zeros((*lengths.shape[:-1], 1), np.int64), np.cumsum(lengths, -1)], -1)
    )
    found = np.empty((*lead, bounds.shape[-1] - 1, *x.shape[axis + 1 :]), x.dtype)
    for place in np.ndindex(*lead):
        edges = bounds[place]
        for segment, (start, end) in enumerate(itertools.pairwise(edges)):
            part = x[place][start:end]
            if not len(part):
                value = initial if initial is not None else neutral
            elif reduce == "mean":
                value = (part.sum(0) + (initial or 0)) / len(part)
            else:
                function = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}[reduce]
                value = function.reduce(part, 0)
                value = value if initial is None else function(value, initial)
            found[(*place, segment)] = value
    return found


@interprets("hash_tensor")
def _hash_tensor(x: Array, dim: Any = (), *, keepdim: bool = False, mode: int = 0) -> Array:
    from .reductions import axes

    bits = x.astype(np.float64).view(np.uint64) if x.dtype.kind == "f" else x.astype(np.int64).view(np.uint64)
    found = bits
    for each in sorted(axes(x, dim), reverse=True):
        found = np.bitwise_xor.reduce(found, each, keepdims=keepdim)
    return found


@interprets("embedding_renorm")
def _embedding_renorm(weight: Array, indices: Array, max_norm: float, norm_type: float) -> Array:
    found = weight.copy()
    rows = np.unique(indices)
    norms = (np.abs(weight[rows]) ** norm_type).sum(1) ** (1 / norm_type)
    found[rows] *= np.where(norms > max_norm, max_norm / (norms + 1e-7), 1)[:, None]
    return found
