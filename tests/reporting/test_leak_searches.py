"""The lines about processes that grew: only unexplained growth is reported, and the cost of searches."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from harness.journal.events import Batch
from harness.reporting.leak_searches import leak_search_cost, unproven_leaks
from tests.reporting import build

GIVEN_UP = "the 10 s for leak searches are used up; --leak-search=SECONDS gives more"


def search(**changes: Any) -> Batch:
    return msgspec.convert({**build.batch("a::b", "a::c"), **changes}, Batch)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, ""),
        ({"leaks": ["a::b leaks"]}, ""),
        (
            {"failure": "--leak-search=off", "trials": 0, "tried": 0},
            "GREW executor gw0-1 by 1.0 MiB (heap_bytes) over 2 cases, not shown to be a leak: none of them ran again; "
            "--leak-search=off",
        ),
        (
            {
                "failure": GIVEN_UP,
                "unproven": ["a::b may leak: 1 more"],
                "suspicions": {"threads": 1, "of_a_new_meter": 7},
            },
            "GREW executor gw0-1 by 1 (threads), 7 (of_a_new_meter) over 2 cases, not shown to be a leak: "
            f"2 of them ran again in 0.5 s; a::b may leak: 1 more; {GIVEN_UP}",
        ),
    ],
)
def test_what_is_not_shown_has_a_line_with_the_reason(changes: dict[str, Any], line: str) -> None:
    assert unproven_leaks([search(**changes)]) == ([line] if line else [])


def test_no_line_is_longer_than_a_person_reads() -> None:
    (line,) = unproven_leaks([search(failure="x" * 5000)])
    assert len(line) <= 600


def test_what_searches_took() -> None:
    assert leak_search_cost([]) == leak_search_cost([search(trials=0)]) == ""
    assert leak_search_cost([search()]) == ", 1 leak search in 0.5 s"
    assert leak_search_cost([search(), search(seconds=9.25), search(trials=0)]) == ", 2 leak searches in 9.8 s"
