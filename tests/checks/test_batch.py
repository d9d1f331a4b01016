"""The growth of a process over many cases, and the judgement on rounds of the same cases."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from harness.checks.growth import (
    COUNTED_ROUNDS,
    BatchGrowth,
    KeptMemory,
    Leak,
    allowed_in_batch,
    allowed_in_repetition,
    is_explained,
    leak_excess,
    leaks_of_case,
    leaks_together,
    may_case_leak,
    may_leak_together,
    rank_by_growth,
    runs_to_suspect,
    suspicious_batch_growth,
)
from harness.checks.keeping import Keeps
from harness.checks.meters import METERS

KIB, MIB = 1 << 10, 1 << 20
ALL = frozenset(meter.name for meter in METERS)


def batch(*cases: Mapping[str, int]) -> BatchGrowth:
    """Return the growth over cases that were not suspected."""
    made = BatchGrowth()
    for number, changes in enumerate(cases):
        made.add_case(f"c{number}", changes, {})
    return made


def test_the_sum_with_further_changes_leaves_the_sum_as_it_is() -> None:
    grown = batch({"heap_bytes": 5, "threads": 1}, {"heap_bytes": 2})
    assert grown.sum_with({"heap_bytes": -9, "tensors": 1}) == {"heap_bytes": 0, "threads": 1, "tensors": 1}
    assert grown.total({}, {}, readable=ALL) == {"heap_bytes": 7, "threads": 1}


def test_each_batch_rule_has_a_reason_and_grows_with_the_cases() -> None:
    rules = {meter.name: meter.batch for meter in METERS if meter.batch is not None}
    assert set(rules) == {"heap_bytes", "mapped_bytes", "cuda_driver", "python_blocks"}
    for name, rule in rules.items():
        assert rule.why
        assert min(rule.repetition) >= 0
        assert allowed_in_repetition(name, 2) >= allowed_in_repetition(name, 1)


@pytest.mark.parametrize(
    ("name", "cases", "allowed"),
    [
        ("heap_bytes", 24, 100 * KIB),
        ("heap_bytes", 100, 214 * KIB),
        ("heap_bytes", 102, 220 * KIB),
        ("heap_bytes", 1400, 4114 * KIB),
        ("mapped_bytes", 24, 2 * MIB + 384 * KIB),
        ("mapped_bytes", 100, 3 * MIB + 576 * KIB),
        ("mapped_bytes", 800, 24 * MIB + 72 * KIB),
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
        # The documentation's example: 2 MiB of driver memory per case, with 200 cases.
        ({"cuda_driver[0]": 400 * MIB}, 200, {"cuda_driver[0]"}),
        ({"heap_bytes": 20 * MIB}, 200, {"heap_bytes"}),
    ],
)
def test_what_is_suspected(grown: dict[str, int], cases: int, found: set[str]) -> None:
    assert suspicious_batch_growth(grown, cases).keys() == found


def test_the_growth_of_small_cases_is_added_up() -> None:
    assert batch(*[{"heap_bytes": 1000}] * 5).total({"heap_bytes": -200}, {}, readable=ALL) == {"heap_bytes": 4800}


def test_one_case_is_no_batch() -> None:
    made = batch({"heap_bytes": 1000})
    assert not made.several
    assert made.total({}, {"temp_files": 1}, readable=ALL) == {}


def test_a_sum_never_falls_below_zero() -> None:
    """A larger decrease concerns memory from before the counting, or from a suspected run."""
    changes = [{"heap_bytes": change} for change in (500, -50_000, 700, -100)]
    assert batch(*changes).total({}, {}, readable=ALL) == {"heap_bytes": 600}
    assert batch({"heap_bytes": 10}, {"heap_bytes": -10}).total({}, {}, readable=ALL) == {}


def test_a_suspected_run_is_left_out() -> None:
    made = batch({"heap_bytes": 10})
    made.add_case("c", {"heap_bytes": 900_000, "mapped_bytes": MIB}, {"heap_bytes": 900_000})
    made.add_rerun({"heap_bytes": 40}, {"heap_bytes": 900_000})  # created lazily
    assert made.total({}, {}, readable=ALL) == {"heap_bytes": 50}


def test_a_leak_that_is_judged_by_itself_is_left_out() -> None:
    made = batch({}, {})
    suspected = {"tensors": 1}
    made.add_case("c", {"tensors": 1, "heap_bytes": 100_000}, suspected)
    made.add_rerun({"tensors": 1, "heap_bytes": 100_000}, suspected)
    assert made.total({}, {}, readable=ALL) == {}


def test_a_case_suspected_for_one_meter_counts_for_another() -> None:
    """The second run counts for both meters: a thread was created once, and memory is allocated each time."""
    made = batch({})
    made.add_case("c", {"threads": 1, "heap_bytes": 100_000}, {"threads": 1})
    made.add_rerun({"heap_bytes": 99_000}, {"threads": 1})
    assert made.total({}, {}, readable=ALL) == {"heap_bytes": 99_000}


def test_what_the_last_tear_down_leaves_counts_and_what_it_gives_back_does_not() -> None:
    made = batch({"heap_bytes": 100_000}, {})
    assert made.total({}, {"heap_bytes": -90_000, "temp_files": 1}, readable=ALL) == {
        "heap_bytes": 100_000,
        "temp_files": 1,
    }


BIG, SMALL = {"heap_bytes": 100 * KIB}, {"heap_bytes": 300}


@pytest.mark.parametrize(
    ("rounds", "leaks"),
    [
        ([[SMALL, SMALL]] * COUNTED_ROUNDS, []),
        ([[SMALL, BIG]] * COUNTED_ROUNDS, ["heap_bytes"]),
        ([[SMALL, BIG]] * (COUNTED_ROUNDS - 1), []),  # too few rounds
        ([[SMALL, BIG]] * 4 + [[SMALL, SMALL]] * (COUNTED_ROUNDS - 4), []),  # it stops
        ([[SMALL, SMALL]] * 4 + [[SMALL, BIG]] + [[SMALL, SMALL]] * (COUNTED_ROUNDS - 5), []),  # once
        ([[SMALL, {"heap_bytes": 1600 * KIB >> number}] for number in range(COUNTED_ROUNDS)], []),  # slower and slower
        ([[SMALL, BIG], [SMALL, {"heap_bytes": 160 * KIB}]] * 4 + [[SMALL, BIG]], ["heap_bytes"]),
        ([[BIG, {"heap_bytes": -100 * KIB}]] * COUNTED_ROUNDS, []),
        # Too little for each case alone, but too much together.
        ([[{"heap_bytes": 40 * KIB}] * 2] * COUNTED_ROUNDS, ["heap_bytes"]),
        ([[{"python_blocks": 1500}, {"python_blocks": 600}]] * COUNTED_ROUNDS, ["python_blocks"]),
        ([[{}, {"tensors": 1}]] * COUNTED_ROUNDS, ["tensors"]),
    ],
)
def test_what_leaks_together(rounds: list[list[dict[str, int]]], leaks: list[str]) -> None:
    assert [leak.meter for leak in leaks_together(rounds, range(2))] == leaks


def test_only_the_cases_in_question_count_together() -> None:
    assert leaks_together([[SMALL, BIG]] * COUNTED_ROUNDS, [0]) == []
    assert leaks_together([[SMALL, BIG]] * COUNTED_ROUNDS, [1])
    assert leaks_together([[SMALL, BIG]] * COUNTED_ROUNDS, []) == []


@pytest.mark.parametrize(
    ("rounds", "leaks"),
    [
        ([[SMALL, BIG]] * COUNTED_ROUNDS, [[], ["heap_bytes"]]),
        ([[BIG, BIG]] * COUNTED_ROUNDS, [["heap_bytes"], ["heap_bytes"]]),
        # Memory that another case frees is not a leak of the case that allocates it.
        ([[BIG, {"heap_bytes": -100 * KIB}]] * COUNTED_ROUNDS, [[], []]),
        # The two cases grow alternately.
        ([[SMALL, BIG], [BIG, SMALL]] * 4 + [[SMALL, BIG]], [[], []]),
        ([[{"mapped_bytes": 3 * MIB}, {}]] * COUNTED_ROUNDS, [["mapped_bytes"], []]),
    ],
)
def test_which_case_leaks(rounds: list[list[dict[str, int]]], leaks: list[list[str]]) -> None:
    assert [[leak.meter for leak in leaks_of_case(rounds, position, range(2))] for position in range(2)] == leaks


def test_a_leak_is_reported_with_its_slope_and_the_interval_of_it() -> None:
    rounds = [[{"heap_bytes": (100 + number % 3) * KIB}] for number in range(COUNTED_ROUNDS)]
    (leak,) = leaks_of_case(rounds, 0, [0])
    what = "malloc memory of C code, NumPy or torch on the CPU"
    assert leak.text == f"101.0 KiB more {what} per round over 9 rounds (100.8 KiB to 101.2 KiB)"


@pytest.mark.parametrize(
    ("rounds", "may"),
    [
        ([], True),
        ([[SMALL]] * 2, True),
        ([[SMALL]] * 3, False),
        ([[SMALL], [SMALL], [{"heap_bytes": 300 * KIB}]], True),
        ([[BIG]] * 8, True),
    ],
)
def test_rounds_end_when_no_leak_can_be_shown_any_more(rounds: list[list[dict[str, int]]], may: bool) -> None:
    assert may_case_leak(rounds, 0) == may_leak_together(rounds, [0]) == may


BY_CASE = {"a": {"heap_bytes": 30 * KIB}, "b": {"heap_bytes": 70 * KIB, "threads": 1}, "c": {"heap_bytes": 80 * KIB}}


def test_what_each_case_has_grown_by_is_kept_with_the_growth_of_its_second_run() -> None:
    made = batch({"heap_bytes": 10, "threads": 2}, {"heap_bytes": -5}, {"heap_bytes": 30})
    made.add_case("late", {"heap_bytes": 900_000}, {"heap_bytes": 900_000})
    made.add_rerun({"heap_bytes": 40}, {"heap_bytes": 900_000})
    made.add_case("c0", {"heap_bytes": 7}, {})  # a repetition
    grown = {"c0": {"heap_bytes": 17}, "c2": {"heap_bytes": 30}, "late": {"heap_bytes": 40}}
    assert made.by_case(["heap_bytes"]) == grown


def test_the_case_that_grew_most_beyond_what_is_allowed_is_tried_first() -> None:
    assert rank_by_growth({**BY_CASE, "b": {"heap_bytes": 70 * KIB}}) == ["c", "b", "a"]
    assert rank_by_growth({"x": {"heap_bytes": 1}, "y": {"threads": 1}}) == ["y", "x"]


@pytest.mark.parametrize(("acquitted", "explained"), [((), False), (("a",), False), (("c",), True), (("a", "b"), True)])
def test_a_batch_is_explained_once_the_rest_is_allowed(acquitted: tuple[str, ...], explained: bool) -> None:
    suspected = {"heap_bytes": 180 * KIB}  # 24 cases may grow by 100 KiB
    assert is_explained(suspected, BY_CASE, acquitted, 24) == explained


def test_leaks_are_compared_by_what_each_is_allowed() -> None:
    thread, heap = Leak("threads", 1, ""), Leak("heap_bytes", 100 * KIB, "")
    assert leak_excess(heap) > leak_excess(thread)
    assert leak_excess(Leak("threads", 2, "")) > leak_excess(heap)


@pytest.mark.parametrize(
    ("meter", "amount", "cases", "times"),
    [
        ("heap_bytes", 100 * KIB, 2, 2),
        ("heap_bytes", 1024 * KIB, 2, 1),
        ("heap_bytes", 66 * KIB, 12, 5),
        ("mapped_bytes", 1024 * KIB, 2, 5),
        ("threads", 2, 2, 1),
        ("heap_bytes", 100 * KIB, 400, 1),  # regardless of the count: such a large batch may grow by more
    ],
)
def test_how_often_cases_must_run_to_be_suspected(meter: str, amount: int, cases: int, times: int) -> None:
    """The amounts are twice the threshold, since no two runs leave the same."""
    assert runs_to_suspect(Leak(meter, amount, ""), cases) == times


def test_a_meter_that_can_no_longer_be_read_is_left_out() -> None:
    """Malloc's statistics are meaningless once a simulated device is in use; earlier cases may have grown it."""
    made = batch({"heap_bytes": 60_000, "tensors": 1}, {"heap_bytes": 60_000})
    assert made.total({}, {}, readable={"tensors"}) == {"tensors": 1}


def test_what_cases_keep_does_not_count_and_what_they_free_of_others_does() -> None:
    kept, keeps = KeptMemory(), Keeps("torch does", {})
    assert kept.beyond({"heap_bytes": 5 * MIB, "tensors": -1}, keeps) == {"tensors": -1}
    assert kept.beyond({"heap_bytes": -2 * MIB}, keeps) == {}
    assert kept.beyond({"heap_bytes": -4 * MIB}, keeps) == {"heap_bytes": -1 * MIB}
    assert kept.beyond({"heap_bytes": 1 * MIB, "tensors": 1}, keeps) == {}


def test_what_cases_keep_beyond_their_limits_counts() -> None:
    kept, keeps = KeptMemory(), Keeps("torch does", {"host": 2 * MIB})
    assert kept.beyond({"heap_bytes": 5 * MIB, "tensors": 1, "threads": 1}, keeps) == {
        "heap_bytes": 3 * MIB,
        "tensors": 1,
        "threads": 1,
    }
    assert kept.beyond({"heap_bytes": -2 * MIB, "tensors": -1}, keeps) == {"tensors": -1}
    assert kept.beyond({"heap_bytes": -1 * MIB}, keeps) == {"heap_bytes": -1 * MIB}
