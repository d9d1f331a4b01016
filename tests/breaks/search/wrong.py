"""Wrong values: what a broken operator or function returns instead of its result.

The memory of a tensor on the CPU is changed directly, so that nothing but the value differs: neither its version, nor
the operators that a profiler sees.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator
from typing import Any

#: At most this many elements of a tensor are changed.
MOST = 4096
#: The bytes of the number one, for the types whose zero changes to it.
_ONE = {1: b"\x38", 2: b"\x80\x3f", 4: b"\x00\x00\x80\x3f", 8: b"\x00\x00\x00\x00\x00\x00\xf0\x3f"}


def changed(value: Any, *, every: bool) -> Any:
    """Return a wrong value in the place of a result. The memory of tensors changes in place.

    `every`: all elements of tensors and containers are wrong, otherwise the last. A value without a wrong counterpart,
    such as None, is returned as it is.
    """
    import torch

    if isinstance(value, torch.Tensor):
        _spoil(value, every=every)
        return value
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float | complex):
        return value * 2 + 1 if value == value else 0.0
    if isinstance(value, str | bytes):
        return value[::-1]
    if isinstance(value, torch.dtype):
        return torch.float64 if value != torch.float64 else torch.float32
    if isinstance(value, torch.device):
        return torch.device("meta" if value.type != "meta" else "cpu")
    if isinstance(value, dict):
        return value | {key: changed(value[key], every=every) for key in list(value)[0 if every else -1 :]}
    if isinstance(value, list | tuple):
        return _changed_items(value, every=every)
    return value


def _changed_items(value: Any, *, every: bool) -> Any:
    items = list(value)
    for place in range(len(items) - 1, -1, -1):
        before = items[place]
        items[place] = changed(before, every=every)
        if not every and (items[place] is not before or hasattr(before, "data_ptr")):
            break
    if type(value) in (list, tuple):
        return type(value)(items)
    return value._make(items) if hasattr(value, "_make") else type(value)(items)


def _spoil(tensor: Any, *, every: bool) -> None:
    import torch

    if tensor.layout != torch.strided or tensor.is_meta or not tensor.numel():
        return
    if tensor.device.type == "cpu":
        _spoil_memory(tensor, every=every)
        return
    memory = tensor.data  # has a version of its own
    if not every:
        memory = memory[(-1,) * memory.dim()]
    if memory.dtype is torch.bool:
        memory.logical_not_()
    else:
        memory.add_(1)


def _spoil_memory(tensor: Any, *, every: bool) -> None:
    import torch

    start = tensor.data_ptr()
    if not start:
        return
    size = tensor.element_size() // (2 if tensor.is_complex() else 1)
    real = tensor.is_floating_point() or tensor.is_complex()
    one = b"\x00\x3c" if tensor.dtype is torch.float16 else _ONE[size]
    for offset in _offsets(tensor.shape, tensor.stride(), every=every):
        place = (ctypes.c_ubyte * size).from_address(start + offset * tensor.element_size())
        if not real:
            place[0] ^= 1
        elif any(place):
            place[size - 1] ^= 1 if size > 1 else 8
        else:
            place[:] = one


def _offsets(shape: tuple[int, ...], strides: tuple[int, ...], *, every: bool) -> Iterator[int]:
    """Yield the places in the storage of the last element, or of every one."""
    if not every:
        yield sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        return
    distinct = [size if stride else 1 for size, stride in zip(shape, strides, strict=True)]
    for index in itertools.islice(itertools.product(*map(range, distinct)), MOST):
        yield sum(place * stride for place, stride in zip(index, strides, strict=True))
