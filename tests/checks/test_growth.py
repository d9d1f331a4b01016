"""The judgement on growth over repetitions."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.checks.growth import COUNTED_REPETITIONS, Leak, confirmed_leaks, may_still_leak
from harness.checks.meters import meter_of
from harness.checks.trend import WARMUP_REPETITIONS

#: The first growths do not count.
_WARMUP = [0, 9 << 20, 0]
_SERIES = st.lists(st.integers(-(1 << 40), 1 << 40), min_size=1, max_size=9)


def _leaks(counted: list[int], meter: str = "heap_bytes", warmup: Sequence[int] = _WARMUP) -> list[Leak]:
    return confirmed_leaks({}, [{meter: growth} for growth in (*warmup, *counted)])


@pytest.mark.parametrize(
    ("counted", "leaks"),
    [
        ([], False),
        ([0, 0, 0, 0], False),
        ([-1, -1, -1, -1], False),
        ([1, 1, 1, 1], True),
        ([1, 1, 1, 0], False),
        ([0, 1, 1, 1], False),
        ([1, -1, 1, 1], False),
        ([5000, 1, 1, 1], True),
        ([1], True),
    ],
)
def test_growth_in_each_repetition_that_counts_is_a_leak(counted: list[int], leaks: bool) -> None:
    assert bool(_leaks(counted, "tensors")) == leaks
    assert may_still_leak([{"tensors": growth} for growth in (*_WARMUP, *counted)]) == (leaks or not counted)


def test_growth_up_to_the_limit_of_the_meter_is_none() -> None:
    limit = meter_of("heap_bytes").confirm
    assert limit > 0
    assert _leaks([limit + 1] * 4)
    assert not _leaks([limit + 1, limit + 1, limit, limit + 1])


def test_the_text_of_a_leak_has_the_amount_and_its_range() -> None:
    (leak,) = _leaks([1 << 20, 2 << 20, 2 << 20])
    assert leak.amount == 2 << 20
    about = "malloc memory of C code, NumPy or torch on the CPU"
    assert leak.text == f"2.0 MiB more {about} after each of 3 repetitions (1.0 MiB to 2.0 MiB)"
    assert [leak.text for leak in _leaks([2, 2], "threads")] == [
        "2 more threads (Python or native) after each of 2 repetitions"
    ]
    assert [leak.text for leak in _leaks([1, 1], "threads")] == [
        "1 more thread (Python or native) after each of 2 repetitions"
    ]


@given(_SERIES, st.data())
def test_a_leak_that_grows_more_stays_one(series: list[int], data: st.DataObject) -> None:
    more = [growth + data.draw(st.integers(0, 1 << 30)) for growth in series]
    if _leaks(series):
        assert _leaks(more)


@given(_SERIES)
def test_one_counted_repetition_without_growth_means_no_leak(series: list[int]) -> None:
    for position in range(len(series)):
        assert not _leaks([*series[:position], 0, *series[position + 1 :]])


@given(_SERIES, st.lists(st.integers(-(1 << 40), 1 << 40), min_size=3, max_size=3))
def test_warm_up_repetitions_do_not_make_a_leak(series: list[int], other: list[int]) -> None:
    assert _leaks(series) == _leaks(series, warmup=other)


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
