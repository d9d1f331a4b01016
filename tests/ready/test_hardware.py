"""Floors of speed and outliers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.figures import parse_floor
from harness.ready.hardware import judge_figures, outlier_bound, unit_of

BANDWIDTH = {"d2d_bandwidth": parse_floor("d2d_bandwidth", ">=2.4TB/s")}


@pytest.mark.parametrize(
    ("values", "less", "slow"),
    [
        pytest.param([100.0, 50.0], False, [], id="two GPUs have no majority"),
        pytest.param([100.0, 101.0, 99.0], False, [], id="alike"),
        pytest.param([100.0, 101.0, 99.0, 79.0], False, [79.0], id="a fifth slower"),
        pytest.param([100.0, 101.0, 99.0, 81.0], False, [], id="less than a fifth slower"),
        pytest.param([100.0, 70.0, 130.0, 60.0, 140.0], False, [], id="a wide spread hides nothing certain"),
        pytest.param([100.0, 101.0, 99.0, 500.0], False, [], id="a fast one is no fault"),
        pytest.param([1.0, 1.01, 0.99, 1.3], True, [1.3], id="a time"),
        pytest.param([100.0, 100.0, 100.0, 10.0, 10.0, 10.0, 100.0], False, [10.0] * 3, id="fewer than half are slow"),
    ],
)
def test_outliers(values: list[float], less: bool, slow: list[float]) -> None:
    bound = outlier_bound(values, less_is_better=less)

    found = [] if bound is None else [value for value in values if (value > bound if less else value < bound)]
    assert found == slow


@given(st.lists(st.floats(99, 101), min_size=3, max_size=64), st.floats(0.01, 70))
def test_one_slow_gpu_among_equal_ones_is_always_found_and_no_other(values: list[float], slow: float) -> None:
    bound = outlier_bound([*values, slow], less_is_better=False)

    assert bound is not None
    assert slow < bound < min(values)


def test_a_figure_is_held_against_the_floor_of_the_hardware_file() -> None:
    measured = {"a": {"d2d_bandwidth": 2.5e12}, "b": {"d2d_bandwidth": 2.3e12}}
    found = judge_figures(measured, BANDWIDTH, {"a": "H100", "b": "H100"})

    assert [each.why for each in found] == ["", "d2d_bandwidth is 2.3 TB/s"]
    assert found[1].wanted == "d2d_bandwidth >=2.4TB/s, the floor of the hardware file"


def test_a_figure_of_a_shared_link_is_compared_with_the_other_gpus() -> None:
    """Eight GPUs that copy at the same time share the links of the host, so a floor of one GPU alone does not hold."""
    floors = {"h2d_pinned_bandwidth": parse_floor("h2d_pinned_bandwidth", ">=44GB/s")}
    measured = {gpu: {"h2d_pinned_bandwidth": 20e9} for gpu in "abc"} | {"d": {"h2d_pinned_bandwidth": 5e9}}
    found = judge_figures(measured, floors, dict.fromkeys("abcd", "H100"))

    assert {each.gpu: each.why for each in found if each.why} == {"d": "h2d_pinned_bandwidth is 5 GB/s"}
    assert judge_figures({"a": {"h2d_pinned_bandwidth": 20e9}}, floors, {"a": "H100"})[0].why


def test_gpus_of_another_model_are_not_compared() -> None:
    measured = {gpu: {"product_bf16": value} for gpu, value in zip("abcd", (8e14, 8e14, 8e14, 1e14), strict=True)}

    assert not any(each.why for each in judge_figures(measured, {}, {"a": "H100", "b": "H100", "c": "H100", "d": "L4"}))


def test_a_figure_without_a_name_in_the_catalogue_is_left_out() -> None:
    assert judge_figures({"a": {"memory_bytes": 1.0}}, {}, {"a": "H100"}) == []


@pytest.mark.parametrize(
    ("name", "unit"), [("launch_latency", "s"), ("d2d_bandwidth", "B/s"), ("product_fp64", "FLOP/s")]
)
def test_units(name: str, unit: str) -> None:
    assert unit_of(name) == unit
