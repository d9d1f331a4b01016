"""The judgement on growth over repetitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.checks.growth import (
    COUNTED_REPETITIONS,
    WARMUP_REPETITIONS,
    GrowthError,
    GrowthShape,
    classify_growth,
    classify_meters,
    confirmed_leaks,
)

_N = 4096
_SERIES = st.lists(st.integers(-(1 << 40), 1 << 40), min_size=4, max_size=12)


@pytest.mark.parametrize(
    ("series", "warmup", "shape"),
    [
        ([0, 0, 0], 0, GrowthShape.NONE),
        ([-_N, -_N, -_N], 0, GrowthShape.NONE),
        ([_N, 0, 0], 0, GrowthShape.LAZY),
        ([_N, 0, 0], 1, GrowthShape.LAZY),
        ([_N, _N, 0], 0, GrowthShape.LAZY),
        ([_N, -_N, 0], 0, GrowthShape.LAZY),
        ([_N, _N, _N], 0, GrowthShape.LEAK),
        ([0, _N, _N], 1, GrowthShape.LEAK),
        ([-_N, 1, 1], 1, GrowthShape.LEAK),
        ([_N, _N, 1], 0, GrowthShape.LEAK),
        ([_N, -_N, 1], 0, GrowthShape.UNSTEADY),
        ([_N, -_N, _N], 1, GrowthShape.UNSTEADY),
        ([0, _N, 0], 0, GrowthShape.UNSTEADY),
        ([0, 0, _N], 0, GrowthShape.UNSTEADY),
        ([0, 0, _N], 2, GrowthShape.LEAK),
        ([_N, 0, _N, 0], 0, GrowthShape.UNSTEADY),
        ([_N, _N, _N, 0], 3, GrowthShape.LAZY),
    ],
)
def test_the_shape_of_a_series(series: list[int], warmup: int, shape: GrowthShape) -> None:
    assert classify_growth(series, warmup=warmup).shape is shape


@pytest.mark.parametrize(
    ("series", "threshold", "shape"),
    [
        ([100, 100, 100], 100, GrowthShape.NONE),
        ([101, 101, 101], 100, GrowthShape.LEAK),
        ([101, 100, 101], 100, GrowthShape.UNSTEADY),
        ([5000, 100, 50], 100, GrowthShape.LAZY),
    ],
)
def test_growth_within_the_threshold_is_none(series: list[int], threshold: int, shape: GrowthShape) -> None:
    assert classify_growth(series, warmup=0, threshold=threshold).shape is shape


def test_the_text_of_a_leak_has_the_amount_and_its_range() -> None:
    found = classify_growth([9, 1024, 2048, 2048], warmup=1, unit="bytes", noun="memory")
    assert found.amount == 2048
    assert found.text == "2.0 KiB more memory after each of 3 repetitions (1.0 KiB to 2.0 KiB)"
    assert classify_growth([2, 2], warmup=0, noun="thread{s}").text == "2 more threads after each of 2 repetitions"
    assert classify_growth([1, 1], warmup=0, noun="thread{s}").text == "1 more thread after each of 2 repetitions"


@pytest.mark.parametrize(("series", "warmup"), [([], 0), ([1, 1], 2), ([1, 1], 3)])
def test_nothing_to_count_is_an_error(series: list[int], warmup: int) -> None:
    with pytest.raises(GrowthError, match="repetitions are too few: the first"):
        classify_growth(series, warmup=warmup)


@given(_SERIES, st.integers(1, 1000), st.integers(0, 1 << 20))
def test_the_shape_does_not_depend_on_the_scale(series: list[int], factor: int, threshold: int) -> None:
    scaled = classify_growth([growth * factor for growth in series], warmup=2, threshold=threshold * factor)
    assert scaled.shape is classify_growth(series, warmup=2, threshold=threshold).shape


@given(_SERIES, st.data())
def test_a_leak_that_grows_more_stays_one(series: list[int], data: st.DataObject) -> None:
    more = [growth + data.draw(st.integers(0, 1 << 30)) for growth in series]
    if classify_growth(series, warmup=2).shape is GrowthShape.LEAK:
        assert classify_growth(more, warmup=2).shape is GrowthShape.LEAK


@given(_SERIES)
def test_one_counted_repetition_without_growth_means_no_leak(series: list[int]) -> None:
    for position in range(2, len(series)):
        spared = [*series[:position], 0, *series[position + 1 :]]
        assert classify_growth(spared, warmup=2).shape is not GrowthShape.LEAK


@given(_SERIES, st.lists(st.integers(-(1 << 40), 1 << 40), min_size=2, max_size=2))
def test_warm_up_repetitions_do_not_make_a_leak(series: list[int], other: list[int]) -> None:
    leak = classify_growth(series, warmup=2).shape is GrowthShape.LEAK
    assert (classify_growth([*other, *series[2:]], warmup=2).shape is GrowthShape.LEAK) == leak


_RUNS = WARMUP_REPETITIONS + COUNTED_REPETITIONS


@pytest.mark.parametrize(
    ("first", "repeated", "leaks"),
    [
        ({"tensors": 1}, [{}] * _RUNS, []),
        ({"tensors": 1}, [{"tensors": 1}, *[{}] * (_RUNS - 1)], []),
        ({"tensors": 1}, [{"tensors": 1}] * _RUNS, ["tensors"]),
        # Never suspected, but still a leak.
        ({}, [{"threads": 2}] * _RUNS, ["threads"]),
        # Seen in one process but not in the fresh one: not caused by this case, or lazy.
        ({"cuda_allocated[0]": 512}, [{"cuda_allocated[1]": 512}] * _RUNS, ["cuda_allocated[1]"]),
        # Within what pytest itself keeps.
        ({}, [{"heap_bytes": 100_000}] * _RUNS, []),
        ({}, [{"heap_bytes": 8 << 20}] * _RUNS, ["heap_bytes"]),
        # The allocator reserves more each time: not suspicious by itself, but a leak if it does not stop.
        ({}, [{"cuda_reserved[0]": 2 << 20}] * _RUNS, ["cuda_reserved[0]"]),
        # The meter nearest to the cause comes first. The heap contains the same memory and is left out.
        (
            {},
            [{"heap_bytes": 1_100_000, "tensor_bytes": 1 << 20, "tensors": 1}] * _RUNS,
            ["tensors", "tensor_bytes"],
        ),
        # But it is listed if it grew far more than the tensors.
        (
            {},
            [{"heap_bytes": 8 << 20, "tensor_bytes": 40, "tensors": 1}] * _RUNS,
            ["tensors", "tensor_bytes", "heap_bytes"],
        ),
        # On the same device only.
        (
            {},
            [{"cuda_reserved[0]": 2 << 20, "cuda_allocated[0]": 2 << 20}] * _RUNS,
            ["cuda_allocated[0]"],
        ),
        (
            {},
            [{"cuda_reserved[0]": 2 << 20, "cuda_allocated[1]": 2 << 20}] * _RUNS,
            ["cuda_allocated[1]", "cuda_reserved[0]"],
        ),
    ],
)
def test_the_leaks_of_a_case(first: dict[str, int], repeated: list[dict[str, int]], leaks: list[str]) -> None:
    assert [leak.meter for leak in confirmed_leaks(first, repeated)] == leaks


def test_a_leak_says_what_and_how_much_and_what_was_seen_first() -> None:
    leak, *_ = confirmed_leaks({"pinned_bytes": 4096}, [{"pinned_bytes": 1024}] * _RUNS)
    assert leak.amount == 1024
    assert leak.text == (
        f"1.0 KiB more pinned host memory in use after each of {COUNTED_REPETITIONS} repetitions, "
        "4.0 KiB more after the original run"
    )
    (leak,) = confirmed_leaks({}, [{"cuda_streams": 1}] * _RUNS)
    assert leak.text == f"1 more CUDA stream still referenced after each of {COUNTED_REPETITIONS} repetitions"
    leak, *_ = confirmed_leaks({}, [{"cuda_allocated[1]": 512}] * _RUNS)
    assert (
        leak.text
        == f"512 bytes more CUDA memory in use by tensors on device 1 after each of {COUNTED_REPETITIONS} repetitions"
    )


def test_every_meter_that_changed_is_judged_in_the_order_of_the_table() -> None:
    found = classify_meters([{"threads": 1}, {"tensors": 1}, {}], warmup=1)
    assert {name: growth.shape for name, growth in found.items()} == {
        "tensors": GrowthShape.UNSTEADY,
        "threads": GrowthShape.LAZY,
    }
    assert list(found) == ["tensors", "threads"]
