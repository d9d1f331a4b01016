"""Figures of speed and their floors, as tables."""

from __future__ import annotations

import pytest

from harness.core.figures import QUANTITIES, Floors, figure_text, parse_floor, reach_of_floor, read_figure


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("d2d_bandwidth", ">=2.4TB/s", 2.4e12),
        ("d2d_bandwidth", " >= 44 GB/s ", 44e9),
        ("product_bf16", ">=600TFLOP/s", 600e12),
        ("product_fp8", ">=1.1PFLOP/s", 1.1e15),
        ("launch_latency", "<=20us", 20e-6),
        ("event_record", "<=0.5ms", 0.5e-3),
    ],
)
def test_a_floor_is_read(name: str, text: str, value: float) -> None:
    floor = parse_floor(name, text)
    assert floor.value == pytest.approx(value)
    assert floor.text == text.strip()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("d2d_bandwith", ">=2.4TB/s", "there is no figure 'd2d_bandwith'; did you mean 'd2d_bandwidth'?"),
        ("speed", ">=2.4TB/s", "there is no figure 'speed'; expected one of launch_latency, "),
        ("d2d_bandwidth", "<=2.4TB/s", "'<=2.4TB/s': expected >=, since a speed is at least its floor, such as '>="),
        ("launch_latency", ">=20us", "'>=20us': expected <=, since a time is at most its floor, such as '<=20us'"),
        ("d2d_bandwidth", ">=2.4TFLOP/s", "'>=2.4TFLOP/s': the unit 'TFLOP/s' is none of TB/s, GB/s, MB/s, kB/s, B/s"),
        ("product_bf16", ">=600TB/s", "'>=600TB/s': the unit 'TB/s' is none of PFLOP/s, TFLOP/s, GFLOP/s, MFLOP/s"),
        ("launch_latency", "<=20µs", "'<=20µs': expected <=, a number and a unit, such as '<=20us'"),
        ("d2d_bandwidth", ">=2.4", "'>=2.4': expected >=, a number and a unit, such as '>=2.4TB/s'"),
        ("d2d_bandwidth", 2.4, "2.4: expected >=, a number and a unit, such as '>=2.4TB/s'"),
        ("d2d_bandwidth", True, "True: expected >=, a number and a unit"),
        ("d2d_bandwidth", None, "None: expected >=, a number and a unit"),
        ("d2d_bandwidth", ["x"], "['x']: expected >=, a number and a unit"),
        ("d2d_bandwidth", ">=-1TB/s", "'>=-1TB/s': expected >=, a number and a unit"),
        ("d2d_bandwidth", ">=1e3GB/s", "'>=1e3GB/s': expected >=, a number and a unit"),
        ("d2d_bandwidth", ">=0TB/s", "'>=0TB/s': expected a number above 0, such as '>=2.4TB/s'"),
    ],
)
def test_a_wrong_floor_is_refused_with_what_was_expected(name: str, text: object, message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_floor(name, text)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("d2d_bandwidth", 3.0123e12, "3.01 TB/s"),
        ("d2d_bandwidth", 999e9, "999 GB/s"),
        ("product_bf16", 778.4e12, "778 TFLOP/s"),
        ("product_fp8", 1.334e15, "1.33 PFLOP/s"),
        ("launch_latency", 10.04e-6, "10 us"),
        ("allocation", 6.5e-6, "6.5 us"),
        ("allocation", 0.0, "0 ns"),
    ],
)
def test_a_value_has_the_unit_that_suits_it(name: str, value: float, text: str) -> None:
    assert figure_text(name, value) == text
    read = read_figure(text)
    assert read == pytest.approx(value, rel=5e-3)


@pytest.mark.parametrize("text", ["", "3.01", "3.01 TB", ">=2.4TB/s", "1 TB/s to 2 TB/s in 7 repetitions", "x GB/s"])
def test_other_texts_are_no_figures(text: str) -> None:
    assert read_figure(text) is None


@pytest.mark.parametrize(
    ("name", "value", "missed"),
    [
        ("d2d_bandwidth", 2.4e12, ""),
        ("d2d_bandwidth", 2.39e12, "d2d_bandwidth is 2.39 TB/s, and hardware mine has the floor >=2.4TB/s"),
        ("launch_latency", 20e-6, ""),
        ("launch_latency", 21e-6, "launch_latency is 21 us, and hardware mine has the floor <=20us"),
        ("allocation", 1.0, ""),
    ],
)
def test_which_value_misses_its_floor(name: str, value: float, missed: str) -> None:
    floors = Floors({"d2d_bandwidth": ">=2.4TB/s", "launch_latency": "<=20us"}, "mine")
    assert floors.missed(name, value) == missed


def test_an_unknown_figure_of_a_case_is_an_error() -> None:
    with pytest.raises(KeyError, match="d2d"):
        Floors({}, "").missed("d2d", 1.0)
    with pytest.raises(KeyError, match="d2d"):
        Floors({}, "").shown("d2d", 1.0)


@pytest.mark.parametrize(
    ("name", "value", "floor", "reach"),
    [
        ("d2d_bandwidth", 3e12, ">=2.4TB/s", 1.25),
        ("launch_latency", 10e-6, "<=20us", 2.0),
        ("launch_latency", 40e-6, "<=20us", 0.5),
        ("launch_latency", 40e-6, "quick", None),
        ("small.launch_latency", 40e-6, "<=20us", None),
    ],
)
def test_a_value_as_a_part_of_its_floor(name: str, value: float, floor: str, reach: float | None) -> None:
    assert reach_of_floor(name, value, floor) == (None if reach is None else pytest.approx(reach))


def test_every_figure_has_units() -> None:
    assert all(units for units in QUANTITIES.values())
