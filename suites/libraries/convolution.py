"""Convolution in NumPy, of any number of dimensions, and its two adjoints: one product per element of the kernel.

Torch's convolution is a correlation: out[n, o, p] is the sum over c and k of x[n, c, p * stride + k * dilation] times
w[o, c, k], with zeros around x.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .oracle import Array


@dataclass(frozen=True, slots=True)
class Form:
    """The arguments of a convolution, the same for each dimension."""

    stride: int = 1
    padding: int = 0
    dilation: int = 1
    groups: int = 1

    def outputs(self, size: int, kernel: int) -> int:
        return (size + 2 * self.padding - self.dilation * (kernel - 1) - 1) // self.stride + 1


def _windows(
    shape: tuple[int, ...], kernel: tuple[int, ...], form: Form
) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Yield each place of the kernel, with the elements of the padded input that it covers."""
    sizes = [form.outputs(size, k) for size, k in zip(shape, kernel, strict=True)]
    for place in itertools.product(*map(range, kernel)):
        starts = [k * form.dilation for k in place]
        yield (
            place,
            tuple(
                slice(start, start + (size - 1) * form.stride + 1, form.stride)
                for start, size in zip(starts, sizes, strict=True)
            ),
        )


def _around(x: Array, padding: int) -> Array:
    return np.pad(x, [(0, 0), (0, 0), *[(padding, padding)] * (x.ndim - 2)])


def _groups(x: Array, groups: int) -> Array:
    """Return inputs or outputs (n, c, ...) as matrices of channels and places, (n, groups, c / groups, places)."""
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, -1)


def correlate(x: Array, w: Array, form: Form) -> Array:
    """Return the convolution of inputs of the shape (n, c, ...) with weights of the shape (o, c / groups, ...)."""
    padded, g = _around(x, form.padding), form.groups
    weights = w.reshape(g, w.shape[0] // g, *w.shape[1:])
    sizes = [form.outputs(size, k) for size, k in zip(x.shape[2:], w.shape[2:], strict=True)]
    total = sum(
        np.matmul(weights[:, :, :, *place], _groups(padded[:, :, *window], g))
        for place, window in _windows(x.shape[2:], w.shape[2:], form)
    )
    found: Array = np.reshape(total, (x.shape[0], w.shape[0], *sizes))
    return found


def adjoint_of_input(y: Array, w: Array, shape: tuple[int, ...], form: Form) -> Array:
    """Return the gradient of sum(correlate(x, w) * y) with respect to an input of this shape.

    This is also the transposed convolution.
    """
    g, padding = form.groups, form.padding
    weights, outer = w.reshape(g, w.shape[0] // g, *w.shape[1:]), _groups(y, g)
    inner = _around(np.zeros(shape, np.result_type(y, w)), padding)
    for place, window in _windows(shape[2:], w.shape[2:], form):
        part = np.matmul(weights[:, :, :, *place].swapaxes(1, 2), outer)
        inner[:, :, *window] += part.reshape(shape[0], shape[1], *y.shape[2:])
    cut = (slice(padding, -padding if padding else None),) * (len(shape) - 2)
    return inner[:, :, *cut]


def adjoint_of_weights(x: Array, y: Array, shape: tuple[int, ...], form: Form) -> Array:
    """Return the gradient of sum(correlate(x, w) * y) with respect to weights of this shape."""
    padded, outer = _around(x, form.padding), _groups(y, form.groups)
    found = np.zeros(shape, np.result_type(x, y))
    for place, window in _windows(x.shape[2:], shape[2:], form):
        part = np.matmul(outer, _groups(padded[:, :, *window], form.groups).swapaxes(2, 3)).sum(0)
        found[:, :, *place] = part.reshape(shape[:2])
    return found
