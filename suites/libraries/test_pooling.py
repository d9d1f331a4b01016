"""Pooling, interpolation and distances, compared with NumPy: exactly if results are whole numbers or halves."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from .oracle import Array, assert_equal, assert_within, numbers, reals, tensor, types, unit

DIMS = pytest.mark.parametrize("dims", [1, 2, 3], ids=["1d", "2d", "3d"])
TYPE = types(torch.float32, torch.float64, torch.bfloat16)
MAX: dict[int, Callable[..., Any]] = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}
AVG: dict[int, Callable[..., Any]] = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
ADAPTIVE_MAX: dict[int, Callable[..., Any]] = {
    1: F.adaptive_max_pool1d,
    2: F.adaptive_max_pool2d,
    3: F.adaptive_max_pool3d,
}
ADAPTIVE_AVG: dict[int, Callable[..., Any]] = {
    1: F.adaptive_avg_pool1d,
    2: F.adaptive_avg_pool2d,
    3: F.adaptive_avg_pool3d,
}
#: Kernel, stride, padding.
FORMS = [(2, 2, 0), (3, 2, 1), (3, 1, 0), (2, 3, 1)]
FORM = pytest.mark.parametrize("form", FORMS, ids=lambda form: "k{}s{}p{}".format(*form))


def reduced(a: Array, form: tuple[int, int, int], run: Callable[..., Array], edge: float) -> Array:
    """Return the windows of the last dimensions, reduced one by one."""
    kernel, stride, padding = form
    dims = a.ndim - 2
    around = np.pad(a, [(0, 0), (0, 0), *[(padding, padding)] * dims], constant_values=edge)
    sizes = [(size + 2 * padding - kernel) // stride + 1 for size in a.shape[2:]]
    found = np.empty((*a.shape[:2], *sizes))
    for place in itertools.product(*map(range, sizes)):
        window = tuple(slice(p * stride, p * stride + kernel) for p in place)
        found[:, :, *place] = run(around[:, :, *window], axis=tuple(range(2, 2 + dims)))
    return found


def image(rng: np.random.Generator, dims: int) -> Array:
    """Return whole numbers of a shape whose edges differ."""
    found: Array = rng.integers(-60, 61, (2, 3, *range(6, 6 + dims))).astype(np.float64)
    return found


@DIMS
@FORM
@TYPE
def test_max_pool_is_the_maximum_of_each_window(
    device: torch.device, rng: np.random.Generator, dims: int, form: tuple[int, int, int], dtype: torch.dtype
) -> None:
    """Each output is the largest number of its window and never padding; indices and the gradient lead to it."""
    a = image(rng, dims)
    x = tensor(a, dtype, device).requires_grad_()

    found, places = MAX[dims](x, *form, return_indices=True)
    found.backward(torch.ones_like(found))

    assert_equal(found, reduced(a, form, np.max, -np.inf))
    flat = a.reshape(2, 3, -1)
    assert_equal(found.flatten(2), np.take_along_axis(flat, numbers(places).reshape(2, 3, -1), axis=2))
    hits = np.zeros_like(flat)
    for n, c in itertools.product(range(2), range(3)):
        np.add.at(hits[n, c], numbers(places)[n, c].ravel(), 1)
    assert x.grad is not None
    assert_equal(x.grad.flatten(2), hits)


@DIMS
@FORM
@types(torch.float32, torch.float64)
def test_avg_pool_is_the_mean_of_each_window(
    device: torch.device, rng: np.random.Generator, dims: int, form: tuple[int, int, int], dtype: torch.dtype
) -> None:
    """Each output is the mean of its window, with or without the zeros around, within the bound of its sum."""
    a = image(rng, dims)
    x = tensor(a, dtype, device)
    size = reduced(np.abs(a), form, np.mean, 0.0)

    bound = 2 * unit(dtype) * size * form[0] ** dims + 1e-30
    assert_within(AVG[dims](x, *form), reduced(a, form, np.mean, 0.0), bound)
    counts = reduced(np.ones_like(a), form, np.sum, 0.0)
    expected = reduced(a, form, np.sum, 0.0) / counts
    factor = form[0] ** dims / counts
    assert_within(AVG[dims](x, *form, count_include_pad=False), expected, bound * factor)


@DIMS
@pytest.mark.parametrize("size", [1, 2, 4, 5])
@types(torch.float32, torch.float64)
def test_adaptive_pools_divide_into_equal_windows(
    device: torch.device, rng: np.random.Generator, dims: int, size: int, dtype: torch.dtype
) -> None:
    """The i-th of n outputs covers the elements from floor(i * size / n) to ceil((i + 1) * size / n)."""
    a = image(rng, dims)
    x = tensor(a, dtype, device)
    most, mean = np.empty((2, 3, *[size] * dims)), np.empty((2, 3, *[size] * dims))
    for place in itertools.product(range(size), repeat=dims):
        window = tuple(
            slice(p * edge // size, -(-(p + 1) * edge // size)) for p, edge in zip(place, a.shape[2:], strict=True)
        )
        axes = tuple(range(2, 2 + dims))
        most[:, :, *place] = a[:, :, *window].max(axis=axes)
        mean[:, :, *place] = a[:, :, *window].mean(axis=axes)

    assert_equal(ADAPTIVE_MAX[dims](x, size), most)
    assert_within(ADAPTIVE_AVG[dims](x, size), mean, 1000 * unit(dtype) * 60)


def sampled(size: int, out: int, corners: bool) -> Array:
    """Return the places in the input of the centers of the output's elements."""
    steps = np.arange(out)
    if corners:
        return steps * ((size - 1) / (out - 1)) if out > 1 else steps * 0.0
    return (steps + 0.5) * (size / out) - 0.5


def linear(a: Array, axis: int, out: int, corners: bool) -> Array:
    """Interpolate linearly along one axis."""
    size = a.shape[axis]
    places = np.clip(sampled(size, out, corners), 0, None)
    low = np.minimum(np.floor(places).astype(int), size - 1)
    high, share = np.minimum(low + 1, size - 1), places - low
    share = share.reshape([-1 if each == axis else 1 for each in range(a.ndim)])
    found: Array = a.take(low, axis) * (1 - share) + a.take(high, axis) * share
    return found


@DIMS
@pytest.mark.parametrize("corners", [False, True], ids=["edges", "corners"])
@pytest.mark.parametrize("out", [3, 6, 11])
@types(torch.float32, torch.float64)
def test_interpolate_linear(
    device: torch.device, rng: np.random.Generator, dims: int, corners: bool, out: int, dtype: torch.dtype
) -> None:
    """Linear, bilinear and trilinear interpolation, enlarging and reducing, place the corners in either way."""
    a = image(rng, dims)
    mode = ("linear", "bilinear", "trilinear")[dims - 1]
    expected = a
    for axis in range(2, 2 + dims):
        expected = linear(expected, axis, out, corners)

    found = F.interpolate(tensor(a, dtype, device), size=[out] * dims, mode=mode, align_corners=corners)

    # A place is off by some roundings of its own size, and moves the result by up to twice the largest number.
    assert_within(found, expected, 200 * 60 * dims * unit(dtype))


@DIMS
@pytest.mark.parametrize("factor", [2, 3])
@pytest.mark.types("float64")
def test_interpolate_nearest_and_area(device: torch.device, rng: np.random.Generator, dims: int, factor: int) -> None:
    """`nearest` repeats each element, `nearest-exact` too for whole factors; `area` reduces by the mean of blocks."""
    a = image(rng, dims)
    x = tensor(a, torch.float64, device)
    expected = a
    for axis in range(2, 2 + dims):
        expected = expected.repeat(factor, axis=axis)

    assert_equal(F.interpolate(x, scale_factor=factor), expected)
    assert_equal(F.interpolate(x, scale_factor=factor, mode="nearest-exact"), expected)
    back = F.interpolate(tensor(expected, torch.float64, device), size=list(a.shape[2:]), mode="area")
    assert_within(back, a, 1e-12 * 60)


@pytest.mark.parametrize("p", [0.0, 1.0, 2.0, 3.0, float("inf")])
@types(torch.float32, torch.float64)
def test_cdist_and_pdist_of_each_order(
    device: torch.device, rng: np.random.Generator, p: float, dtype: torch.dtype
) -> None:
    """Distances of all pairs, for few rows and many (which take a product for p = 2), are within their bound.

    With products, a squared distance is off by 4 * k * u times the squares of both norms.
    """
    for rows, columns, width in ((1, 1, 1), (7, 5, 3), (40, 33, 17), (70, 60, 8)):
        x, y = reals(rng, (rows, width), dtype), reals(rng, (columns, width), dtype)
        a, b = numbers(x), numbers(y)
        off = np.abs(a[:, None] - b[None])
        expected = off.max(-1) if p == np.inf else (off != 0).sum(-1) * 1.0 if p == 0 else (off**p).sum(-1) ** (1 / p)
        found = torch.cdist(x.to(device), y.to(device), p=p)
        bound = (4 * width + 20) * unit(dtype) * (1 + expected)
        if p == 2 and max(rows, columns) > 25:
            norms = (a**2).sum(-1)[:, None] + (b**2).sum(-1)[None]
            bound = bound + 8 * (width + 4) * unit(dtype) * norms / np.maximum(expected, 1e-3)
        assert_within(found, expected, bound)
        if rows > 1:
            alone = np.abs(a[:, None] - a[None])
            full = alone.max(-1) if p == np.inf else (alone != 0).sum(-1) if p == 0 else (alone**p).sum(-1) ** (1 / p)
            upper = full[np.triu_indices(rows, 1)] * 1.0
            assert_within(F.pdist(x.to(device), p=p), upper, (4 * width + 20) * unit(dtype) * (1 + upper))


@pytest.mark.parametrize("rows", [3, 40])
@types(torch.float32, torch.float64)
def test_cdist_of_whole_numbers_is_exact(
    device: torch.device, rng: np.random.Generator, rows: int, dtype: torch.dtype
) -> None:
    """Distances of 3-4-5 triangles on a grid are whole numbers, which the square root gives exactly."""
    a = rng.integers(-20, 21, (rows, 2)).astype(np.float64)
    steps = np.array([[3.0, 4.0], [-6.0, 8.0], [5.0, -12.0], [0.0, 7.0]])
    b = a[0] + steps

    found = torch.cdist(tensor(a[:1].repeat(rows, 0), dtype, device), tensor(b, dtype, device))

    assert_within(found, np.broadcast_to([5.0, 10.0, 13.0, 7.0], (rows, 4)), 4 * unit(dtype) * 13)
