"""What a process has grown by over many cases, and what rounds of the same cases say of it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from harness.checks.batch import (
    ALLOWANCES,
    Tally,
    allowed_in_batch,
    allowed_in_repetition,
    excess,
    leaks_of,
    leaks_together,
    runs_to_suspect,
    suspicions,
)
from harness.checks.growth import COUNTED, Leak
from harness.checks.meters.table import METERS

KIB, MIB = 1 << 10, 1 << 20


def tally(*cases: Mapping[str, int]) -> Tally:
    """Of cases that were not suspected."""
    made = Tally()
    for changes in cases:
        made.case(changes, {})
    return made


def test_every_allowance_is_for_a_meter() -> None:
    assert ALLOWANCES.keys() <= {meter.name for meter in METERS}
    for name, allowance in ALLOWANCES.items():
        assert allowance.why
        assert min(allowance.repetition) >= 0
        assert allowed_in_repetition(name, 2) >= allowed_in_repetition(name, 1)


@pytest.mark.parametrize(
    ("name", "cases", "allowed"),
    [
        ("heap_bytes", 24, 100 * KIB),
        ("heap_bytes", 400, 664 * KIB),
        ("heap_bytes", 402, 670 * KIB),
        ("heap_bytes", 1400, 3664 * KIB),
        ("mapped_bytes", 24, 2 * MIB + 384 * KIB),
        ("mapped_bytes", 400, 8 * MIB + 256 * KIB),
        ("mapped_bytes", 800, 23 * MIB + 896 * KIB),
        ("cuda_driver[1]", 200, 264 * MIB),
        ("threads", 24, 0),
        ("temp_files", 24, 0),
        ("cuda_reserved[0]", 24, None),
        ("python_blocks", 24, None),
    ],
)
def test_what_a_batch_is_allowed(name: str, cases: int, allowed: int | None) -> None:
    assert allowed_in_batch(name, cases) == allowed


@pytest.mark.parametrize(
    ("name", "cases", "allowed"),
    [
        ("heap_bytes", 1, 64 * KIB + 256),
        ("heap_bytes", 400, 164 * KIB),
        ("mapped_bytes", 1, 4 * KIB),
        ("cuda_driver[0]", 50, MIB),
        ("python_blocks", 100, 3_600),
        ("tensors", 400, 0),
        ("cuda_reserved[0]", 400, 0),
    ],
)
def test_what_a_repetition_is_allowed(name: str, cases: int, allowed: int) -> None:
    assert allowed_in_repetition(name, cases) == allowed


@pytest.mark.parametrize(
    ("grown", "cases", "found"),
    [
        ({"heap_bytes": 100 * KIB}, 24, set()),
        ({"heap_bytes": 100 * KIB + 1}, 24, {"heap_bytes"}),
        ({"heap_bytes": 100 * KIB + 1}, 25, set()),
        ({"mapped_bytes": 3 * MIB, "heap_bytes": 0}, 24, {"mapped_bytes"}),
        ({"threads": 1}, 24, {"threads"}),
        ({"cuda_segments[0]": 10, "python_blocks": 1 << 30}, 24, set()),
        # The example of the documentation: 2 MiB of the driver's with each of 200 cases.
        ({"cuda_driver[0]": 400 * MIB}, 200, {"cuda_driver[0]"}),
        ({"heap_bytes": 20 * MIB}, 200, {"heap_bytes"}),
    ],
)
def test_what_is_suspected(grown: dict[str, int], cases: int, found: set[str]) -> None:
    assert suspicions(grown, cases).keys() == found


def test_a_tally_adds_up_what_small_cases_leave() -> None:
    assert tally(*[{"heap_bytes": 1000}] * 5).end({"heap_bytes": -200}, {}) == {"heap_bytes": 4800}


def test_one_case_is_no_batch() -> None:
    made = tally({"heap_bytes": 1000})
    assert not made.several
    assert made.end({}, {"temp_files": 1}) == {}


def test_a_sum_never_falls_below_nothing() -> None:
    """What is given back was taken before the counting began, or by what was looked into."""
    changes = [{"heap_bytes": change} for change in (500, -50_000, 700, -100)]
    assert tally(*changes).end({}, {}) == {"heap_bytes": 600}
    assert tally({"heap_bytes": 10}, {"heap_bytes": -10}).end({}, {}) == {}


def test_what_was_looked_into_is_left_out() -> None:
    made = tally({"heap_bytes": 10})
    made.case({"heap_bytes": 900_000, "mapped_bytes": MIB}, {"heap_bytes": 900_000})
    made.again({"heap_bytes": 40}, {"heap_bytes": 900_000})  # lazily made
    assert made.end({}, {}) == {"heap_bytes": 50}


def test_a_leak_that_is_judged_by_itself_is_left_out_wholly() -> None:
    made = tally({}, {})
    suspected = {"tensors": 1}
    made.case({"tensors": 1, "heap_bytes": 100_000}, suspected)
    made.again({"tensors": 1, "heap_bytes": 100_000}, suspected)
    assert made.end({}, {}) == {}


def test_a_case_that_was_suspected_of_one_thing_counts_for_another() -> None:
    """The second run stands for both: a thread was made once, and memory each time."""
    made = tally({})
    made.case({"threads": 1, "heap_bytes": 100_000}, {"threads": 1})
    made.again({"heap_bytes": 99_000}, {"threads": 1})
    assert made.end({}, {}) == {"heap_bytes": 99_000}


def test_what_the_last_tear_down_leaves_counts_and_what_it_gives_back_does_not() -> None:
    made = tally({"heap_bytes": 100_000}, {})
    assert made.end({}, {"heap_bytes": -90_000, "temp_files": 1}) == {"heap_bytes": 100_000, "temp_files": 1}


BIG, SMALL = {"heap_bytes": 100 * KIB}, {"heap_bytes": 300}


@pytest.mark.parametrize(
    ("rounds", "leaks"),
    [
        ([[SMALL, SMALL]] * COUNTED, []),
        ([[SMALL, BIG]] * COUNTED, ["heap_bytes"]),
        ([[SMALL, BIG], [SMALL, SMALL], [SMALL, BIG], [SMALL, BIG]], []),
        ([[BIG, {"heap_bytes": -100 * KIB}]] * COUNTED, []),
        # Less with each than is looked at, and much together.
        ([[{"heap_bytes": 40 * KIB}] * 2] * COUNTED, ["heap_bytes"]),
        ([[{"python_blocks": 1500}, {"python_blocks": 600}]] * COUNTED, ["python_blocks"]),
        ([[{}, {"tensors": 1}]] * COUNTED, ["tensors"]),
    ],
)
def test_what_leaks_together(rounds: list[list[dict[str, int]]], leaks: list[str]) -> None:
    assert [leak.meter for leak in leaks_together(rounds, range(2))] == leaks


def test_only_those_that_are_asked_about_count_together() -> None:
    assert leaks_together([[SMALL, BIG]] * COUNTED, [0]) == []
    assert leaks_together([[SMALL, BIG]] * COUNTED, [1])
    assert leaks_together([[SMALL, BIG]] * COUNTED, []) == []


@pytest.mark.parametrize(
    ("rounds", "leaks"),
    [
        ([[SMALL, BIG]] * COUNTED, [[], ["heap_bytes"]]),
        ([[BIG, BIG]] * COUNTED, [["heap_bytes"], ["heap_bytes"]]),
        # What another case gives back is no leak of the one that takes it.
        ([[BIG, {"heap_bytes": -100 * KIB}]] * COUNTED, [[], []]),
        # Now this one grows, now that.
        ([[SMALL, BIG], [BIG, SMALL]] * 2, [[], []]),
        ([[{"mapped_bytes": 3 * MIB}, {}]] * COUNTED, [["mapped_bytes"], []]),
    ],
)
def test_which_case_leaks(rounds: list[list[dict[str, int]]], leaks: list[list[str]]) -> None:
    assert [[leak.meter for leak in leaks_of(rounds, position, range(2))] for position in range(2)] == leaks


def test_leaks_are_compared_by_what_each_is_allowed() -> None:
    thread, heap = Leak("threads", 1, ""), Leak("heap_bytes", 100 * KIB, "")
    assert excess(heap) > excess(thread)
    assert excess(Leak("threads", 2, "")) > excess(heap)


@pytest.mark.parametrize(
    ("meter", "amount", "cases", "times"),
    [
        ("heap_bytes", 100 * KIB, 2, 2),
        ("heap_bytes", 1024 * KIB, 2, 1),
        ("heap_bytes", 66 * KIB, 12, 5),
        ("mapped_bytes", 1024 * KIB, 2, 5),
        ("threads", 2, 2, 1),
        ("heap_bytes", 100 * KIB, 400, 1),  # however often: a batch of so many may grow by more
    ],
)
def test_how_often_cases_must_run_to_be_suspected(meter: str, amount: int, cases: int, times: int) -> None:
    """With twice what it takes, since no two runs leave the same."""
    assert runs_to_suspect(Leak(meter, amount, ""), cases) == times
