"""The time that a worker may use to search for leaks."""

from __future__ import annotations

import pytest

from harness.supervisor.leak_confirmation import LEAST, SearchTime
from tests.supervisor.fakes import Clock


@pytest.mark.parametrize(
    ("limit", "multiplier", "ran", "allowed"),
    [
        (None, 1, 0, LEAST),
        (None, 1, 99, LEAST),
        (None, 1, 420, 42),
        (None, 2, 420, 84),
        (60, 1, 7, 60),
        (60, 2, 7, 120),
        (0, 2, 1000, 0),
    ],
)
def test_a_search_may_take_a_tenth_of_the_time_or_what_the_user_allows(
    limit: float | None, multiplier: float, ran: float, allowed: float
) -> None:
    clock = Clock()
    made = SearchTime(limit, multiplier, clock=clock)
    clock.now += ran
    assert (made.limit, made.left) == (allowed, allowed)


def test_all_searches_share_the_time_and_those_within_others_count_once() -> None:
    clock = Clock()
    made = SearchTime(100, clock=clock)
    for _ in range(2):
        with made.spending():
            clock.now += 10
            with made.spending():
                clock.now += 20
            assert made.spent % 30 == 0
        clock.now += 1000
    assert (made.spent, made.left) == (60, 40)


def test_a_search_gives_itself_no_time() -> None:
    """The run's time excludes searches: otherwise each second of search would allow a tenth of another one."""
    clock = Clock()
    made = SearchTime(None, clock=clock)
    clock.now += 200
    with made.spending():
        clock.now += 1000
        assert made.limit == 20
    assert made.left == -980


def test_the_reason_why_nothing_is_looked_at_names_the_option() -> None:
    assert SearchTime(0).used_up() == "--leak-search=off"
    assert SearchTime(30).used_up() == "the 30 s for leak searches are used up; --leak-search=SECONDS gives more"
