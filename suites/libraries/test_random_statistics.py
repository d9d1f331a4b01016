"""Distributions of the random generators: tests of fit, moments and independence, with a fixed seed.

The seed is fixed, so a case always draws the same numbers on one device and release, and its verdict never varies. The
bounds are quantiles for a probability of 10^-6 under the distribution (chi-square by Wilson and Hilferty, the
Kolmogorov-Smirnov statistic by its series, means and variances by the normal distribution: five standard errors). A
correct generator with any seed exceeds a bound once in a hundred thousand cases.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ._torch_private import standard_gamma
from .oracle import Array, numbers, types

COUNT = 200_003
SEED = 20_011
#: The normal quantile of a probability of 10^-6.
Z = 4.753

REAL = types(torch.float32, torch.float64)


def seeded(device: torch.device) -> torch.Generator:
    return torch.Generator(device).manual_seed(SEED)


def assert_fits(values: Array, distribution: Callable[[Array], Array]) -> None:
    """Check the Kolmogorov-Smirnov statistic of samples of a continuous distribution, given its cumulative function."""
    below = distribution(np.sort(values))
    steps = np.arange(len(values) + 1) / len(values)
    statistic = max((below - steps[:-1]).max(), (steps[1:] - below).max())
    # P(D > d) is about 2 exp(-2 n d^2)
    largest = math.sqrt(math.log(2 / 1e-6) / (2 * len(values)))
    assert statistic <= largest, f"the distributions differ by {statistic:.4g}, beyond {largest:.4g}"


def assert_counts(counts: Array, shares: Array) -> None:
    """Check the chi-square statistic of counts against expected shares."""
    expected = shares * counts.sum()
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = len(shares) - 1
    largest = freedom * (1 - 2 / (9 * freedom) + Z * math.sqrt(2 / (9 * freedom))) ** 3
    assert statistic <= largest, f"chi-square is {statistic:.4g} for {freedom} degrees, beyond {largest:.4g}"


def assert_moments(values: Array, mean: float, deviation: float, fourth: float = 3.0) -> None:
    """Check mean and variance, for a distribution whose fourth moment is `fourth` times the squared variance."""
    size = len(values)
    assert abs(values.mean() - mean) <= 5 * deviation / math.sqrt(size)
    spread = deviation**2 * math.sqrt((fourth - 1) / size)
    assert abs(values.var() - deviation**2) <= 5 * spread


def normal(x: Array) -> Array:
    return np.vectorize(lambda value: 0.5 * math.erfc(-value / math.sqrt(2)))(x)  # type: ignore[no-any-return]


#: The function that draws numbers; the cumulative distribution; mean, deviation, and the ratio of the fourth moment.
Draw = Callable[[torch.Tensor, torch.Generator], torch.Tensor]
CONTINUOUS: dict[str, tuple[Draw, Callable[[Array], Array], tuple[float, float, float]]] = {
    "rand": (
        lambda x, g: torch.rand(x.shape, generator=g, device=x.device, dtype=x.dtype),
        lambda v: v,
        (0.5, 12**-0.5, 1.8),
    ),
    "uniform": (lambda x, g: x.uniform_(-3, 5, generator=g), lambda v: (v + 3) / 8, (1, 8 / 12**0.5, 1.8)),
    "randn": (
        lambda x, g: torch.randn(x.shape, generator=g, device=x.device, dtype=x.dtype),
        normal,
        (0, 1, 3),
    ),
    "normal": (lambda x, g: x.normal_(2, 3, generator=g), lambda v: normal((v - 2) / 3), (2, 3, 3)),
    "exponential": (lambda x, g: x.exponential_(0.5, generator=g), lambda v: 1 - np.exp(-v / 2), (2, 2, 9)),
    "log_normal": (
        lambda x, g: x.log_normal_(0.1, 0.25, generator=g),
        lambda v: normal((np.log(v) - 0.1) / 0.25),
        (
            math.exp(0.1 + 0.25**2 / 2),
            math.sqrt(math.expm1(0.25**2)) * math.exp(0.1 + 0.25**2 / 2),
            3 + 16 * math.expm1(0.25**2) * 2,
        ),
    ),
}


@pytest.mark.parametrize("kind", CONTINUOUS)
@REAL
def test_continuous_distribution_fits(device: torch.device, kind: str, dtype: torch.dtype) -> None:
    """Samples fit their cumulative distribution, with its mean and variance, and neighbors are not correlated."""
    draw, distribution, moments = CONTINUOUS[kind]

    values = numbers(draw(torch.empty(COUNT, dtype=dtype, device=device), seeded(device)))

    assert np.isfinite(values).all()
    assert_fits(values, distribution)
    assert_moments(values, *moments)
    ranks = distribution(values) - 0.5
    for lag in (1, 2, 3, 4, 32, 1024):
        correlation = 12 * (ranks[:-lag] * ranks[lag:]).mean()
        assert abs(correlation) <= 5 / math.sqrt(COUNT - lag), f"numbers {lag} apart are correlated"


@pytest.mark.parametrize("kind", ["cauchy", "standard_gamma", "beta_of_gammas"])
@REAL
def test_other_continuous_distributions_fit(device: torch.device, kind: str, dtype: torch.dtype) -> None:
    """Cauchy is uniform through the arctangent, gamma of shape one is exponential, and its shares are uniform."""
    x = torch.ones(COUNT, dtype=dtype, device=device)
    generator = seeded(device)

    if kind == "cauchy":
        assert_fits(numbers(x.cauchy_(1, 2, generator=generator)), lambda v: 0.5 + np.arctan((v - 1) / 2) / np.pi)
        return
    first, second = (numbers(standard_gamma(x, generator)) for _ in range(2))
    if kind == "standard_gamma":
        assert_fits(first, lambda v: 1 - np.exp(-v))
        assert_moments(first, 1, 1, 9)
    else:
        assert_fits(first / (first + second), lambda v: v)


@types(torch.float16, torch.bfloat16)
def test_rand_of_half_precision_is_uniform_and_below_one(device: torch.device, dtype: torch.dtype) -> None:
    """Uniform 16-bit numbers are in [0, 1), on a grid of their type, and each sixteenth has its share."""
    values = numbers(torch.rand(COUNT, generator=seeded(device), device=device, dtype=dtype))

    assert values.min() >= 0
    assert values.max() < 1
    assert_counts(np.bincount((values * 16).astype(int), minlength=16), np.full(16, 1 / 16))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.int16], ids=str)
@pytest.mark.parametrize("high", [2, 7, 100, 128])
def test_randint_fits(device: torch.device, dtype: torch.dtype, high: int) -> None:
    """Each whole number from `low` up to `high` has its share, and no other occurs."""
    low = 0 if dtype == torch.uint8 else -3
    x = torch.randint(low, high, (COUNT,), generator=seeded(device), device=device, dtype=dtype)

    values = numbers(x) - low
    assert values.min() >= 0
    assert_counts(np.bincount(values.astype(int), minlength=high - low), np.full(high - low, 1 / (high - low)))


def test_random_of_64_bits_uses_each_bit(device: torch.device) -> None:
    """Each of the low 53 bits of `randint` over a range of 2^60 is set in half of them.

    It is independent of the next bit.
    """
    values = numbers(torch.randint(0, 1 << 60, (COUNT,), generator=seeded(device), device=device))

    bits = (values[:, None] >> np.arange(60)) & 1
    assert (np.abs(bits.mean(0) - 0.5) <= 5 * 0.5 / math.sqrt(COUNT)).all()
    signs = 2.0 * bits - 1
    assert (np.abs((signs[:, 1:] * signs[:, :-1]).mean(0)) <= 5 / math.sqrt(COUNT)).all()


@pytest.mark.parametrize("p", [0.0, 0.01, 0.5, 0.9, 1.0])
def test_bernoulli_and_dropout_have_their_share(device: torch.device, p: float) -> None:
    """`bernoulli` has ones in the share p, a number or a tensor; `dropout` drops that share and scales the rest."""
    x = torch.empty(COUNT, device=device)
    torch.manual_seed(SEED)
    allowed = 5 * math.sqrt(p * (1 - p) / COUNT)

    for drawn in (x.bernoulli_(p, generator=seeded(device)), torch.bernoulli(torch.full_like(x, p))):
        values = numbers(drawn)
        assert set(np.unique(values)) <= {0.0, 1.0}
        assert abs(values.mean() - p) <= allowed
    kept = numbers(torch.nn.functional.dropout(torch.ones_like(x), p))
    assert abs((kept == 0).mean() - p) <= allowed
    if p < 1:
        assert np.abs(kept[kept != 0] - 1 / (1 - p)).max(initial=0) <= 1e-6 / (1 - p)


@pytest.mark.parametrize("replacement", [True, False], ids=["with", "without"])
@REAL
def test_multinomial_has_the_shares_of_its_weights(device: torch.device, replacement: bool, dtype: torch.dtype) -> None:
    """`multinomial` draws each place with the share of its weight, and never a place of weight zero.

    Without replacement, the first of three draws has these shares, and no place is drawn twice.
    """
    weights = np.array([1.0, 0, 2, 3, 0, 4, 6, 0.5])
    x = torch.from_numpy(weights).to(dtype).to(device)
    rows = 60_000

    drawn = numbers(torch.multinomial(x.expand(rows, 8), 3, replacement=replacement, generator=seeded(device)))

    chosen = weights > 0
    shares = weights[chosen] / weights.sum()
    counted = drawn if replacement else drawn[:, :1]
    counts = np.bincount(counted.ravel(), minlength=8)
    assert (counts[~chosen] == 0).all()
    assert_counts(counts[chosen], shares)
    if not replacement:
        assert (np.diff(np.sort(drawn, axis=1)) > 0).all()


@pytest.mark.parametrize("size", [1, 2, 5, 1000, 70_001])
def test_randperm_is_a_permutation_of_any_order(device: torch.device, size: int) -> None:
    """Each permutation has each number once, and the numbers at each of five places have equal shares."""
    generator = seeded(device)
    once = numbers(torch.randperm(size, generator=generator, device=device))
    assert (np.sort(once) == np.arange(size)).all()

    if size == 5:
        many = np.stack([numbers(torch.randperm(5, generator=generator, device=device)) for _ in range(6000)])
        codes = many @ (5 ** np.arange(5))
        assert len(np.unique(codes)) == 120
        for place in range(5):
            assert_counts(np.bincount(many[:, place], minlength=5), np.full(5, 0.2))


@pytest.mark.parametrize("rate", [0.3, 4.0, 60.0])
def test_poisson_fits(device: torch.device, rate: float) -> None:
    """`poisson` gives whole numbers with the shares of its rate."""
    x = torch.full((COUNT,), rate, device=device)

    values = numbers(torch.poisson(x, generator=seeded(device)))

    assert (values == np.round(values)).all()
    shares = [math.exp(-rate + k * math.log(rate) - math.lgamma(k + 1)) for k in range(400)]
    frequent = [k for k in range(400) if shares[k] * COUNT > 20]
    counts = np.array([(values == k).sum() for k in frequent] + [(~np.isin(values, frequent)).sum()])
    assert_counts(counts, np.array([shares[k] for k in frequent] + [1 - sum(shares[k] for k in frequent)]))


@pytest.mark.parametrize("p", [0.05, 0.3, 0.9])
def test_geometric_and_binomial_fit(device: torch.device, p: float) -> None:
    """`geometric_` counts the trials up to the first success; `binomial` the successes of ten trials."""
    tries = numbers(torch.empty(COUNT, device=device).geometric_(p, generator=seeded(device)))
    last = max(k for k in range(1, 400) if p * (1 - p) ** (k - 1) * COUNT > 20)
    shares = p * (1 - p) ** np.arange(last)
    counts = np.append([(tries == k).sum() for k in range(1, last + 1)], (tries > last).sum())
    assert tries.min() >= 1
    assert_counts(counts, np.append(shares, 1 - shares.sum()))

    wins = numbers(
        torch.binomial(
            torch.full((COUNT,), 10.0, device=device), torch.full((COUNT,), p, device=device), seeded(device)
        )
    ).astype(int)
    shares = np.array([math.comb(10, k) * p**k * (1 - p) ** (10 - k) for k in range(11)])
    counts = np.bincount(wins, minlength=11)
    frequent = shares * COUNT > 20
    assert counts[~frequent].sum() <= 20 * (11 - frequent.sum()) * 3
    assert_counts(counts[frequent], shares[frequent] / shares[frequent].sum())


@pytest.mark.parametrize("kind", ["rand", "randn", "randint", "exponential"])
@pytest.mark.types("float64")
def test_seeds_and_consecutive_calls_are_independent(device: torch.device, kind: str) -> None:
    """Equal seeds give equal numbers; other seeds, and the next call, give uncorrelated numbers."""
    run: Any = {
        "rand": lambda g: torch.rand(20_000, generator=g, device=device),
        "randn": lambda g: torch.randn(20_000, generator=g, device=device),
        "randint": lambda g: torch.randint(0, 1 << 20, (20_000,), generator=g, device=device).double(),
        "exponential": lambda g: torch.empty(20_000, device=device).exponential_(generator=g),
    }[kind]
    generator = seeded(device)
    first, following = numbers(run(generator)), numbers(run(generator))
    other = numbers(run(torch.Generator(device).manual_seed(SEED + 1)))

    assert (numbers(run(seeded(device))) == first).all()
    for values in (following, other):
        correlation = np.corrcoef(np.argsort(np.argsort(first)), np.argsort(np.argsort(values)))[0, 1]
        assert abs(correlation) <= 5 / math.sqrt(20_000)
