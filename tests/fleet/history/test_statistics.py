"""Statistics compared with known values, or with other computations."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.fleet.statistics import holm, poisson_tail, wilson


@pytest.mark.parametrize(
    ("bad", "total", "low", "high"),
    [(0, 10, 0.0, 0.2775), (1, 10, 0.0179, 0.4042), (5, 10, 0.2366, 0.7634), (10, 10, 0.7225, 1.0), (0, 0, 0.0, 1.0)],
)
def test_wilson_is_as_tabulated(bad: int, total: int, low: float, high: float) -> None:
    assert wilson(bad, total) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(0, 60), st.floats(0.01, 40))
def test_the_tail_is_the_sum_of_the_terms(seen: int, expected: float) -> None:
    terms = [math.exp(k * math.log(expected) - expected - math.lgamma(k + 1)) for k in range(400)]
    assert poisson_tail(seen, expected) == pytest.approx(sum(terms[seen:]), abs=1e-12, rel=1e-6)


def test_without_an_expectation_any_event_is_impossible() -> None:
    assert (poisson_tail(0, 0), poisson_tail(1, 0)) == (1.0, 0.0)


def test_holm_is_as_in_its_paper() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=20))
def test_holm_keeps_the_order_and_lowers_nothing(chances: list[float]) -> None:
    corrected = holm(chances)
    assert all(after >= before for before, after in zip(chances, corrected, strict=True))
    pairs = sorted(zip(chances, corrected, strict=True))
    assert [after for _, after in pairs] == sorted(after for _, after in pairs)
