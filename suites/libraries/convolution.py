"""Convolution in NumPy, of any number of dimensions, and its two adjoints: one product for each element of the kernel.

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
    """Each place of the kernel, with the elements of the padded input that it meets."""
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


def _in_groups(x: Array, groups: int, axis: int) -> Array:
    """The array with an axis of groups before the axis of channels."""
    return x.reshape(*x.shape[:axis], groups, -1, *x.shape[axis + 1 :])


def _contracted(terms: str, a: Array, b: Array) -> Array:
    """`numpy.einsum`, which only for large arrays is faster with a library."""
    found: Array = np.einsum(terms, a, b, optimize=a.size * b.size > 1 << 24)
    return found


def correlate(x: Array, w: Array, form: Form) -> Array:
    """The convolution of inputs of the shape (n, c, ...) with weights of the shape (o, c / groups, ...)."""
    padded, g = _around(x, form.padding), form.groups
    weights = _in_groups(w, g, 0)
    total: Array | None = None
    for place, window in _windows(x.shape[2:], w.shape[2:], form):
        part = _in_groups(padded[:, :, *window], g, 1)
        product = _contracted("ngc...,goc->ngo...", part, weights[:, :, :, *place])
        total = product if total is None else total + product
    assert total is not None
    return total.reshape(x.shape[0], w.shape[0], *total.shape[3:])


def adjoint_of_input(y: Array, w: Array, shape: tuple[int, ...], form: Form) -> Array:
    """The gradient with respect to an input of this shape, of sum(correlate(x, w) * y). Also the transposed
    convolution."""
    g, padding = form.groups, form.padding
    weights, outer = _in_groups(w, g, 0), _in_groups(y, g, 1)
    inner = _around(np.zeros(shape, np.result_type(y, w)), padding)
    for place, window in _windows(shape[2:], w.shape[2:], form):
        part = _contracted("ngo...,goc->ngc...", outer, weights[:, :, :, *place])
        inner[:, :, *window] += part.reshape(shape[0], shape[1], *y.shape[2:])
    cut = (slice(padding, -padding if padding else None),) * (len(shape) - 2)
    return inner[:, :, *cut]


def adjoint_of_weights(x: Array, y: Array, shape: tuple[int, ...], form: Form) -> Array:
    """The gradient with respect to weights of this shape, of sum(correlate(x, w) * y)."""
    padded, g = _around(x, form.padding), form.groups
    outer = _in_groups(y, g, 1)
    found = np.zeros(shape, np.result_type(x, y))
    for place, window in _windows(x.shape[2:], shape[2:], form):
        part = _in_groups(padded[:, :, *window], g, 1)
        product = _contracted("ngo...,ngc...->goc", outer, part)
        found[:, :, *place] = product.reshape(shape[:2])
    return found
