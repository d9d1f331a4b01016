"""Views, copies, new tensors: operators that move values and do not change them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from . import formats
from .formats import Array
from .interpreter import Host, interprets


def _root(array: Array) -> Array:
    while True:
        base = array.base
        if not isinstance(base, np.ndarray):
            base = getattr(base, "base", None)  # `as_strided` of NumPy inserts an object between
        if not isinstance(base, np.ndarray) or base.dtype != array.dtype:
            return array
        array = base


@interprets("as_strided", "as_strided_copy", "prims::as_strided")
def _as_strided(x: Array, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Array:
    root = _root(x)
    base = root.__array_interface__["data"][0]
    offset = x.__array_interface__["data"][0] - base if storage_offset is None else storage_offset * x.itemsize
    flat = (
        np.ndarray((max(0, root.nbytes - offset) // x.itemsize,), x.dtype, root, offset)
        if root.flags.c_contiguous
        else x
    )
    return np.lib.stride_tricks.as_strided(flat, tuple(size), tuple(each * x.itemsize for each in stride))


@interprets("view", "reshape", "_unsafe_view", "_reshape_alias", "view_copy", "_reshape_copy")
def _view(x: Array, size: Any, stride: Any = None) -> Any:
    if isinstance(size, torch.dtype):
        return Host(np.ascontiguousarray(x).view(formats.wide(size)), size)
    return x.reshape(tuple(size))


interprets("permute", "permute_copy")(lambda x, dims: np.transpose(x, tuple(dims)) if x.ndim else x)
interprets("transpose", "transpose_copy", "transpose.int")(lambda x, a, b: np.swapaxes(x, a, b) if x.ndim else x)
interprets("t", "t_copy")(lambda x: x.T)
interprets("expand", "expand_copy")(lambda x, size, implicit=False: _expand(x, size))
interprets("unsqueeze", "unsqueeze_copy")(lambda x, dim: np.expand_dims(x, dim if dim >= 0 else dim + x.ndim + 1))
interprets("view_as_real", "view_as_real_copy")(lambda x: x.reshape(*x.shape,
1).view(np.float64) if x.flags.c_contiguous
                                                else np.stack([x.real, x.imag], -1))  # fmt: skip
interprets("view_as_complex", "view_as_complex_copy")(lambda x: x[..., 0] + 1j * x[..., 1])


def _expand(x: Array, size: Sequence[int]) -> Array:
    lead = len(size) - x.ndim
    wanted = [x.shape[place - lead] if each == -1 else each for place, each in enumerate(size)]
    return np.lib.stride_tricks.as_strided(
        x, tuple(wanted),
        [0] * lead + [stride if have == want else 0 for have, want, stride in zip(x.shape, wanted[lead:], x.strides,
        strict=True)],
    )  # fmt: skip


@interprets("squeeze", "squeeze_copy", "squeeze.dim", "squeeze.dims")
def _squeeze(x: Array, dim: Any = None) -> Array:
    if not x.ndim:
        return x
    dims = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    drop = tuple(each % x.ndim for each in dims if x.shape[each] == 1)
    return np.squeeze(x, drop)


@interprets("select", "select_copy", "select.int")
def _select(x: Array, dim: int, index: int) -> Array:
    return x[(slice(None),) * (dim % x.ndim) + (index,)]


@interprets("slice", "slice_copy")
def _slice(x: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Array:
    return x[(slice(None),) * (dim % x.ndim) + (slice(start, end, step),)]


@interprets("diagonal", "diagonal_copy")
def _diagonal(x: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    view = np.diagonal(x, offset, dim1, dim2)
    view.flags.writeable = True
    return view


@interprets("unfold", "unfold_copy")
def _unfold(x: Array, dimension: int, size: int, step: int) -> Array:
    if not x.ndim:
        return x.reshape(1)[:size]
    windows = np.lib.stride_tricks.sliding_window_view(x, size, dimension, writeable=True)
    return windows[(slice(None),) * (dimension % x.ndim) + (slice(None, None, step),)]


@interprets("split.Tensor", "unsafe_split.Tensor", "split_copy.Tensor")
def _split(x: Array, size: int, dim: int = 0) -> list[Array]:
    parts = range(0, max(1, x.shape[dim]), max(1, size))
    return [_slice(x, dim, place, place + size) for place in parts]


@interprets("split_with_sizes", "unsafe_split_with_sizes", "split_with_sizes_copy")
def _split_with_sizes(x: Array, sizes: Sequence[int], dim: int = 0) -> list[Array]:
    ends = np.cumsum(sizes).tolist()
    return [_slice(x, dim, end - size, end) for size, end in zip(sizes, ends, strict=True)]


@interprets("unbind", "unbind_copy")
def _unbind(x: Array, dim: int = 0) -> list[Array]:
    return [_select(x, dim, place) for place in range(x.shape[dim])]


@interprets("cat", "concat", arguments="result")
def _cat(arrays: Sequence[Array], dim: int = 0) -> Array:
    kept = [each for each in arrays if each.shape != (0,)]
    return np.concatenate(kept, dim) if kept else arrays[0].copy()


interprets("stack", "_stack", arguments="result")(lambda arrays, dim=0: np.stack(arrays, dim))
interprets("flip")(lambda x, dims: np.flip(x, tuple(dims)).copy())
interprets("roll")(
    lambda x, shifts, dims=(): np.roll(x, tuple(shifts) if dims else shifts[0], tuple(dims) if dims else None)
)
interprets("repeat")(lambda x, repeats: np.tile(x, tuple(repeats)))
interprets("tril")(lambda x, diagonal=0: np.tril(x, diagonal))
interprets("triu")(lambda x, diagonal=0: np.triu(x, diagonal))


@interprets("constant_pad_nd")
def _pad(x: Array, pad: Sequence[int], value: Any = 0) -> Array:
    before = [0] * x.ndim
    after = [0] * x.ndim
    for place in range(len(pad) // 2):
        before[-1 - place], after[-1 - place] = pad[2 * place], pad[2 * place + 1]
    x = x[
        tuple(slice(max(0, -low), size - max(0, -high)) for low, high, size in zip(before, after, x.shape, strict=True))
    ]
    wider = [(max(0, low), max(0, high)) for low, high in zip(before, after, strict=True)]
    return np.pad(x, wider, constant_values=value)


@interprets("copy")
def _copy(x: Array, source: Any, non_blocking: bool = False) -> Any:
    return np.broadcast_to(np.asarray(source).real if x.dtype.kind != "c" else source, x.shape).astype(x.dtype)


def _cast(x: Array, dtype: torch.dtype) -> Array:
    wanted = formats.wide(dtype)
    if wanted.kind != "c" and x.dtype.kind == "c":
        x = x.real
    if wanted.kind in "iu" and x.dtype.kind == "f":
        x = np.trunc(x)
        return x.astype(np.int64).astype(wanted) if wanted != np.uint64 else x.astype(np.uint64)
    return x.astype(wanted)


@interprets("_to_copy", arguments="host")
def _to_copy(x: Host, *, dtype: torch.dtype | None = None, **others: Any) -> Host:
    return Host(_cast(x.array, dtype or x.dtype), dtype or x.dtype)


@interprets("prims::convert_element_type", arguments="host")
def _convert(x: Host, dtype: torch.dtype) -> Host:
    return Host(_cast(x.array, dtype), dtype)


@interprets("copy_", arguments="host")
def _copy_(x: Host, source: Host, non_blocking: bool = False) -> Host:
    x.array[...] = np.broadcast_to(_cast(source.array, x.dtype), x.array.shape)
    return x


@interprets("_local_scalar_dense", arguments="host")
def _scalar(x: Host) -> Any:
    return x.array.reshape(()).item()


@interprets("equal", arguments="host")
def _equal(a: Host, b: Host) -> bool:
    return bool(a.array.shape == b.array.shape and (a.array == b.array).all())


@interprets("_has_same_storage_numel", arguments="host")
def _has_same_storage_numel(a: Host, b: Host) -> bool:
    return True


@interprets("is_same_size", arguments="host")
def _is_same_size(a: Host, b: Host) -> bool:
    return a.shape == b.shape


def _new(shape: Sequence[int], value: Any, dtype: torch.dtype | None) -> Host:
    dtype = dtype or torch.get_default_dtype()
    return Host(np.full(tuple(shape), np.asarray(value).astype(formats.wide(dtype))), dtype)


@interprets("empty", "zeros", "empty_permuted", arguments="host")
def _zeros(size: Sequence[int], *_: Any, dtype: torch.dtype | None = None, **__: Any) -> Host:
    return _new(size, 0, dtype)


@interprets("ones", arguments="host")
def _ones(size: Sequence[int], dtype: torch.dtype | None = None, **_: Any) -> Host:
    return _new(size, 1, dtype)


@interprets("full", arguments="host")
def _full(size: Sequence[int], value: Any, dtype: torch.dtype | None = None, **_: Any) -> Host:
    kinds = {bool: torch.bool, int: torch.int64}
    default = torch.complex64 if isinstance(value, complex) else kinds.get(type(value))
    return _new(size, value, dtype or default)


@interprets("scalar_tensor", arguments="host")
def _scalar_tensor(value: Any, dtype: torch.dtype | None = None, **_: Any) -> Host:
    return _new((), value, dtype)


@interprets("empty_strided", arguments="host")
def _empty_strided(size: Sequence[int], stride: Sequence[int], dtype: torch.dtype | None = None, **_: Any) -> Host:
    dtype = dtype or torch.get_default_dtype()
    extent = 1 + sum((count - 1) * step for count, step in zip(size, stride, strict=True)) if all(size) else 0
    flat = np.zeros(max(1, extent), formats.wide(dtype))
    steps = [each * flat.itemsize for each in stride]
    return Host(np.lib.stride_tricks.as_strided(flat, tuple(size), steps), dtype)


@interprets("new_empty", "new_zeros", arguments="host")
def _new_zeros(x: Host, size: Sequence[int], dtype: torch.dtype | None = None, **_: Any) -> Host:
    return _new(size, 0, dtype or x.dtype)


@interprets("_new_zeros_with_same_feature_meta", arguments="host")
def _new_zeros_of_the_other_shape(x: Host, other: Host, **_: Any) -> Host:
    """Return a tangent of zeros for `other`, with the type of `x`."""
    return _new(other.shape, 0, x.dtype)


@interprets("new_empty_strided", arguments="host")
def _new_empty_strided(x: Host, size: Any, stride: Any, dtype: torch.dtype | None = None, **_: Any) -> Host:
    return _empty_strided(size, stride, dtype=dtype or x.dtype)


interprets("new_ones", arguments="host")(lambda x, size, dtype=None, **_: _new(size, 1, dtype or x.dtype))
interprets("new_full", arguments="host")(lambda x, size, value, dtype=None, **_: _new(size, value, dtype or x.dtype))
interprets("empty_like", "zeros_like", arguments="host")(lambda x, dtype=None, **_: _new(x.shape, 0, dtype or x.dtype))
interprets("ones_like", arguments="host")(lambda x, dtype=None, **_: _new(x.shape, 1, dtype or x.dtype))
interprets("full_like", arguments="host")(lambda x, value, dtype=None, **_: _new(x.shape, value, dtype or x.dtype))
interprets("fill", "fill.Tensor", "fill.Scalar")(lambda x, value: np.full(x.shape, value).astype(x.dtype))
interprets("zero")(np.zeros_like)


@interprets("zero_", arguments="host")
def _zero_(x: Host) -> Host:
    x.array[...] = 0
    return x


@interprets("arange", "arange.start", "arange.start_step", arguments="host")
def _arange(*bounds: Any, dtype: torch.dtype | None = None, **_: Any) -> Host:
    start, end, step = {1: (0, *bounds, 1), 2: (*bounds, 1)}.get(len(bounds), bounds)
    whole = all(isinstance(each, int) for each in (start, end, step))
    dtype = dtype or (torch.int64 if whole else torch.get_default_dtype())
    if whole or not dtype.is_floating_point:
        count = math.ceil((end - start) / step) if not whole else -((start - end) // step)
        values = np.asarray(start).astype(np.int64) + np.arange(max(0, count), dtype=np.int64) * np.asarray(
            step
        ).astype(np.int64)
        return Host(values.astype(formats.wide(dtype)), dtype)
    count = max(0, math.ceil((end - start) / step))
    return Host(np.asarray(start + np.arange(count) * step, formats.wide(dtype)), dtype)


def _value(number: Any) -> Any:
    return number.array.item() if isinstance(number, Host) else number


def _ends(start: Any, end: Any, dtype: torch.dtype | None) -> tuple[Any, Any, torch.dtype]:
    """Return the first and the last element of a range of `dtype`, and its type, which they decide if it is None."""
    start, end = _value(start), _value(end)
    complex_ = isinstance(start, complex) or isinstance(end, complex)
    dtype = dtype or (torch.complex64 if complex_ else torch.get_default_dtype())
    if not dtype.is_floating_point and not dtype.is_complex:
        start, end = int(start), int(end)
    return start, end, dtype


@interprets("linspace", "linspace.Tensor_Tensor", "linspace.Tensor_Scalar", "linspace.Scalar_Tensor", arguments="host")
def _linspace(start: Any, end: Any, steps: int, dtype: torch.dtype | None = None, **_: Any) -> Host:
    start, end, dtype = _ends(start, end, dtype)
    values = np.linspace(start, end, steps)
    return Host(_cast(values, dtype), dtype)


@interprets("logspace", "logspace.Tensor_Tensor", "logspace.Tensor_Scalar", "logspace.Scalar_Tensor", arguments="host")
def _logspace(start: Any, end: Any, steps: int, base: float = 10.0, dtype: torch.dtype | None = None, **_: Any) -> Host:
    complex_ = any(isinstance(_value(each), complex) for each in (start, end))
    start, end, dtype = _ends(start, end, dtype)
    with np.errstate(all="ignore"):
        values = np.power(base if base >= 0 and not complex_ else complex(base), np.linspace(start, end, steps))
    return Host(_cast(values, dtype), dtype)


@interprets("eye", "eye.m", arguments="host")
def _eye(n: int, m: Any = None, dtype: torch.dtype | None = None, **_: Any) -> Host:
    dtype = dtype or torch.get_default_dtype()
    return Host(np.eye(n, m, dtype=formats.wide(dtype)), dtype)


@interprets("tril_indices", arguments="host")
def _tril_indices(row: int, col: int, offset: int = 0, dtype: torch.dtype | None = None, **_: Any) -> Host:
    dtype = dtype or torch.int64
    return Host(np.stack(np.tril_indices(row, offset, col)).astype(formats.wide(dtype)), dtype)


@interprets("triu_indices", arguments="host")
def _triu_indices(row: int, col: int, offset: int = 0, dtype: torch.dtype | None = None, **_: Any) -> Host:
    dtype = dtype or torch.int64
    return Host(np.stack(np.triu_indices(row, offset, col)).astype(formats.wide(dtype)), dtype)


@interprets("prims::broadcast_in_dim")
def _broadcast_in_dim(x: Array, shape: Sequence[int], dims: Sequence[int]) -> Array:
    full = [1] * len(shape)
    for have, place in zip(x.shape, dims, strict=True):
        full[place] = have
    return np.broadcast_to(x.reshape(full), tuple(shape)).copy()


interprets("prims::view_of")(lambda x: x)
interprets("prims::collapse_view")(lambda x, start, end: x.reshape(*x.shape[:start], -1, *x.shape[end + 1 :]))
interprets("prims::iota", arguments="host")(
    lambda length, *, start, step, dtype, **_: Host(
        (start + step * np.arange(length)).astype(formats.wide(dtype)), dtype
    )
)


interprets("prims::copy_to", arguments="host")(_copy_)


@interprets("prims::as_strided_scatter", "as_strided_scatter")
def _as_strided_scatter(x: Array, source: Array, size: Any, stride: Any, storage_offset: int | None = None) -> Array:
    found = x.copy()
    _as_strided(found, size, stride, storage_offset or 0)[...] = source
    return found
