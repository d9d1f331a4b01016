"""The judgement on a series of readings over repetitions."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.checks.meters import METERS
from harness.checks.trend import (
    MIN_REPETITIONS,
    TREND_RULES,
    WARMUP_REPETITIONS,
    LevelSample,
    TrendShape,
    classify_trend,
    format_slope,
    trend_rule_of,
    trend_series,
)

KIB = 1 << 10
STEP = KIB
BASE = 11 << 20
N = 30


def made(value: Callable[[int], float], count: int = N) -> list[int]:
    """Return the values after `count` repetitions, numbered from 0."""
    return [BASE + int(value(number)) for number in range(count)]


def noisy(slope: float, noise: float, count: int = N, seed: int = 1) -> list[int]:
    draw = random.Random(seed)
    return made(lambda number: slope * number + draw.uniform(-noise, noise), count)


def with_spikes(values: Sequence[int], *positions: int) -> list[int]:
    return [value + (1 << 20 if number in positions else 0) for number, value in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "shape"),
    [
        pytest.param(made(lambda _: 0), TrendShape.FLAT, id="constant"),
        pytest.param(made(lambda n: 100 * n), TrendShape.FLAT, id="a rise below the step"),
        pytest.param(noisy(0, STEP), TrendShape.FLAT, id="noise alone"),
        pytest.param(with_spikes(made(lambda _: 0), 5, 20), TrendShape.FLAT, id="two spikes"),
        pytest.param(made(lambda n: 900 * KIB if n == 0 else 0), TrendShape.FLAT, id="high at first"),
        pytest.param(made(lambda n: 0 if n < 1 else 200 * KIB), TrendShape.SETTLED, id="a step after the first"),
        pytest.param(made(lambda n: min(n, 7) * 64 * KIB), TrendShape.SETTLED, id="a cache that fills up"),
        pytest.param(made(lambda n: 0 if n < 14 else 200 * KIB), TrendShape.SETTLED, id="a step in the middle"),
        pytest.param(
            with_spikes(made(lambda n: min(n, 4) * 64 * KIB), 25), TrendShape.SETTLED, id="settled, with a spike"
        ),
        pytest.param(made(lambda n: 4 * KIB * n), TrendShape.GROWS, id="linear"),
        pytest.param(made(lambda n: 1100 * n), TrendShape.GROWS, id="linear, hardly above the step"),
        pytest.param(noisy(4 * KIB, 16 * KIB), TrendShape.GROWS, id="linear with noise of four steps"),
        pytest.param(with_spikes(made(lambda n: 4 * KIB * n), 4, 18, 29), TrendShape.GROWS, id="linear with spikes"),
        pytest.param(made(lambda n: 4 * KIB * n + (2 << 20 if n else 0)), TrendShape.GROWS, id="linear after a step"),
        pytest.param(made(lambda n: 4 * KIB * n * n), TrendShape.GROWS, id="ever faster"),
        pytest.param(made(lambda n: 32 * KIB * (n // 4)), TrendShape.GROWS, id="stairs"),
        pytest.param(made(lambda n: (n % 5) * 64 * KIB), TrendShape.UNSTEADY, id="a saw-tooth"),
        pytest.param(made(lambda n: (n % 14) * 64 * KIB), TrendShape.UNSTEADY, id="two long teeth"),
        pytest.param(made(lambda n: n * 64 * KIB if n < 25 else 0), TrendShape.UNSTEADY, id="one long tooth"),
        pytest.param(made(lambda n: 0 if n < 22 else 200 * KIB), TrendShape.UNSTEADY, id="a step near the end"),
        pytest.param(made(lambda n: 0 if n < 21 else 64 * KIB * n), TrendShape.UNSTEADY, id="growth that begins late"),
        pytest.param(made(lambda n: -4 * KIB * n), TrendShape.UNSTEADY, id="a fall"),
        pytest.param([], TrendShape.SHORT, id="nothing"),
        pytest.param(made(lambda n: 4 * KIB * n, MIN_REPETITIONS - 1), TrendShape.SHORT, id="too few"),
        pytest.param(made(lambda n: 4 * KIB * n, MIN_REPETITIONS), TrendShape.GROWS, id="just enough"),
        pytest.param(noisy(4 * KIB, 64 * KIB, 1000), TrendShape.GROWS, id="many"),
        pytest.param(noisy(0, 64 * KIB, 1000), TrendShape.FLAT, id="many that do not grow"),
        pytest.param(made(lambda n: (n % 50) * 64 * KIB, 1000), TrendShape.UNSTEADY, id="many teeth"),
    ],
)
def test_the_shape_of_a_series(values: list[int], shape: TrendShape) -> None:
    assert classify_trend(values, step=STEP, unit="bytes").shape is shape


@pytest.mark.parametrize(
    ("values", "shape", "text"),
    [
        ([3] * 12, TrendShape.FLAT, "stayed flat over 12 repetitions, at 3"),
        (list(range(5, 17)), TrendShape.GROWS, "grew by 1 per repetition over 12 repetitions, from 5 to 16"),
        (
            [5, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9, 10],
            TrendShape.GROWS,
            "grew by 0.5 per repetition over 12 repetitions, from 5 to 10",
        ),
        ([1, 2, 3, *[4] * 10], TrendShape.SETTLED, "grew by 3 until repetition 4 of 13, then stopped"),
        ([1, 2] * 6, TrendShape.UNSTEADY, "went up and down over 12 repetitions, between 1 and 2"),
        ([1] * 5, TrendShape.SHORT, f"had only 5 repetitions in one process, {MIN_REPETITIONS} are needed"),
        ([1], TrendShape.SHORT, f"had only 1 repetition in one process, {MIN_REPETITIONS} are needed"),
    ],
)
def test_things_that_are_counted_need_no_step(values: list[int], shape: TrendShape, text: str) -> None:
    found = classify_trend(values)
    assert (found.shape, found.text) == (shape, text)


def test_spikes_do_not_change_the_slope() -> None:
    clean = made(lambda n: 4 * KIB * n)
    for values in (clean, with_spikes(clean, 10, 19)):
        found = classify_trend(values, step=STEP, unit="bytes")
        assert found.slope == 4 * KIB
        assert found.text == "grew by 4.0 KiB per repetition over 30 repetitions, from 11.0 MiB to 11.1 MiB"


@pytest.mark.parametrize("first", [(0, 0, 0), (-900, -500, -100), (0, 900, 900)])
def test_the_first_repetitions_do_not_count_for_the_slope(first: tuple[int, ...]) -> None:
    found = classify_trend([*first, *(number * number for number in range(3, 15))])
    assert (found.shape, found.slope) == (TrendShape.GROWS, 17)


@pytest.mark.parametrize("count", [199, 200 + WARMUP_REPETITIONS, 204, 1000, 5000])
def test_the_slope_of_a_long_series_is_still_that_of_one_repetition(count: int) -> None:
    assert classify_trend(made(lambda n: 4 * KIB * n, count), step=STEP, unit="bytes").slope == 4 * KIB


@pytest.mark.parametrize(
    ("slope", "unit", "text"),
    [
        (4200.4, "bytes", "4.1 KiB"),
        (1.0, "count", "1"),
        (0.5, "count", "0.5"),
        (501.98, "count", "502"),
        (9.99, "count", "9.99"),
    ],
)
def test_a_slope_as_text(slope: float, unit: str, text: str) -> None:
    assert format_slope(slope, "bytes" if unit == "bytes" else "count") == text


_SERIES = st.lists(st.integers(0, 1 << 40), min_size=MIN_REPETITIONS, max_size=40)


@given(_SERIES, st.integers(-(1 << 40), 1 << 40))
def test_the_shape_does_not_depend_on_the_level(values: list[int], shift: int) -> None:
    assert (
        classify_trend([value + shift for value in values], step=STEP).shape is classify_trend(values, step=STEP).shape
    )


@given(_SERIES)
def test_nothing_that_ends_where_it_began_to_count_grows(values: list[int]) -> None:
    there_and_back = [
        *values[:WARMUP_REPETITIONS],
        *values[WARMUP_REPETITIONS:],
        *reversed(values[WARMUP_REPETITIONS:]),
    ]
    assert classify_trend(there_and_back, step=STEP).shape is not TrendShape.GROWS


@given(st.lists(st.integers(0, 1 << 30), min_size=WARMUP_REPETITIONS, max_size=WARMUP_REPETITIONS))
def test_the_first_repetitions_make_no_growth(first: list[int]) -> None:
    assert classify_trend([*first, *[BASE] * 20], step=STEP).shape is not TrendShape.GROWS


def samples(executor: str, count: int, **values: Callable[[int], float]) -> list[LevelSample]:
    return [
        LevelSample(executor, {name: made(value, count)[number] for name, value in values.items()})
        for number in range(count)
    ]


def test_growing_series_come_first_and_the_clearest_cause_before_others() -> None:
    found = trend_series(
        samples(
            "e1",
            N,
            resident_bytes=lambda n: 64 * KIB * n,
            heap_bytes=lambda n: 4 * KIB * n,
            mapped_bytes=lambda n: min(n, 5) << 20,
            threads=lambda _: 0,
        )
    )
    assert [(each.meter, each.trend.shape) for each in found] == [
        ("heap_bytes", TrendShape.GROWS),
        ("resident_bytes", TrendShape.GROWS),
        ("mapped_bytes", TrendShape.SETTLED),
        ("threads", TrendShape.FLAT),
    ]
    assert found[0].text.startswith("heap_bytes: malloc memory of C code, NumPy or torch on the CPU grew by 4.0 KiB")
    assert found[0].text.endswith(" per repetition over 30 repetitions, from 11.0 MiB to 11.1 MiB")


def test_of_two_flat_series_the_one_that_moved_most_comes_first() -> None:
    found = trend_series(samples("e1", N, heap_bytes=lambda n: n % 2, resident_bytes=lambda n: 64 * KIB * (n % 2)))
    assert [each.meter for each in found] == ["resident_bytes", "heap_bytes"]


def test_readings_of_different_processes_are_not_one_series() -> None:
    """Each process stays flat, but the second has a higher level. As one series they would form a step or a rise."""
    lower = samples("e1", 13, heap_bytes=lambda _: 0)
    higher = samples("e2", 17, heap_bytes=lambda _: 4 << 20)
    found = trend_series([*lower, *higher])
    assert [(each.executor, len(each.values), each.trend.shape) for each in found] == [
        ("e2", 17, TrendShape.FLAT),
        ("e1", 13, TrendShape.FLAT),
    ]
    steps = [LevelSample(f"e{number // 2}", {"heap_bytes": number << 20}) for number in range(N)]
    assert {each.trend.shape for each in trend_series(steps)} == {TrendShape.SHORT}
    interleaved = [sample for pair in zip(lower, higher, strict=False) for sample in pair]
    assert {each.trend.shape for each in trend_series(interleaved)} == {TrendShape.FLAT}


def test_growth_in_the_longer_of_two_processes_comes_first() -> None:
    found = trend_series(
        [*samples("e1", 14, heap_bytes=lambda n: 4096 * n), *samples("e2", 16, heap_bytes=lambda n: 4096 * n)]
    )
    assert [(each.executor, each.trend.shape) for each in found] == [("e2", TrendShape.GROWS), ("e1", TrendShape.GROWS)]


def test_each_device_has_its_series_and_unknown_meters_are_left_out() -> None:
    values = {"cuda_allocated[0]": 0, "cuda_allocated[1]": 0, "flux": 0}
    grown = [LevelSample("e1", {**values, "cuda_allocated[1]": 512 * n, "flux": n}) for n in range(N)]
    found = trend_series(grown)
    assert [(each.meter, each.trend.shape) for each in found] == [
        ("cuda_allocated[1]", TrendShape.GROWS),
        ("cuda_allocated[0]", TrendShape.FLAT),
    ]
    assert trend_series([]) == []


def test_what_is_watched() -> None:
    known = {meter.name for meter in METERS}
    assert set(TREND_RULES) - known == {"resident_bytes"}
    assert trend_rule_of("cuda_reserved[3]") is TREND_RULES["cuda_reserved"]
    assert trend_rule_of("tensors") is None
