"""Other forms of the random generators: integers in place, moments in tensors, samples of a simplex, derivatives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ._torch_private import aten
from .oracle import Array, assert_within, numbers, tensor, types
from .test_random_statistics import COUNT, assert_counts, assert_fits, assert_moments, normal, seeded

F32, F64 = torch.float32, torch.float64


@pytest.mark.operator("random_")
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64", "float32", "float64", "bool"])
def test_random_fills_the_range_of_its_type(device: torch.device, dtype: str) -> None:
    """`random_` draws whole numbers from 0 to the largest of an integer type, or that a float type holds exactly."""
    kind = getattr(torch, dtype)
    x = torch.empty(COUNT, dtype=kind, device=device).random_(generator=seeded(device))

    drawn = numbers(x)
    values = drawn.astype(np.float64)
    bits = {"bool": 1, "float32": 24, "float64": 53}.get(dtype) or kind.itemsize * 8 - kind.is_signed
    assert (values == np.floor(values)).all()
    assert values.min() >= 0
    parts = min(16, 2**bits)
    # A float type also has its largest whole number.
    places = np.minimum(values / 2.0**bits * parts, parts - 1).astype(int)
    assert values.max() <= 2.0**bits
    assert_counts(np.bincount(places, minlength=parts), np.full(parts, 1 / parts))
    odd = (drawn.astype(np.int64) & 1).mean()
    assert abs(odd - 0.5) <= 2.5 / math.sqrt(COUNT)


@pytest.mark.operator("random_")
@pytest.mark.parametrize(("low", "high"), [(None, 7), (-5, 8), (-128, 127), (100, 101)], ids=str)
@pytest.mark.parametrize("dtype", ["int8", "int64", "float32", "bfloat16"])
def test_random_of_a_range(device: torch.device, dtype: str, low: int | None, high: int) -> None:
    """Each whole number from `from` up to `to` has its share, and no other occurs."""
    x = torch.empty(COUNT, dtype=getattr(torch, dtype), device=device)
    if low is None:
        aten("random_.to")(x, high, generator=seeded(device))
    else:
        aten("random_.from")(x, low, high, generator=seeded(device))

    first = low or 0
    values = numbers(x).astype(np.float64) - first
    assert values.min() >= 0
    counts = np.bincount(values.astype(int), minlength=high - first)
    assert len(counts) == high - first
    if len(counts) > 1:
        assert_counts(counts, np.full(len(counts), 1 / len(counts)))


@pytest.mark.operator("random_")
def test_random_from_to_the_end_has_all_bits(device: torch.device) -> None:
    """From the smallest 64-bit number without an end, each bit is set in half of the numbers."""
    count = 50_000
    x = torch.empty(count, dtype=torch.int64, device=device)
    aten("random_.from")(x, -(2**63), None, generator=seeded(device))
    bits = (numbers(x)[:, None] >> np.arange(64)) & 1
    assert (np.abs(bits.mean(0) - 0.5) <= 2.5 / math.sqrt(count)).all()


@pytest.mark.operator("normal", "bernoulli")
@types(F32, F64)
def test_normal_and_bernoulli_by_tensors(device: torch.device, rng: np.random.Generator, dtype: torch.dtype) -> None:
    """`normal` takes a deviation, a mean, or both per element or broadcast; `bernoulli_` takes probabilities."""
    spread, middle = rng.uniform(0.5, 4, COUNT), rng.uniform(-3, 3, COUNT)
    s, m = tensor(spread, dtype, device), tensor(middle, dtype, device)
    a, b = numbers(s), numbers(m)
    draws: list[tuple[torch.Tensor, Array, Array]] = [
        (aten("normal.float_Tensor")(1.5, s, generator=seeded(device)), np.full(COUNT, 1.5), a),
        (aten("normal.Tensor_float")(m, 0.5, generator=seeded(device)), b, np.full(COUNT, 0.5)),
        (aten("normal.Tensor_Tensor")(m, s, generator=seeded(device)), b, a),
    ]
    rows = COUNT // 4
    for mean, deviation in ((m[:rows, None], s[:4]), (m[:4], s[:rows, None])):
        shapes = np.broadcast_arrays(numbers(mean), numbers(deviation))
        draws.append((torch.normal(mean, deviation, generator=seeded(device)), *shapes))
    for found, mean, deviation in draws:
        assert tuple(found.shape) == mean.shape
        plain = ((numbers(found) - mean) / deviation).ravel()
        assert_fits(plain, normal)
        assert_moments(plain, 0, 1)
    p = tensor(rng.choice([0.0, 0.125, 0.5, 1.0], COUNT), dtype, device)
    drawn = numbers(aten("bernoulli_.Tensor")(torch.empty_like(p), p, generator=seeded(device)))
    for share in (0.0, 0.125, 0.5, 1.0):
        there = drawn[numbers(p) == share]
        assert set(np.unique(there)) <= {0.0, 1.0}
        assert abs(there.mean() - share) <= 5 * math.sqrt(share * (1 - share) / len(there))


@pytest.mark.operator("_sample_dirichlet")
@types(F32, F64)
def test_dirichlet_samples_have_their_moments(device: torch.device, dtype: torch.dtype) -> None:
    """Rows have a sum of one, and each share has the mean a / sum(a) and the variance of a beta distribution."""
    shape = np.array([0.5, 1.0, 2.5, 4.0])
    rows = 60_000
    x = tensor(np.broadcast_to(shape, (rows, 4)), dtype, device)

    found = numbers(aten("_sample_dirichlet.default")(x, generator=seeded(device)))

    total = shape.sum()
    assert np.abs(found.sum(1) - 1).max() <= 8 * torch.finfo(dtype).eps
    assert found.min() >= 0
    for place, a in enumerate(shape):
        mean, variance = a / total, a * (total - a) / (total**2 * (total + 1))
        assert abs(found[:, place].mean() - mean) <= 5 * math.sqrt(variance / rows)
        assert abs(found[:, place].var() / variance - 1) <= 5 * math.sqrt(8 / rows)


def _slope_of_share(shape: float, x: float) -> float:
    """Return the derivative by its shape of the share of a gamma distribution below x.

    The share is x**shape * exp(-x) / gamma(shape) times the series of the lower incomplete gamma function.
    """
    import mpmath

    term = total = 1 / shape
    inverses = 1 / shape
    slope = -term * inverses
    place = shape
    while abs(term) > 1e-17 * abs(total):
        place += 1
        term *= x / place
        inverses += 1 / place
        total += term
        slope -= term * inverses
    factor = math.exp(-x + shape * math.log(x) - math.lgamma(shape))
    return factor * (slope + total * (math.log(x) - float(mpmath.digamma(shape))))


@pytest.mark.operator("_standard_gamma_grad")
@types(F32, F64)
def test_standard_gamma_grad_is_the_slope_of_the_quantile(device: torch.device, dtype: torch.dtype) -> None:
    """The derivative of a sample by its shape, at a fixed share, is minus dF/da divided by the density.

    torch promises a relative error below 5e-4.
    """
    shapes = np.array([0.3, 0.9, 1.0, 2.5, 7.0, 8.5, 30.0])
    a = np.repeat(shapes, 3)
    x = a * np.tile([0.5, 1.0, 1.6], len(shapes))
    slopes = [_slope_of_share(s, v) for s, v in zip(a, x, strict=True)]
    density = np.exp((a - 1) * np.log(x) - x - np.vectorize(math.lgamma)(a))

    found = aten("_standard_gamma_grad.default")(tensor(a, dtype, device), tensor(x, dtype, device))

    wanted = -np.array(slopes) / density
    assert_within(found, wanted, 1e-3 * np.abs(wanted))
