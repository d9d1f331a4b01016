"""Gather, scatter and counting: exact results in whole numbers, with concurrent writes."""

from __future__ import annotations

import pytest
import torch

from .lengths import name

TYPES = pytest.mark.parametrize(
    "dtype",
    [torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.float32, torch.complex64],
    ids=name,
)


@pytest.mark.covers("test_cuda::TestCuda::test_gather_bool")
def test_gather_of_bool(device: torch.device) -> None:
    """`gather` of booleans reads each element at its index."""
    x = torch.tensor([[False, True, False], [True, True, False]], device=device)
    found = torch.gather(x, 1, torch.tensor([[1, 0, 1, 2], [2, 1, 0, 2]], device=device))

    assert found.dtype == torch.bool
    assert found.tolist() == [[True, False, True, False], [False, True, True, False]]


@TYPES
@pytest.mark.parametrize("dim", [0, 1])
def test_gather_index_select_and_take_along_dim_equal_indexing(
    device: torch.device, dtype: torch.dtype, dim: int
) -> None:
    """`gather`, `take_along_dim`, `index_select` and indexing return the elements of Python's indexing, per dtype."""
    x = torch.randint(0, 2 if dtype == torch.bool else 100, (13, 17)).to(dtype)
    if dtype.is_complex:
        x = x * (1 - 2j)
    index = torch.randint(0, x.shape[dim], (13, 17))
    rows = torch.randint(0, x.shape[dim], (40,))
    there = x.to(device)

    wanted = [
        [x[index[i, j], j].item() if dim == 0 else x[i, index[i, j]].item() for j in range(17)] for i in range(13)
    ]
    assert torch.gather(there, dim, index.to(device)).tolist() == wanted
    assert torch.take_along_dim(there, index.to(device), dim).tolist() == wanted
    selected = [x.select(dim, int(row)).tolist() for row in rows]
    assert there.index_select(dim, rows.to(device)).movedim(dim, 0).tolist() == selected
    assert there.movedim(dim, 0)[rows.to(device)].tolist() == selected


@pytest.mark.covers("test_cuda::TestCuda::test_bincount_ext")
@pytest.mark.parametrize(("bins", "dtype"), [(50, torch.int8), (50_000, torch.int64)], ids=["few", "many"])
@pytest.mark.types("float64")
def test_bincount_is_exact(device: torch.device, bins: int, dtype: torch.dtype) -> None:
    """`bincount` of 100,000 numbers equals Python's count, with few bins and with too many for a block's shared memory.

    Weighted sums are exact for whole weights, and within float64 rounding otherwise.
    """
    numbers = torch.randint(bins, (100_000,), dtype=dtype)
    whole = torch.randint(-1000, 1000, (100_000,)).double()
    broken = torch.randn(100_000, dtype=torch.float64)
    counts, sums, rests = [0] * bins, [0.0] * bins, [0.0] * bins
    for number, one, two in zip(numbers.tolist(), whole.tolist(), broken.tolist(), strict=True):
        counts[number] += 1
        sums[number] += one
        rests[number] += two
    end = max(numbers.tolist()) + 1
    there = numbers.to(device)

    assert there.bincount().tolist() == counts[:end]
    assert there.bincount(whole.to(device)).tolist() == sums[:end]
    found = there.bincount(broken.to(device), minlength=bins + 3).cpu()
    torch.testing.assert_close(found, torch.tensor([*rests, 0, 0, 0], dtype=torch.float64), rtol=1e-12, atol=1e-10)


@pytest.mark.covers("test_cuda::TestCuda::test_bincount_ext")
def test_bincount_minlength_makes_more_bins_than_numbers(device: torch.device) -> None:
    """With `minlength` there are at least that many bins, including empty ones, and each number is counted once."""
    numbers = torch.zeros(10, dtype=torch.int32, device=device)
    numbers[0] = 35488

    found = numbers.bincount(minlength=65536)

    assert found.shape == (65536,)
    assert found.sum().item() == 10
    assert [found[0].item(), found[35488].item()] == [9, 1]


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float64], ids=name)
@pytest.mark.parametrize("targets", [1, 7, 1000])
def test_scatter_add_index_add_and_index_put_count_every_element(
    device: torch.device, dtype: torch.dtype, targets: int
) -> None:
    """Four index operations that accumulate many elements into few places count every element.

    The values are whole numbers, so the order does not matter; those of the wider dtypes exceed float32's precision.
    """
    index = torch.randint(targets, (20_000,))
    factor = {torch.float32: 1, torch.float64: (1 << 30) + 1, torch.int64: (1 << 44) + 1}[dtype]
    values = (torch.randint(-8, 9, (20_000,)) * factor).to(dtype)
    wanted = [0] * targets
    for place, value in zip(index.tolist(), values.tolist(), strict=True):
        wanted[place] += value
    where, what = index.to(device), values.to(device)

    def fresh() -> torch.Tensor:
        return torch.zeros(targets, dtype=dtype, device=device)

    assert fresh().index_add_(0, where, what).tolist() == wanted
    assert fresh().scatter_add_(0, where, what).tolist() == wanted
    assert fresh().index_put_((where,), what, accumulate=True).tolist() == wanted
    assert fresh().scatter_reduce_(0, where, what, "sum").tolist() == wanted


@pytest.mark.parametrize("size", [1, 1000, 70_001])
def test_nonzero_masked_select_where_and_masked_fill_agree(device: torch.device, size: int) -> None:
    """`nonzero`, `masked_select`, `where` and `masked_fill` agree with Python's selection, including order."""
    x, mask = torch.randint(-100, 100, (size,)), torch.rand(size) > 0.7
    values = x.tolist()
    chosen = [place for place, marked in enumerate(mask.tolist()) if marked]
    there, marks = x.to(device), mask.to(device)

    assert marks.nonzero().flatten().tolist() == chosen
    assert there.masked_select(marks).tolist() == [values[place] for place in chosen]
    assert marks.sum().item() == marks.count_nonzero().item() == len(chosen)
    mixed = torch.where(marks, there, -1).tolist()
    assert mixed == there.masked_fill(~marks, -1).tolist()
    assert mixed == [value if marked else -1 for value, marked in zip(values, mask.tolist(), strict=True)]


@pytest.mark.parametrize("size", [1, 33, 4097, 40_001])
def test_sort_topk_searchsorted_and_unique_equal_python(device: torch.device, size: int) -> None:
    """A stable sort equals Python's, with indices; `topk` returns the end of it in descending order.

    `searchsorted` finds each value's position, and `unique` counts it.
    """
    x = torch.randint(-size // 3, max(size // 3, 2), (size,))
    ordered = sorted(enumerate(x.tolist()), key=lambda pair: pair[1])
    there = x.to(device)

    found = there.sort(stable=True)
    assert found.values.tolist() == [value for _, value in ordered]
    assert found.indices.tolist() == [place for place, _ in ordered]
    k = min(size, 50)
    assert there.topk(k).values.tolist() == [value for _, value in ordered[::-1][:k]]
    values, counts = there.unique(return_counts=True)
    assert values.tolist() == sorted(set(x.tolist()))
    assert counts.sum().item() == size
    assert torch.searchsorted(found.values, values).tolist() == (counts.cumsum(0) - counts).tolist()
