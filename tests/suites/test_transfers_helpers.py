"""Helpers of the suite of transfers: bit patterns with the promised properties, and numbers for conversions."""

from __future__ import annotations

import math
import struct

import pytest
import torch

from suites.transfers.bit_patterns import COMPLEX, EVERY, REALS, bit_patterns, bits, pattern
from suites.transfers.test_conversions import PAIRS, numbers, tensor_of


@pytest.mark.parametrize("dtype", REALS, ids=str)
def test_patterns_of_real_numbers_have_the_special_ones(dtype: torch.dtype) -> None:
    found = bit_patterns(dtype).double()
    plain = found[found.isfinite()]
    signs = {math.copysign(1, number) for number in plain[plain == 0].tolist()}

    assert signs == {1, -1}
    assert {float("inf"), float("-inf")} <= set(found.tolist())
    assert {torch.finfo(dtype).max, torch.finfo(dtype).min, torch.finfo(dtype).tiny} <= set(plain.tolist())
    assert ((plain != 0) & (plain.abs() < torch.finfo(dtype).tiny)).sum() >= 4
    assert found.isnan().sum() >= 8


@pytest.mark.parametrize("dtype", [dtype for dtype in EVERY if dtype.itemsize <= 2 and dtype != torch.bool], ids=str)
def test_every_pattern_of_narrow_types_is_there(dtype: torch.dtype) -> None:
    whole = bit_patterns(dtype).view(torch.uint8 if dtype.itemsize == 1 else torch.int16)

    assert len(whole) == len(set(whole.tolist())) == 1 << 8 * dtype.itemsize


@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_complex_numbers_have_special_parts_in_either_place(dtype: torch.dtype) -> None:
    found = torch.view_as_real(bit_patterns(dtype))

    for left, right in ((math.inf, -0.0), (-0.0, math.inf), (-math.inf, 1.0), (1.0, -math.inf)):
        wanted = torch.tensor([left, right], dtype=found.dtype)
        assert any(torch.equal(bits(pair), bits(wanted)) for pair in found[: 22 * 22])


def test_bits_are_bytes_in_the_machines_order() -> None:
    found = bits(torch.tensor([1.0, -0.0]))

    assert bytes(found.tolist()) == struct.pack("=2f", 1.0, -0.0)


def test_the_pattern_has_every_byte_and_no_shift_that_goes_unseen() -> None:
    found = pattern(1 << 16)

    assert len(set(found[:4096].tolist())) == 256
    assert all((found[1 << power :] != found[: -(1 << power)]).all() for power in range(16))


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_numbers_for_conversions_are_held_by_their_type(source: torch.dtype, target: torch.dtype) -> None:
    values = numbers(source, target)
    back = tensor_of(values, source).tolist()

    assert [complex(value) for value in back] == values
