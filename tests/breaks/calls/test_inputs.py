"""The table of inputs: what is noted of a call, and which inputs are missing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from suites.operators import oracles
from suites.operators.catalogue import entries
from tests.breaks.calls import inputs
from tests.breaks.calls.input_recorder import noted

ROW = torch.tensor([[1.0, 2.0], [-math.inf, -math.inf]])


def function(x: Any, y: Any = None, *, flag: bool = False, other: int = 0) -> Any:
    return x, y, flag, other


@pytest.mark.parametrize(
    ("tensor", "seen"),
    [
        (torch.tensor(1.0), None),
        (torch.arange(4), {"array"}),
        (torch.arange(8)[::2], {"array", "gaps"}),
        (torch.arange(1.0, 5.0), {"array", "float"}),
        (torch.tensor([1.0, math.nan]), {"array", "float", "nan"}),
        (ROW, {"array", "float", "rows of -inf"}),
        (torch.arange(4.0) + 100, {"array", "float", "far mean"}),
        (torch.zeros(1025, dtype=torch.float16), {"array", "many of float16"}),
    ],
)
def test_properties_of_an_argument(tensor: torch.Tensor, seen: set[str] | None) -> None:
    assert noted(function, (tensor, (), {})).get("x") == seen


def test_options_and_their_pairs_are_noted_by_name() -> None:
    found = noted(function, (ROW, (ROW,), {"other": 1, "flag": True}))

    assert found.keys() == {"x", "y", "flag", "other", "flag+other"}
    assert noted(torch.add, (ROW, (ROW,), {})).keys() == {"0", "1"}  # written in C++: no names


def test_a_hole_is_what_no_case_gives() -> None:
    seen = {"mul": {"0": {"array", "float", "gaps", "nan", "far mean"}, "a": {"option"}, "b": {"option"}}}

    assert inputs.holes(seen) == [
        inputs.Hole("mul", "0", "rows of -inf", ""),
        inputs.Hole("mul", "a+b", "pair", ""),
    ]
    page = inputs.inputs_page(seen)
    assert "| `mul` | 0 | yes | yes | **no case** | yes |" in page
    assert "**no case**: mul a+b pair" in page
    assert page.endswith("1 operator, 1 tensor argument: 0 holes have a reason, 2 have none\n")


def test_a_hole_has_the_reason_of_its_table() -> None:
    seen = {"heaviside": {"0": {"array", "float", "gaps", "far mean", "rows of -inf"}}}

    assert [each.reason for each in inputs.holes(seen)] == ["a comparison leaves NaN out"]


@pytest.mark.nightly
def test_every_input_is_compared_or_has_a_reason(tmp_path: Any) -> None:
    found = inputs.record(tmp_path / "run")

    assert {each.name for each in entries()} - found.keys() <= {*oracles.WITHOUT}
    assert [each for each in inputs.holes(found) if not each.reason] == []
