"""The cases of a run and their order: pure functions over ids."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.gating.policy import Policy
from harness.scheduling.order import selected_positions, shuffled_positions

IDS = [f"suites/{suite}/test_x.py::test_{number}" for suite in "ab" for number in range(20)]


def test_the_profile_chooses_by_suite_and_pattern() -> None:
    assert selected_positions(Policy(), IDS) == list(range(40))
    assert selected_positions(Policy(suites=("b",), exclude=("*_3",)), IDS) == [*range(20, 23), *range(24, 40)]


def test_a_seed_gives_one_order_and_another_seed_another() -> None:
    assert shuffled_positions(IDS, 1) == shuffled_positions(IDS, 1)
    assert shuffled_positions(IDS, 1) != shuffled_positions(IDS, 2)
    assert shuffled_positions(IDS, 1) != list(range(40))
    assert sorted(shuffled_positions(IDS, 1)) == list(range(40))


@given(st.sets(st.text(), max_size=30), st.sets(st.text(), max_size=30), st.integers(0, 2**64 - 1))
def test_which_of_two_cases_comes_first_does_not_depend_on_the_others(
    some: set[str], others: set[str], seed: int
) -> None:
    few, many = sorted(some), sorted(some | others)
    in_few = [few[position] for position in shuffled_positions(few, seed)]
    in_many = [many[position] for position in shuffled_positions(many, seed) if many[position] in some]
    assert in_few == in_many


def test_ids_that_are_there_twice_and_ids_no_encoding_has_are_ordered_too() -> None:
    assert sorted(shuffled_positions(["a", "\udc80", "a"], 5)) == [0, 1, 2]
