"""The values of each operator, for each group of types, are those of a reference that calls no kernel of torch."""

from __future__ import annotations

import pytest
import torch

from . import case, conversions, draws, oracles
from .catalogue import COSTLY, by_group, by_operator_of
from .types import GROUPS, lacking

pytestmark = pytest.mark.filterwarnings("ignore")  # deprecated and experimental features warn


@by_group("values", quick=("float",), without=oracles.WITHOUT)
def test_values(name: str, group: str, device: torch.device) -> None:
    """An operator's results have the values of its definition, except for rounding (torch, its documentation).

    `oracles.py` has the oracles, and `tolerances.py` the allowed rounding.
    """
    if oracles.kind(name) == oracles.STATISTICS:
        _, kinds = case.types_to_try(name, group, device)
        for dtype in kinds:
            draws.verify(name, dtype, device)
        return
    for info, sample, _ in case.spread(name, group, device, 6 if name in COSTLY else None):
        oracles.verify(name, info, sample, device)


@by_operator_of("int", "values", without={*draws.DRAWS, *oracles.WITHOUT})
def test_values_of_whole_numbers(name: str, device: torch.device) -> None:
    """An operator's results for whole numbers and bool are those of its definition: one sample of each type, in turn.

    With `--extended`, `test_values` has every sample in each of these types.
    """
    for info, sample, _ in case.spread(name, "int", device, 6, apart=True):
        oracles.verify(name, info, sample, device)


#: Numbers that every float type has or rounds: small whole numbers, halves, thirds, and one near the end of the type.
_CONVERTED = (
    0.0,
    1.0,
    -1.0,
    1.5,
    2.0,
    -3.0,
    5.0,
    7.0,
    12.0,
    0.1,
    1 / 3,
    -2.7,
    100.0,
    230.0,
    3000.0,
    0.001,
    1e-6,
    65504.0,
)
_FLOATS = ("float16", "bfloat16", "float32", "float64", *GROUPS["float8"])
_WHOLE = ("uint8", "int8", "int16", "int32", "int64", *GROUPS["unsigned"])


@pytest.mark.operator("to", "copy_")
@pytest.mark.parametrize("source", [*_FLOATS, *_WHOLE])
def test_conversions(source: str, device: torch.device) -> None:
    """`Tensor.to` rounds to the nearest value of the type, ties to even, and keeps whole numbers (IEEE 754, OCP FP8).

    The value is computed from the bits: no kernel of torch reads it. Whole numbers beyond a type wrap by two's
    complement.
    """
    made = conversions.made(source, _CONVERTED)
    for target in (*_FLOATS, *_WHOLE):
        if not conversions.defined(source, target) or getattr(torch, target) in lacking():
            continue
        found = made.to(device).to(getattr(torch, target))
        conversions.check(made, found, f"{source} to {target}")
