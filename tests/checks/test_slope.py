"""Slopes with their intervals: series that keep growing, and others."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.checks.trend import sustained_slope, theil_sen_slope

KIB = 1 << 10


def test_a_line_has_the_slope_of_the_line() -> None:
    found = theil_sen_slope([5 + 3 * number for number in range(10)])
    assert (found.estimate, found.low, found.high) == (3, 3, 3)


@pytest.mark.parametrize("count", [2, 6])
def test_few_readings_have_no_interval(count: int) -> None:
    found = theil_sen_slope(list(range(count)))
    assert (found.estimate, found.low, found.high) == (1, -math.inf, math.inf)


def test_ten_readings_have_the_interval_of_the_published_table() -> None:
    """Kendall's statistic: of the 45 pairs of ten readings, 9 to 36 rise in 99% of all cases."""
    values = [0, 12, 17, 34, 38, 50, 63, 68, 84, 88]
    slopes = sorted((values[j] - values[i]) / (j - i) for i in range(10) for j in range(i + 1, 10))
    found = theil_sen_slope(values)
    assert found.low == slopes[7]
    assert found.high == slopes[-8]


def test_many_readings_are_cut_into_stretches() -> None:
    found = theil_sen_slope([7 * number for number in range(5000)])
    assert (found.estimate, found.low, found.high) == (7, 7, 7)


@given(st.lists(st.integers(0, 1 << 40), min_size=2, max_size=40))
def test_the_estimate_lies_within_its_interval(values: list[int]) -> None:
    found = theil_sen_slope(values)
    assert found.low <= found.estimate <= found.high


@pytest.mark.parametrize(
    ("value", "goes"),
    [
        pytest.param(lambda n: 100 * KIB * n, True, id="a line"),
        pytest.param(lambda n: 1024 * KIB * (n // 2), True, id="stairs"),
        pytest.param(lambda _: 0, False, id="nothing"),
        pytest.param(lambda n: 30 * KIB * n, False, id="too little"),
        pytest.param(lambda n: 800 * KIB if n > 4 else 0, False, id="one step"),
        pytest.param(lambda n: 400 * KIB * ((n > 2) + (n > 6)), False, id="two steps"),
        pytest.param(lambda n: 900 * KIB * (1 - 0.5**n), False, id="ever slower"),
        pytest.param(lambda n: 300 * KIB * (n % 4), False, id="a saw-tooth"),
        pytest.param(lambda n: 100 * KIB * min(n, 5), False, id="it stops in the middle"),
        pytest.param(lambda n: 100 * KIB * max(0, n - 4), False, id="it begins in the middle"),
        pytest.param(lambda n: -100 * KIB * n, False, id="a fall"),
    ],
)
def test_what_goes_on(value: Callable[[int], float], goes: bool) -> None:
    assert (sustained_slope([int(value(number)) for number in range(10)], 64 * KIB) is not None) == goes


def test_noise_is_hardly_ever_taken_for_growth() -> None:
    """The interval is above the true slope once in 200 times; requiring the thirds to rise does not add to that."""
    draw = random.Random(7)
    series = [[draw.randint(0, 200 * KIB) for _ in range(10)] for _ in range(5_000)]
    assert sum(sustained_slope(values, 0) is not None for values in series) < 5_000 * 0.005


def test_too_few_readings_show_nothing() -> None:
    assert sustained_slope([], 0) is None
    assert sustained_slope([0, 100], 0) is None
    assert sustained_slope([0, 100, 200, 300, 400, 500], 0) is None


def test_one_outlier_is_no_growth() -> None:
    values = [1.0] * 15
    values[7] = 100.0
    found = theil_sen_slope(values)
    assert found.estimate == 0
    assert found.chance > 0.2


def test_a_rise_is_hardly_chance_and_a_fall_is() -> None:
    values = [1.0 + 0.1 * place for place in range(15)]
    found = theil_sen_slope(values)
    assert found.estimate == pytest.approx(0.1)
    assert found.chance < 1e-6
    assert theil_sen_slope(values[::-1]).chance == theil_sen_slope([1.0] * 15).chance == 1.0
    assert theil_sen_slope([1, 2, 3]).chance == 1.0


def test_noise_rises_as_often_as_its_probability_says() -> None:
    noise = random.Random(1)
    alarms = sum(theil_sen_slope([noise.gauss(1, 0.1) for _ in range(30)]).chance < 0.05 for _ in range(1000))
    assert 25 <= alarms <= 80
