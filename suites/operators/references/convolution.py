"""Convolutions of any number of dimensions and their gradients, by the sum of their definition."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .formats import Array
from .interpreter import interprets


def _all(values: Sequence[int], count: int) -> list[int]:
    return list(values) * count if len(values) == 1 else list(values)


def _taps(
    kernel: Sequence[int], stride: Any, dilation: Any, out: Sequence[int]
) -> Iterator[tuple[Any, tuple[slice, ...]]]:
    """Yield each place of the kernel, and the elements of the padded input by which it is multiplied."""
    for place in itertools.product(*map(range, kernel)):
        yield (
            place,
            tuple(
                slice(p * d, p * d + (count - 1) * s + 1, s)
                for p, s, d, count in zip(place, stride, dilation, out, strict=True)
            ),
        )


def _padded(x: Array, padding: Sequence[int]) -> Array:
    return np.pad(x, [(0, 0), (0, 0), *((each, each) for each in padding)])


def _size(x: Sequence[int], kernel: Any, stride: Any, padding: Any, dilation: Any) -> list[int]:
    return [
        (count + 2 * p - d * (k - 1) - 1) // s + 1
        for count, k, s, p, d in zip(x, kernel, stride, padding, dilation, strict=True)
    ]


def _flat(x: Array) -> Array:
    return x.reshape(*x.shape[:2], -1) if x.size else np.zeros((*x.shape[:2], 0), x.dtype)


def correlate(x: Array, w: Array, stride: Any, padding: Any, dilation: Any, groups: int) -> Array:
    """Return the convolution of x (N, C, ...) with w (O, C / groups, ...)."""
    kernel = w.shape[2:]
    out = _size(x.shape[2:], kernel, stride, padding, dilation)
    x = _padded(x, padding)
    found = np.zeros((x.shape[0], w.shape[0], *out), np.result_type(x, w))
    c, o = x.shape[1] // groups, w.shape[0] // groups
    for group in range(groups):
        for place, window in _taps(kernel, stride, dilation, out):
            part = x[(slice(None), slice(group * c, (group + 1) * c), *window)]
            weight = w[(slice(group * o, (group + 1) * o), slice(None), *place)]
            found[:, group * o : (group + 1) * o] += np.einsum("oc,nc...->no...", weight, part)
    return found


def input_gradient(grad: Array, w: Array, size: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Array:
    """Return the gradient by the input, of spatial `size`. It is the transposed convolution of `grad`."""
    kernel = w.shape[2:]
    full = [count + 2 * p for count, p in zip(size, padding, strict=True)]
    c, o = w.shape[1], w.shape[0] // groups
    found = np.zeros((grad.shape[0], c * groups, *full), np.result_type(grad, w))
    for group in range(groups):
        for place, window in _taps(kernel, stride, dilation, grad.shape[2:]):
            weight = w[(slice(group * o, (group + 1) * o), slice(None), *place)]
            part = np.einsum("oc,no...->nc...", weight, grad[:, group * o : (group + 1) * o])
            found[(slice(None), slice(group * c, (group + 1) * c), *window)] += part
    inner = tuple(slice(p, p + count) for p, count in zip(padding, size, strict=True))
    return found[(slice(None), slice(None), *inner)]


def weight_gradient(x: Array, grad: Array, kernel: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Array:
    """Return the gradient by the weight."""
    x = _padded(x, padding)
    c, o = x.shape[1] // groups, grad.shape[1] // groups
    found = np.zeros((grad.shape[1], c, *kernel), np.result_type(x, grad))
    for group in range(groups):
        for place, window in _taps(kernel, stride, dilation, grad.shape[2:]):
            part = x[(slice(None), slice(group * c, (group + 1) * c), *window)]
            part_grad = grad[:, group * o : (group + 1) * o]
            found[(slice(group * o, (group + 1) * o), slice(None), *place)] = np.einsum(
                "nop,ncp->oc", _flat(part_grad), _flat(part)
            )
    return found


@interprets("convolution", "_convolution", arguments="raw")
def _convolution(
    x: Array, w: Array, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool, output_padding: Any,
    groups: int, *_: Any,
) -> Array:  # fmt: skip
    count = w.ndim - 2
    stride, padding, dilation, output_padding = (
        _all(each, count) for each in (stride, padding, dilation, output_padding)
    )
    single = x.ndim == count + 1
    x = x[None] if single else x
    if transposed:
        size = [
            (have - 1) * s - 2 * p + d * (k - 1) + more + 1
            for have, s, p, d, k, more in zip(
                x.shape[2:], stride, padding, dilation, w.shape[2:], output_padding, strict=True
            )
        ]
        # With an output padding, the window of the last element may end before the padded output does.
        found = input_gradient(x, w, size, stride, padding, dilation, groups)
    else:
        found = correlate(x, w, stride, padding, dilation, groups)
    if bias is not None:
        found = found + bias.reshape(1, -1, *[1] * count)
    return found[0] if single else found


@interprets("convolution_backward")
def _convolution_backward(
    grad: Array, x: Array, w: Array, bias_sizes: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    output_padding: Any, groups: int, mask: Sequence[bool],
) -> Any:  # fmt: skip
    count = w.ndim - 2
    stride, padding, dilation = (_all(each, count) for each in (stride, padding, dilation))
    kernel = w.shape[2:]
    if transposed:
        dx = correlate(grad, w, stride, padding, dilation, groups) if mask[0] else None
        if dx is not None:  # an output padding beyond the stride has room for more elements
            dx = dx[(..., *map(slice, x.shape[2:]))]
        dw = weight_gradient(grad, x, kernel, stride, padding, dilation, groups) if mask[1] else None
    else:
        dx = input_gradient(grad, w, x.shape[2:], stride, padding, dilation, groups) if mask[0] else None
        dw = weight_gradient(x, grad, kernel, stride, padding, dilation, groups) if mask[1] else None
    db = grad.sum((0, *range(2, grad.ndim))) if mask[2] else None
    return dx, dw, db
