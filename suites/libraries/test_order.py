"""Sorting, selection, scans, searching, counting and histograms, compared exactly with NumPy.

Sizes are on both sides of those at which libraries change their algorithm: a warp, a block, one pass and many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from .oracle import Array, assert_equal, assert_within, numbers, tensor, types, unit

SIZES = (1, 2, 31, 33, 255, 1025, 2049, 4097, 70_001)
FULL: list[Any] = [
    "here",
    pytest.param("full", marks=pytest.mark.requires(silicon=True, free_memory=">=8GiB")),
]
FULL_SIZES = (1_000_003, (1 << 24) + 1)
SIZE = pytest.mark.parametrize("sizes", FULL)
WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
ALL = types(*WHOLE, torch.float16, torch.bfloat16, torch.float32, torch.float64)


def of_sizes(sizes: str) -> tuple[int, ...]:
    return SIZES if sizes == "here" else FULL_SIZES


def mixed(rng: np.random.Generator, shape: Any, dtype: torch.dtype) -> Array:
    """Return numbers of a type with repetitions, its ends, and for floats both infinities; no NaN."""
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        found = rng.integers(max(info.min, -500), min(info.max, 500) + 1, shape)
        found[rng.random(shape) < 0.02] = info.min
        found[rng.random(shape) < 0.02] = info.max
        return found
    numbers_: Array = rng.integers(-120, 121, shape) / 4
    numbers_[rng.random(shape) < 0.02] = np.inf
    numbers_[rng.random(shape) < 0.02] = -np.inf
    return numbers_


@SIZE
@ALL
def test_sort_is_stable_and_complete(
    device: torch.device, rng: np.random.Generator, sizes: str, dtype: torch.dtype
) -> None:
    """A stable sort gives NumPy's order, up or down; an unstable sort gives the same values, with their places."""
    for size in of_sizes(sizes):
        a = mixed(rng, size, dtype)
        x = tensor(a, dtype, device)
        order = np.argsort(a, kind="stable")
        found, places = torch.sort(x, stable=True)
        assert_equal(found, a[order].astype(numbers(found).dtype))
        assert_equal(places, order)
        down = torch.sort(x, descending=True, stable=True)
        assert_equal(down.values, np.sort(a)[::-1].astype(numbers(found).dtype))
        equal = numbers(down.values)[1:] == numbers(down.values)[:-1]
        assert (np.diff(numbers(down.indices))[equal] > 0).all()
        quick, where = torch.sort(x)
        assert_equal(quick, np.sort(a).astype(numbers(found).dtype))
        assert_equal(x[where], numbers(quick))
        assert (np.sort(numbers(where)) == np.arange(size)).all()


@types(torch.int32, torch.float32, torch.float64)
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_sort_along_each_dimension(
    device: torch.device, rng: np.random.Generator, dim: int, dtype: torch.dtype
) -> None:
    """Each row of any dimension, also of a transposed tensor, is sorted alone; `argsort` and `msort` agree."""
    a = mixed(rng, (5, 70, 33), dtype)
    x = tensor(a, dtype, device)

    assert_equal(x.sort(dim=dim, stable=True).values, np.sort(a, axis=dim))
    assert_equal(torch.argsort(x, dim=dim, stable=True), np.argsort(a, axis=dim, kind="stable"))
    assert_equal(x.mT.sort(dim=dim).values, np.sort(a.swapaxes(1, 2), axis=dim))
    assert_equal(torch.msort(x), np.sort(a, axis=0))


@types(torch.float32, torch.float64, torch.float16)
def test_sort_puts_nan_last(device: torch.device, dtype: torch.dtype) -> None:
    """NaN counts as larger than infinity in `sort`, `topk`, `kthvalue`, `max` and `median`."""
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([1.0, nan, -inf, inf, 0.0, nan], dtype=dtype, device=device)

    assert x.sort().values[:4].tolist() == [-inf, 0, 1, inf]
    assert x.sort().values[4:].isnan().all()
    assert x.sort(descending=True).values[:2].isnan().all()
    assert x.topk(2).values.isnan().all()
    assert x.topk(4, largest=False).values.tolist() == [-inf, 0, 1, inf]
    assert x.topk(6, largest=False).values[4:].isnan().all()
    assert x.kthvalue(4).values.item() == inf
    assert x.kthvalue(5).values.isnan().item()
    assert x.max().isnan().item()
    assert x.median().isnan().item()
    assert x.nanmedian().item() == 0


@SIZE
@ALL
def test_topk_and_kthvalue(device: torch.device, rng: np.random.Generator, sizes: str, dtype: torch.dtype) -> None:
    """`topk` gives the largest or smallest numbers in order, with places that hold them; `kthvalue` gives the k-th."""
    for size in of_sizes(sizes):
        a = mixed(rng, size, dtype)
        x, order = tensor(a, dtype, device), np.sort(a)
        for k in sorted({1, min(3, size), size // 2 or 1, size}):
            for largest in (True, False):
                values, places = torch.topk(x, k, largest=largest)
                expected = order[::-1][:k] if largest else order[:k]
                assert_equal(values, expected.astype(numbers(values).dtype))
                assert_equal(x[places], numbers(values))
                assert len(np.unique(numbers(places))) == k
            found = torch.kthvalue(x, k)
            assert numbers(found.values) == order[k - 1]
            assert numbers(x[found.indices]) == order[k - 1]


@types(torch.int32, torch.int64, torch.float32, torch.float64)
def test_median_mode_and_quantile(device: torch.device, rng: np.random.Generator, dtype: torch.dtype) -> None:
    """`median` gives the lower of two middle numbers, `mode` a number of the greatest count, and `quantile` NumPy's."""
    for size in (1, 2, 33, 100, 1025):
        a = rng.integers(-20, 21, (size, 3)).astype(np.float64)
        x = tensor(a, dtype, device)
        assert_equal(x.median(dim=0).values, np.sort(a, axis=0)[(size - 1) // 2].astype(numbers(x).dtype))
        counts = [(a[:, column][:, None] == a[:, column][None]).sum(0) for column in range(3)]
        modes = numbers(x.mode(dim=0).values)
        for column in range(3):
            assert (a[:, column] == modes[column]).sum() == counts[column].max()
        if dtype.is_floating_point:
            q = torch.tensor([0.0, 0.25, 0.5, 0.9, 1.0], dtype=dtype, device=device)
            found = torch.quantile(x, q, dim=0)
            assert_within(found, np.quantile(a, numbers(q), axis=0), 100 * unit(dtype))


# ---- scans ----


@SIZE
@types(torch.int32, torch.int64, torch.float32, torch.float64, torch.bfloat16, torch.complex64)
def test_cumsum_of_whole_numbers_is_exact(
    device: torch.device, rng: np.random.Generator, sizes: str, dtype: torch.dtype
) -> None:
    """Running sums of whole numbers that the type holds are exact, along the last and the first dimension."""
    for size in of_sizes(sizes):
        a = rng.choice([-1.0, 0.0, 1.0], size)
        if dtype == torch.bfloat16:  # few ones, so that the sum of all stays within its 256 whole numbers
            a[rng.permutation(size)[200:]] = 0
        x = tensor(a, dtype, device)
        expected = a.cumsum()
        assert_equal(x.cumsum(0), expected.astype(numbers(x).dtype))
        rows = np.stack([a, -a, a * 0])
        y = tensor(rows, dtype, device)
        assert_equal(y.cumsum(1), rows.cumsum(1).astype(numbers(x).dtype))
        assert_equal(y.t().cumsum(0), rows.cumsum(1).T.astype(numbers(x).dtype))


@SIZE
@types(torch.int32, torch.int64, torch.float32, torch.float64)
def test_cumprod_cummax_and_cummin(
    device: torch.device, rng: np.random.Generator, sizes: str, dtype: torch.dtype
) -> None:
    """Running products of signs, maxima and minima are exact, with the places of the last equal extremes."""
    for size in of_sizes(sizes):
        signs, a = rng.choice([-1.0, 1.0], size), rng.integers(-1000, 1001, size).astype(np.float64)
        x = tensor(a, dtype, device)
        kind = numbers(x).dtype
        assert_equal(tensor(signs, dtype, device).cumprod(0), signs.cumprod().astype(kind))
        for run, expect in ((torch.cummax, np.maximum), (torch.cummin, np.minimum)):
            running = expect.accumulate(a)
            found = run(x, 0)
            assert_equal(found.values, running.astype(kind))
            assert_equal(found.indices, np.maximum.accumulate(np.where(a == running, np.arange(size), 0)))


@types(torch.float32, torch.float64)
def test_logcumsumexp_is_within_the_bound(device: torch.device, rng: np.random.Generator, dtype: torch.dtype) -> None:
    """`logcumsumexp` is the logarithm of a running sum: each step adds a rounding of the result, or of one."""
    for size in (1, 33, 1025, 4097):
        a = numbers(tensor(rng.standard_normal(size) * 5, dtype, torch.device("cpu")))
        expected = np.logaddexp.accumulate(a)
        found = torch.logcumsumexp(tensor(a, dtype, device), 0)
        assert_within(found, expected, 4 * size * unit(dtype) * (1 + np.abs(expected)))


# ---- searching and counting ----


@SIZE
@types(torch.int32, torch.int64, torch.float32, torch.float64)
def test_searchsorted_and_bucketize(
    device: torch.device, rng: np.random.Generator, sizes: str, dtype: torch.dtype
) -> None:
    """`searchsorted` and `bucketize` give NumPy's places, on the left or right of equal numbers."""
    for size in of_sizes(sizes):
        edges, wanted = np.sort(rng.integers(-1000, 1001, size)) * 1.0, rng.integers(-1100, 1101, 777) * 1.0
        x, y = tensor(edges, dtype, device), tensor(wanted, dtype, device)
        for right in (False, True):
            places = np.searchsorted(edges, wanted, side="right" if right else "left")
            assert_equal(torch.searchsorted(x, y, right=right), places)
            assert_equal(torch.bucketize(y, x, right=right), places)
        assert torch.searchsorted(x, y, out_int32=True).dtype == torch.int32


@types(torch.int64, torch.float32)
def test_searchsorted_of_rows(device: torch.device, rng: np.random.Generator, dtype: torch.dtype) -> None:
    """Each row is searched in its own row, also with a `sorter`."""
    rows = rng.integers(-50, 51, (6, 40)).astype(np.float64)
    wanted = rng.integers(-60, 61, (6, 9)).astype(np.float64)
    x, y = tensor(rows, dtype, device), tensor(wanted, dtype, device)
    expected = np.stack([np.searchsorted(np.sort(row), each) for row, each in zip(rows, wanted, strict=True)])

    assert_equal(torch.searchsorted(x.sort(dim=1).values, y), expected)
    assert_equal(torch.searchsorted(x, y, sorter=x.argsort(dim=1)), expected)


@SIZE
@types(torch.int32, torch.int64, torch.uint8, torch.float32, torch.float64)
def test_unique_counts_each_number(
    device: torch.device, rng: np.random.Generator, sizes: str, dtype: torch.dtype
) -> None:
    """`unique` gives the sorted numbers, the place of each element among them and their counts, like NumPy."""
    for size in of_sizes(sizes):
        a = rng.integers(0, 200, size)
        x = tensor(a, dtype, device)
        values, inverse, counts = np.unique(a, return_inverse=True, return_counts=True)
        found = torch.unique(x, return_inverse=True, return_counts=True)
        assert_equal(found[0], values.astype(numbers(x).dtype))
        assert_equal(found[1], inverse.reshape(a.shape))
        assert_equal(found[2], counts)
        runs = np.concatenate([[True], np.diff(a) != 0])
        once = torch.unique_consecutive(x, return_counts=True)
        assert_equal(once[0], a[runs].astype(numbers(x).dtype))
        assert_equal(once[1], np.diff(np.append(np.nonzero(runs)[0], size)))


@types(torch.int32, torch.float32)
def test_unique_rows(device: torch.device, rng: np.random.Generator, dtype: torch.dtype) -> None:
    """`unique` along a dimension gives the rows in lexicographic order, with counts."""
    a = rng.integers(-2, 3, (300, 3))
    values, inverse, counts = np.unique(a, axis=0, return_inverse=True, return_counts=True)

    found = torch.unique(tensor(a, dtype, device), dim=0, return_inverse=True, return_counts=True)

    assert_equal(found[0], values.astype(numbers(found[0]).dtype))
    assert_equal(found[1], inverse.reshape(-1))
    assert_equal(found[2], counts)


@SIZE
@pytest.mark.types("float64")
def test_bincount_counts_and_adds(device: torch.device, rng: np.random.Generator, sizes: str) -> None:
    """`bincount` counts whole numbers, adds their weights, and has at least `minlength` entries."""
    for size in of_sizes(sizes):
        a, weights = rng.integers(0, 100, size), rng.integers(-9, 10, size).astype(np.float64)
        x = torch.from_numpy(a).to(device)
        assert_equal(torch.bincount(x, minlength=103), np.bincount(a, minlength=103))
        found = torch.bincount(x, weights=tensor(weights, torch.float64, device))
        assert_equal(found, np.bincount(a, weights=weights))


@SIZE
@types(torch.float32, torch.float64)
def test_histc_and_histogram_count(
    device: torch.device, rng: np.random.Generator, sizes: str, dtype: torch.dtype
) -> None:
    """`histc` counts in equal bins, the last one closed; `histogram` (on the CPU) in given bins, with weights."""
    for size in of_sizes(sizes):
        # A quarter off the edges, so that no rounding moves a number to the next bin.
        a = rng.integers(-40, 41, size) + 0.25
        x = tensor(a, dtype, device)
        expected = np.histogram(a, bins=64, range=(-32, 32))[0]
        assert_equal(torch.histc(x, bins=64, min=-32, max=32), expected.astype(numbers(x).dtype))
        if device.type == "cpu":
            edges, weights = np.array([-30.0, -7, 0, 3, 31]), rng.integers(1, 9, size).astype(np.float64)
            counts, bins = torch.histogram(x, tensor(edges, dtype, device), weight=tensor(weights, dtype, device))
            assert_equal(counts, np.histogram(a, edges, weights=weights)[0].astype(numbers(x).dtype))
            assert_equal(bins, edges)


@SIZE
@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 1.0])
def test_nonzero_masked_select_and_where(
    device: torch.device, rng: np.random.Generator, sizes: str, share: float
) -> None:
    """Compactions keep exactly the selected elements, in order, whether few or all are selected."""
    for size in of_sizes(sizes):
        mask, a = rng.random(size) < share, np.arange(size)
        x, y = torch.from_numpy(mask).to(device), torch.from_numpy(a).to(device)
        assert_equal(x.nonzero().flatten(), np.nonzero(mask)[0])
        assert_equal(y.masked_select(x), a[mask])
        assert_equal(y[~x], a[~mask])
        assert x.count_nonzero().item() == mask.sum()
        assert_equal(torch.isin(y, y[x]).to(torch.int64), mask.astype(np.int64))


@types(torch.int64, torch.float64)
def test_scatter_and_index_add_reduce_by_key(
    device: torch.device, rng: np.random.Generator, dtype: torch.dtype
) -> None:
    """Sums, products, minima and maxima by key equal NumPy's, whatever keys collide."""
    for size in (1, 33, 4097, 70_001):
        keys, a = rng.integers(0, 13, size), rng.integers(-50, 51, size).astype(np.float64)
        index, x = torch.from_numpy(keys).to(device), tensor(a, dtype, device)
        operations: dict[str, Callable[..., Any]] = {
            "sum": np.add.at,
            "amax": np.maximum.at,
            "amin": np.minimum.at,
        }
        for reduce, expect in operations.items():
            expected = np.zeros(13)
            expect(expected, keys, a)
            found = torch.zeros(13, dtype=dtype, device=device).scatter_reduce(0, index, x, reduce)
            assert_equal(found, expected.astype(numbers(x).dtype))
        summed = np.zeros(13)
        np.add.at(summed, keys, a)
        assert_equal(
            torch.zeros(13, dtype=dtype, device=device).index_add(0, index, x), summed.astype(numbers(x).dtype)
        )
