"""Plots with a few rows of text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.checks.meters import format_quantity
from harness.reporting.plot import can_encode_blocks, plot


def in_bytes(value: int) -> str:
    return format_quantity(value, "bytes")


def test_bars_rise_from_the_smallest_value_to_the_largest() -> None:
    assert plot([0, 1, 2, 3, 4, 5, 6, 7, 15], blocks=True, label=str, height=2) == ["15 │        █", " 0 │▁▂▃▄▅▆▇██"]
    assert plot([10, 25, 33, 26, 10], blocks=True, label=str) == ["33 │  █▁", "   │ ███", "10 │▁███▁"]


@pytest.mark.parametrize(
    ("values", "lines"),
    [
        ([], []),
        ([7], ["7 |", "  |", "7 |."]),
        ([7, 7, 7], ["7 |", "  |", "7 |..."]),
        ([0, 8], ["8 | #", "  | #", "0 |.#"]),
        ([-4, 0, 4], [" 4 |  #", "   | :#", "-4 |.##"]),
        (list(range(9)), ["8 |      .:#", "  |   .:####", "0 |.:#######"]),
    ],
)
def test_in_plain_ascii(values: list[int], lines: list[str]) -> None:
    assert plot(values, blocks=False, label=str) == lines


def test_smallest_and_largest_are_labelled_for_people() -> None:
    lines = plot([11 << 20, 13 << 20], blocks=False, label=in_bytes)
    assert [line.partition("|")[0] for line in lines] == ["13.0 MiB ", "         ", "11.0 MiB "]


def test_labels_that_would_be_the_same_give_the_difference() -> None:
    lines = plot([11 << 20, (11 << 20) + 4096], blocks=False, label=in_bytes)
    assert [line.partition("|")[0].strip() for line in lines] == ["+4.0 KiB", "", "11.0 MiB"]


def test_of_more_values_than_columns_each_column_has_its_largest() -> None:
    values = [0] * 600
    values[59], values[60], values[305] = 9, 9, 9
    marks, bottom = (line.partition("|")[2] for line in plot(values, blocks=False, label=str, height=2))
    assert len(bottom) == 60
    assert [position for position, mark in enumerate(marks) if mark == "#"] == [5, 6, 30]


@given(st.lists(st.integers(-(1 << 50), 1 << 50), min_size=1, max_size=300), st.integers(1, 80), st.integers(2, 5))
def test_every_plot_has_its_height_and_width_and_a_bar_for_each_column(
    values: list[int], width: int, height: int
) -> None:
    lines = plot(values, blocks=False, label=str, width=width, height=height)
    assert len(lines) == height
    bars = [line.partition("|")[2] for line in lines]
    assert len(bars[-1]) == min(len(values), width)
    assert " " not in bars[-1]
    assert max(map(len, bars)) == len(bars[-1])
    assert "#" in bars[0] or min(values) == max(values)
    assert "".join(lines).isascii()


@pytest.mark.parametrize(
    ("encoding", "blocks"),
    [
        ("utf-8", True),
        ("UTF-8", True),
        ("utf-16", True),
        ("ascii", False),
        ("latin-1", False),
        ("cp1252", False),
        ("no such encoding", False),
        ("", False),
        (None, False),
    ],
)
def test_which_encodings_hold_the_blocks(encoding: str | None, blocks: bool) -> None:
    assert can_encode_blocks(encoding) is blocks
