"""Types that a device lacks according to its hardware file: the cases that need them, and the gate."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.core.errors import HarnessError
from harness.gating import types


@pytest.mark.parametrize(
    ("parameters", "needed"),
    [
        ({}, ()),
        ({"dtype": torch.float64}, ("float64",)),
        ({"source": "complex128", "target": torch.int8, "again": torch.int8}, ("complex128", "int8")),
        ({"size": 3, "name": "sum", "kind": "double", "half": torch.qint8}, ()),
    ],
)
def test_the_types_among_the_parameters_of_an_item(parameters: dict[str, Any], needed: tuple[str, ...]) -> None:
    assert types.parameter_types(SimpleNamespace(callspec=SimpleNamespace(params=parameters))) == needed
    assert types.parameter_types(SimpleNamespace(parameter_types=needed)) == needed


def test_an_item_without_parameters_needs_no_type() -> None:
    assert types.parameter_types(SimpleNamespace()) == ()


def test_marks_add_types() -> None:
    marks = [pytest.mark.types("float16", "float64").mark, pytest.mark.types("int8").mark]
    assert types.types_needed(("float64",), marks) == ["float64", "float16", "int8"]


@pytest.mark.parametrize(
    ("mark", "text"),
    [
        (pytest.mark.types(), "names of one or more types"),
        (pytest.mark.types("float64", at="once"), "names of one or more types"),
        (pytest.mark.types("double"), r"types\('double'\): expected names among float64, float32"),
        (pytest.mark.types(torch.float64), r"types\(torch.float64\): expected names among"),
    ],
)
def test_a_mark_that_names_no_type_is_an_error(mark: pytest.MarkDecorator, text: str) -> None:
    with pytest.raises(HarnessError, match=text):
        types.types_needed((), [mark.mark])


def test_the_first_type_that_is_lacking_is_the_reason() -> None:
    unmet = types.first_lacking(["int8", "complex128", "float64"], ("float64", "complex128"), "npu")
    assert unmet is not None
    assert unmet.text == "types: wanted complex128, found a device without it, as hardware npu declares"
    assert types.first_lacking(["int8"], ("float64",), "npu") is None
    assert types.first_lacking(["int8"], (), "npu") is None


def test_every_type_of_torch_is_known_but_quantized_and_packed_ones() -> None:
    names = {str(value).removeprefix("torch.") for value in vars(torch).values() if isinstance(value, torch.dtype)}
    left_out = {name for name in names if name.startswith(("qint", "quint", "bits")) or name[-1] in "1234567"}
    # Types of 1 to 7 bits, or packed: int4, uint7, quint2x4. Types of whole bytes with the same endings stay.
    left_out -= {"int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32", "float64"}
    left_out -= {"complex32", "complex64", "float8_e5m2"}
    assert {*types.KNOWN} >= names - left_out
