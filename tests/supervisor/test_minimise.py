"""Minimising: a minimal part of a list that still has the property, and the number of calls needed."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.supervisor.leak_bisect import minimise


@pytest.mark.parametrize(
    ("length", "culprits"),
    [(1, {0}), (2, {1}), (10, {3}), (10, {0, 9}), (10, {2, 3, 7}), (16, set(range(16))), (5, set())],
)
def test_what_is_needed_is_found(length: int, culprits: set[int]) -> None:
    assert minimise(range(length), lambda part: culprits <= {*part}) == sorted(culprits)


def test_one_culprit_among_many_takes_few_calls() -> None:
    tried: list[int] = []

    def does(part: Sequence[int]) -> bool:
        tried.append(len(part))
        return 700 in part

    assert minimise(range(1000), does) == [700]
    assert len(tried) <= 25


@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.sets(st.integers(0, n - 1))))))
def test_the_part_does_it_and_nothing_less_does(case: tuple[int, list[set[int]]]) -> None:
    """Several sets may each be sufficient; the whole list always is."""
    length, enough = case
    tried: list[tuple[int, ...]] = []

    def does(part: Sequence[int]) -> bool:
        tried.append(tuple(part))
        return len(part) == length or any(one <= {*part} for one in enough)

    found = minimise(range(length), does)
    assert len(tried) == len(set(tried))
    assert found == sorted(found)
    assert does(found)
    assert not any(does([item for item in found if item != left_out]) for left_out in found)
