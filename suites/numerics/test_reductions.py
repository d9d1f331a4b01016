"""Edge cases of reductions: initial values, the elements that are read, and NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import accumulate
from operator import mul

import pytest
import torch

from .lengths import FLOATING_TYPES, LENGTHS, WHOLE_TYPES, ends, name, unit

SIZES = pytest.mark.parametrize("size", LENGTHS)


@pytest.mark.covers("test_cuda::TestCuda::test_reduction_gpu_memory_accessing")
@pytest.mark.parametrize("shape", [(512, 8), (1, 1), (513, 7), (7, 513), (65, 1024), (4, 3, 1000)], ids=str)
def test_sum_of_ones_reads_all_and_nothing_beyond(device: torch.device, shape: tuple[int, ...]) -> None:
    """The sum of ones along any dimension is exactly its size; reading the surrounding memory would change the sum."""
    count = torch.Size(shape).numel()
    around = torch.full((count + 2048,), 1e6, device=device)
    ones = around[1024 : 1024 + count].fill_(1).view(shape)

    for dim, size in enumerate(shape):
        assert (ones.sum(dim) == size).all()
    assert ones.sum().item() == count
    assert (around[:1024] == 1e6).all()
    assert (around[1024 + count :] == 1e6).all()


@pytest.mark.covers("test_cuda::TestCuda::test_prod_large")
@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.int64], ids=name
)
@pytest.mark.parametrize("more", [0, 1, 2, 3])
def test_prod_of_many_units_is_exact(device: torch.device, dtype: torch.dtype, more: int) -> None:
    """Products of about 240,000 units are exact: ones, minus ones, and imaginary units, which count modulo four."""
    count = 240_000 + more

    assert torch.ones(count, device=device, dtype=dtype).prod().item() == 1
    if dtype.is_complex:
        assert torch.full((count,), 1j, device=device, dtype=dtype).prod().item() == (1, 1j, -1, -1j)[more]
    else:
        assert torch.full((count,), -1, device=device, dtype=dtype).prod().item() == (-1) ** more


def turned(x: list[Fraction]) -> list[Fraction]:
    """Return the terms of the product of a vector with its reverse."""
    return [a * b for a, b in zip(x, reversed(x), strict=True)]


def deviations(x: list[Fraction]) -> list[Fraction]:
    """Return the terms of a variance by the mean of squares, which bounds its error."""
    return [a * a / len(x) for a in x] + [-((sum(x) / len(x)) ** 2)]


def gathered(x: torch.Tensor) -> torch.Tensor:
    """Return a sum by `index_add_`."""
    return x.new_zeros(1).index_add_(0, torch.zeros(len(x), dtype=torch.int64, device=x.device), x)


#: Ways to sum the elements of a vector, and the terms of the sum.
SUMS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[list[Fraction]], list[Fraction]]]] = {
    "sum": (torch.sum, list),
    "sum_along": (lambda x: torch.stack([x, -x], dim=1).sum(0)[0], list),
    "cumsum": (lambda x: x.cumsum(0)[-1], list),
    "index_add": (gathered, list),
    "mean": (torch.mean, lambda x: [a / len(x) for a in x]),
    "var": (lambda x: x.var(correction=0), deviations),
    "norm": (lambda x: torch.linalg.vector_norm(x).square(), lambda x: [a * a for a in x]),
    "dot": (lambda x: torch.dot(x, x.flip(0)), turned),
    "product": (lambda x: x[None] @ x.flip(0)[:, None], turned),
}


@pytest.mark.parametrize(("reduce", "terms"), SUMS.values(), ids=SUMS.keys())
@pytest.mark.parametrize("size", [1, 3, 33, 1000])
@pytest.mark.types("float64")
def test_sum_of_float64_has_the_precision_of_float64(
    device: torch.device,
    reduce: Callable[[torch.Tensor], torch.Tensor],
    terms: Callable[[list[Fraction]], list[Fraction]],
    size: int,
) -> None:
    """A float64 sum of full-precision numbers is within the bound for twice as many roundings as terms, plus eight.

    One rounding to float32 would far exceed the bound.
    """
    x = (torch.rand(size, dtype=torch.float64) + 0.5) * torch.where(torch.rand(size) < 0.25, -1.0, 1.0)
    exact = terms([Fraction(number) for number in x.tolist()])
    wanted, sizes = float(sum(exact)), float(sum(map(abs, exact)))

    found = reduce(x.to(device))

    assert found.dtype == torch.float64
    assert abs(found.item() - wanted) <= (2 * size + 8) * unit(torch.float64) * sizes


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32], ids=name)
def test_sums_and_products_of_small_integers_have_64_bits(device: torch.device, dtype: torch.dtype) -> None:
    """Integers are converted to int64 before they are added or multiplied, so results beyond the input type are exact.

    Source: torch, `sum`, `prod`, `cumsum`, `cumprod`.
    """
    low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    rows = [[high, high - (high > 1), high, high // 2 + 1], [low, low, high, low + 1], [high, high, 1, 1]]
    x = torch.tensor(rows, dtype=dtype, device=device)
    columns = [list(column) for column in zip(*rows, strict=True)]

    found: dict[str, tuple[torch.Tensor, object]] = {
        "sum": (x.sum(), sum(map(sum, rows))),
        "sum of rows": (x.sum(1), [sum(row) for row in rows]),
        "sum of columns": (x.sum(0), [sum(column) for column in columns]),
        "cumsum of rows": (x.cumsum(1), [list(accumulate(row)) for row in rows]),
        "cumsum of columns": (x.cumsum(0).t(), [list(accumulate(column)) for column in columns]),
        "prod of rows": (x[:, :2].prod(1), [math.prod(row[:2]) for row in rows]),
        "cumprod of columns": (x[:2].cumprod(0).t(), [list(accumulate(column[:2], mul)) for column in columns]),
    }
    if dtype != torch.bool:
        found["trace"] = (x.trace(), sum(rows[place][place] for place in range(3)))

    assert {what: result.dtype for what, (result, _) in found.items()} == dict.fromkeys(found, torch.int64)
    assert {what: result.tolist() for what, (result, _) in found.items()} == {
        what: wanted for what, (_, wanted) in found.items()
    }


# ---- minima and maxima ----


@pytest.mark.covers("test_cuda::TestCuda::test_min_max_inits")
@pytest.mark.parametrize("dtype", [*WHOLE_TYPES, *FLOATING_TYPES], ids=name)
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_max_of_the_lowest_value_and_min_of_the_highest(device: torch.device, dtype: torch.dtype, size: int) -> None:
    """The maximum of only lowest values is the lowest, and vice versa, with a valid index."""
    low, high = ends(dtype)
    lowest, highest = (torch.full((size,), value, dtype=dtype, device=device) for value in (low, high))

    for result, value in ((lowest.max(dim=0), low), (highest.min(dim=0), high)):
        assert result.values.item() == value
        assert 0 <= result.indices.item() < size
    assert [lowest.max().item(), lowest.amax().item(), lowest.aminmax().max.item()] == [low] * 3
    assert [highest.min().item(), highest.amin().item(), highest.aminmax().min.item()] == [high] * 3
    assert 0 <= lowest.argmax().item() < size
    assert 0 <= highest.argmin().item() < size
    if size == 1:
        assert lowest.max(dim=0).indices.item() == highest.min(dim=0).indices.item() == 0


@SIZES
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.float16], ids=name)
def test_argmax_finds_the_one_that_differs(device: torch.device, size: int, dtype: torch.dtype) -> None:
    """The only element above (or below) all others is the maximum (or minimum), and its position is the index."""
    for place in {0, size // 3, size // 2, size - 1}:
        x = torch.zeros(size, dtype=dtype, device=device)
        x[place] = 7
        assert (x.max().item(), x.argmax().item(), x.max(dim=0).indices.item()) == (7, place, place)
        x[place] = -7
        assert (x.min().item(), x.argmin().item(), x.min(dim=0).indices.item()) == (-7, place, place)


def test_reductions_of_no_elements(device: torch.device) -> None:
    """Without elements, sum, product, mean, `all` and `any` have their neutral values; `max` and `min` raise."""
    nothing = torch.empty(0, device=device)

    assert (nothing.sum().item(), nothing.prod().item()) == (0, 1)
    assert nothing.mean().isnan().item()
    assert nothing.bool().all().item()
    assert not nothing.bool().any().item()
    assert torch.empty(0, 3, device=device).sum(0).tolist() == [0, 0, 0]
    for reduce in (torch.max, torch.min, torch.amax, torch.amin, torch.argmax, torch.argmin):
        with pytest.raises((RuntimeError, IndexError), match=r"reduction dim to be specified for input.numel\(\) == 0"):
            reduce(nothing)


# ---- NaN ----

PROPAGATING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "prod": torch.prod,
    "max": torch.max,
    "min": torch.min,
    "amax": torch.amax,
    "amin": torch.amin,
    "max_along": lambda x: x.max(dim=0).values,
    "min_along": lambda x: x.min(dim=0).values,
    "norm": torch.linalg.vector_norm,
    "norm_inf": lambda x: torch.linalg.vector_norm(x, float("inf")),
    "var": lambda x: x.var(correction=0),
    "median": torch.median,
    "cumsum": lambda x: x.cumsum(0)[-1],
    "cummax": lambda x: x.cummax(0).values[-1],
    "logsumexp": lambda x: x.logsumexp(0),
    "softmax": lambda x: x.softmax(0).sum(),
    "dot": lambda x: torch.dot(x, torch.zeros_like(x)),
    "dot_second": lambda x: torch.dot(torch.zeros_like(x), x),
}


@pytest.mark.parametrize("reduce", PROPAGATING.values(), ids=PROPAGATING.keys())
@SIZES
def test_nan_anywhere_makes_a_reduction_nan(
    device: torch.device, reduce: Callable[[torch.Tensor], torch.Tensor], size: int
) -> None:
    """One NaN at any position makes the result NaN; without it, the result is not NaN (control)."""
    x = torch.ones(size, device=device)
    assert not reduce(x).isnan().item()

    for place in {0, size // 2, size - 1}:
        spoilt = x.clone()
        spoilt[place] = float("nan")
        assert reduce(spoilt).isnan().item(), place


@SIZES
@pytest.mark.types("float64")
def test_argmax_sort_isnan_and_nansum_with_nan(device: torch.device, size: int) -> None:
    """NaN counts as the largest value in `argmax`, `argmin` and `sort`; `nansum`, `nanmean` and `fmax` ignore it."""
    for place in {0, size // 2, size - 1}:
        x = torch.arange(size, dtype=torch.float32, device=device)
        x[place] = float("nan")
        assert x.argmax().item() == x.argmin().item() == place
        ordered = x.sort()
        assert ordered.values[-1].isnan().item()
        assert ordered.indices[-1].item() == place
        assert x.isnan().nonzero().flatten().tolist() == [place]
        # Whole numbers in float32: their sum is exact below 2^24.
        rest = size * (size - 1) // 2 - place
        assert x.double().nansum().item() == rest
        assert torch.fmax(x, torch.full_like(x, -1))[place].item() == -1
        if size > 1:
            assert x.double().nanmean().item() == pytest.approx(rest / (size - 1), rel=1e-14)


@pytest.mark.parametrize("dtype", FLOATING_TYPES, ids=name)
def test_nan_and_infinity_in_arithmetic(device: torch.device, dtype: torch.dtype) -> None:
    """Arithmetic, comparison, clamp and relu of NaN, infinities and zeros follow IEEE 754, for one element and many."""
    for shape in ((), (67,)):
        values = (float("nan"), float("inf"), 0.0, 1.0)
        check_arithmetic(*(torch.full(shape, value, dtype=dtype, device=device) for value in values))


def check_arithmetic(nan: torch.Tensor, inf: torch.Tensor, zero: torch.Tensor, one: torch.Tensor) -> None:
    def is_all(found: torch.Tensor, value: float) -> bool:
        return bool((found == value).all())

    for undefined in (
        inf - inf,
        -inf + inf,
        inf * zero,
        zero * inf,
        zero / zero,
        inf / inf,
        nan + one,
        one + nan,
        nan * zero,
        zero * nan,
        nan.clamp(0, 1),
        nan.clamp(min=0),
        nan.clamp(max=1),
        nan.relu(),
    ):
        assert undefined.isnan().all()
    assert is_all(one / zero, float("inf"))
    assert is_all(one / -zero, float("-inf"))
    for left, right in ((nan, one), (one, nan), (nan, nan)):
        for found in (left < right, left <= right, left > right, left >= right, left == right):
            assert not found.any()
        assert (left != right).all()
        assert torch.maximum(left, right).isnan().all()
        assert torch.minimum(left, right).isnan().all()
    for left, right in ((nan, one), (one, nan)):
        assert is_all(torch.fmax(left, right), 1)
        assert is_all(torch.fmin(left, right), 1)
    assert (-inf < -one).all()
    assert (one < inf).all()
    assert (zero == -zero).all()
    assert is_all(inf.clamp(0, 1), 1)
    assert is_all((-inf).clamp(0, 1), 0)
    assert is_all(inf.relu(), float("inf"))
    assert is_all((-inf).relu(), 0)
    assert is_all(torch.copysign(one, -zero), -1)
    assert is_all(torch.copysign(-one, zero), 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=name)
def test_nan_in_matmul_spreads_along_its_row_and_column(device: torch.device, dtype: torch.dtype) -> None:
    """NaN in a matrix product affects exactly its row or column, also when multiplied by zeros."""
    for ones_first in (True, False):
        a, b = torch.ones(33, 20, dtype=dtype, device=device), torch.zeros(20, 17, dtype=dtype, device=device)
        a, b = (a, b) if ones_first else (torch.zeros_like(a), torch.ones_like(b))
        spoilt = a.clone()
        spoilt[5, 3] = float("nan")
        found = (spoilt @ b).isnan()
        assert found[5].all()
        assert found.sum().item() == 17
        spoilt = b.clone()
        spoilt[3, 4] = float("nan")
        found = (a @ spoilt).isnan()
        assert found[:, 4].all()
        assert found.sum().item() == 33


# ---- subnormal numbers ----


@pytest.mark.parametrize("dtype", FLOATING_TYPES, ids=name)
def test_subnormal_numbers_are_kept(device: torch.device, dtype: torch.dtype) -> None:
    """Subnormal numbers are copied, negated, added, halved, doubled and compared exactly, for few elements and many."""
    tiny = torch.finfo(dtype).tiny
    step = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    values = [tiny / 2, tiny / 4, step, 3 * step]
    for copies in (1, 17):
        x = torch.tensor(values * copies, dtype=dtype, device=device)
        assert (x > 0).all()

        assert (x + x).tolist() == [tiny, tiny / 2, 2 * step, 6 * step] * copies
        assert (x * 2).tolist() == [tiny, tiny / 2, 2 * step, 6 * step] * copies
        assert (-x).tolist() == [-value for value in values] * copies
        assert x.clone().tolist() == x.cpu().tolist() == values * copies
        differences = [tiny / 2, tiny * 0.75, tiny - step, tiny - 3 * step]
        assert (torch.full_like(x, tiny) - x).tolist() == differences * copies
        assert (torch.full_like(x, tiny) / 2).tolist() == [tiny / 2] * 4 * copies
        assert x[:4].sum().item() == tiny / 2 + tiny / 4 + 4 * step
        assert x.max().item() == tiny / 2


# ---- batch norm statistics ----


@pytest.mark.covers("test_cuda::TestCuda::test_batch_norm_gather_stats")
@pytest.mark.requires(device="cuda")
def test_batch_norm_gather_stats_of_two_batches(device: torch.device) -> None:
    """`batch_norm_gather_stats` of two equal batches with mean 1 and inverse deviation 1 gives 1 and 1.

    For unequal batches, it gives the mean of means, and the inverse deviation with the difference of the means, as in
    float64 (within 1e-5, about ten float32 roundings).
    """
    x = torch.randn(1, 3, 3, 3, device=device)

    def gathered(mean: torch.Tensor, invstd: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found: tuple[torch.Tensor, torch.Tensor] = torch.batch_norm_gather_stats(
            x, mean.to(device), invstd.to(device), None, None, 0.1, 1e-5, 2
        )
        return found

    ones = torch.ones(2, 3)
    for result in gathered(ones, ones):
        torch.testing.assert_close(result.cpu(), torch.ones(3))

    means, invstds = torch.tensor([[1.0, 2.0, 3.0], [3.0, 2.0, -1.0]]), torch.tensor([[1.0, 0.5, 2.0], [0.5, 1.0, 2.0]])
    mean = means.double().mean(0)
    variance = (invstds.double() ** -2 - 1e-5 + (means.double() - mean) ** 2).mean(0)
    found = gathered(means, invstds)
    torch.testing.assert_close(found[0].cpu().double(), mean, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found[1].cpu().double(), (variance + 1e-5).rsqrt(), rtol=1e-5, atol=1e-5)
