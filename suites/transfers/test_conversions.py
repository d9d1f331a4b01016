"""Copies between host and device that change the dtype: the same values as a conversion on the host."""

from __future__ import annotations

import itertools

import pytest
import torch

from ..synchronizing import synchronize
from .bit_patterns import name
from .test_round_trips import NON_BLOCKING

TYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]
PAIRS = [pair for pair in itertools.product(TYPES, TYPES) if pair[0] != pair[1]]


def numbers(source: torch.dtype, target: torch.dtype) -> list[complex]:
    """Return numbers that both dtypes can represent, except for an imaginary part that the target drops.

    Their conversion is defined. For bool they are zero and one.
    """
    if source == torch.bool:
        return [complex(value % 5 in (1, 4)) for value in range(300)]
    found = [complex(value % 100) for value in range(300)]
    kinds = (source, target)
    if all(dtype.is_signed or dtype == torch.bool for dtype in kinds):
        found += [-number for number in found]
    if all(dtype.is_floating_point or dtype.is_complex or dtype == torch.bool for dtype in kinds):
        found += [number / 4 for number in found] + [complex("inf"), complex("-inf")]
    if source.is_complex:
        found += [complex(number.real, 1 + place % 7) for place, number in enumerate(found[:300])]
    return found


def of_type(number: complex, dtype: torch.dtype) -> complex:
    """Return a number as represented by a dtype, by Python's rules."""
    if dtype == torch.bool:
        return bool(number)
    return number if dtype.is_complex else number.real if dtype.is_floating_point else int(number.real)


def tensor_of(values: list[complex], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of the numbers, each converted in Python, so that no tensor conversion is involved."""
    return torch.tensor([of_type(value, dtype) for value in values], dtype=dtype)


@pytest.mark.covers("test_cuda::TestCuda::test_copy_non_blocking_type_conversion")
@NON_BLOCKING
@pytest.mark.parametrize(("source", "target"), PAIRS, ids=[f"{name(a)}-{name(b)}" for a, b in PAIRS])
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_to_and_copy_convert_as_the_cpu_does(
    device: torch.device, source: torch.dtype, target: torch.dtype, non_blocking: bool
) -> None:
    """`to` and `copy_` with another dtype, to and from the device, give the values that Python's conversion gives.

    This includes negative numbers, fractions and infinities that both dtypes can represent, bool as nonzero, and a
    dropped imaginary part.
    """
    # memory reused from the previous case has other values
    values = numbers(source, target)[:: -1 if non_blocking else 1]
    x, expected = tensor_of(values, source), tensor_of(values, target)

    there = x.to(device, target, non_blocking=non_blocking)
    filled = torch.empty_like(expected, device=device).copy_(x, non_blocking=non_blocking)
    back = x.to(device).to("cpu", target, non_blocking=non_blocking)
    host = torch.empty_like(expected).copy_(x.to(device), non_blocking=non_blocking)
    synchronize(device)

    assert (there.dtype, there.device) == (target, device)
    for result in (there, filled, back, host):
        assert torch.equal(result.cpu(), expected)


def test_to_rounds_to_nearest_even(device: torch.device) -> None:
    """float32 to bfloat16 and float16 rounds to nearest even, before or after the copy.

    Overflow is infinite, and NaN stays NaN.
    """
    inf = float("inf")
    wanted = {
        torch.bfloat16: {
            1.0: 1.0, 1.00390625: 1.0, 1.01171875: 1.015625, 1.00390637: 1.0078125, 257.0: 256.0, 259.0: 260.0,
            -257.0: -256.0, 3.38e38: 254 * 2.0**120, 3.4e38: inf, -3.4e38: -inf,
        },
        torch.float16: {
            1.0: 1.0, 2049.0: 2048.0, 2051.0: 2052.0, -2051.0: -2052.0, 65_519.0: 65_504.0, 65_520.0: inf, 1e30: inf,
            -1e30: -inf, 2.0**-25: 0.0, 3 * 2.0**-25: 2 * 2.0**-24, 1e-8: 0.0, 2.0**-24: 2.0**-24,
        },
    }  # fmt: skip

    for dtype, pairs in wanted.items():
        x = torch.tensor([*pairs, float("nan")])
        for found in (x.to(device, dtype), x.to(device).to("cpu", dtype)):
            assert found[:-1].tolist() == list(pairs.values())
            assert found.isnan().tolist() == [False] * len(pairs) + [True]


def test_to_integer_cuts_fractions_towards_zero(device: torch.device) -> None:
    """A float converts to an integer by truncation towards zero, and to bool as nonzero, on either side of the copy."""
    x = torch.tensor([0.0, -0.0, 0.5, 0.999, 1.5, -0.5, -1.5, -2.999, 1e-40, 100.25])

    assert x.to(device, torch.int32).tolist() == [0, 0, 0, 0, 1, 0, -1, -2, 0, 100]
    assert x.to(device).to("cpu", torch.int8).tolist() == [0, 0, 0, 0, 1, 0, -1, -2, 0, 100]
    doubtful = torch.tensor([0.0, -0.0, 0.5, float("nan"), float("inf"), -3.0, 2.0**-149])
    for truth in (doubtful.to(device, torch.bool), doubtful.to(device).to("cpu", torch.bool)):
        assert truth.tolist() == [False, False, True, True, True, True, True]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32], ids=name)
def test_to_smaller_integer_wraps(device: torch.device, dtype: torch.dtype) -> None:
    """An integer too large for the target keeps its low bits, on either side of the copy."""
    values = [0, 127, 128, 255, 256, 300, -1, -129, 1 << 15, (1 << 31) - 1, 1 << 31, 1 << 40, -(1 << 40) - 3]
    x, width = torch.tensor(values), 8 * dtype.itemsize
    low = [value % (1 << width) for value in values]
    expected = [value - (1 << width) if dtype.is_signed and value >> (width - 1) else value for value in low]

    assert x.to(device, dtype).tolist() == expected
    assert x.to(device).to("cpu", dtype).tolist() == expected


@pytest.mark.types("float64")
def test_to_converts_dtype_and_layout_together(device: torch.device) -> None:
    """A copy may change dtype, device and strides together."""
    rows = [[float(30 * row + column) for column in range(30)] for row in range(20)]
    x = torch.arange(600, dtype=torch.int32).view(20, 30)

    target = torch.full((30, 20), -1.0, dtype=torch.float64, device=device).t()
    target[::2, 3:].copy_(x[::2, 3:], non_blocking=True)
    synchronize(device)

    assert target.cpu().tolist() == [
        [-1.0] * 3 + row[3:] if number % 2 == 0 else [-1.0] * 30 for number, row in enumerate(rows)
    ]
    turned = x.to(device).t()[5:].to("cpu", torch.float32)
    assert turned.dtype == torch.float32
    assert turned.tolist() == [list(column) for column in zip(*rows, strict=True)][5:]
