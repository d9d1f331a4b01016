"""Conversions of float8, complex32 and unsigned types, compared with numbers computed in Python from their definitions.

Each conversion runs on the way to the device, on the device, and on the way back.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence

import pytest
import torch

from .bit_patterns import name
from .narrow_floats import FLOAT8, FORMS, NAN, decoded, rounded

EIGHT = pytest.mark.parametrize("dtype", FLOAT8, ids=name)
REALS = pytest.mark.parametrize("target", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=name)

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support", "ignore:Casting complex values to real")


def ways(x: torch.Tensor, target: torch.dtype, device: torch.device) -> Iterator[torch.Tensor]:
    """Yield the tensor converted on the way to the device, on it, into a tensor on it, and on the way back."""
    yield x.to(device, target)
    yield x.to(device).to(target)
    yield torch.empty(x.shape, dtype=target, device=device).copy_(x.to(device))
    yield x.to(device).to("cpu", target)


def codes(values: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of these bit patterns."""
    form = {1: "B", 2: "H", 4: "I", 8: "Q"}[dtype.itemsize]
    return torch.tensor(list(struct.pack(f"={len(values)}{form}", *values)), dtype=torch.uint8).view(dtype)


def overflowed(found: Sequence[int], dtype: torch.dtype) -> list[int]:
    """Return the patterns, with the largest number of E4M3 in place of its NaN.

    The specification allows either for overflow. torch gives NaN up to release 2.12, then the number.
    """
    return [code & ~1 if dtype == torch.float8_e4m3fn and code & 127 == 127 else code for code in found]


def patterns(x: torch.Tensor) -> list[int]:
    """Return the bit patterns of a tensor of 8- or 16-bit elements."""
    form = {1: "B", 2: "H"}[x.dtype.itemsize]
    data = bytes(x.cpu().contiguous().view(torch.uint8).flatten().tolist())
    return list(struct.unpack(f"={x.numel()}{form}", data))


def assert_numbers(found: torch.Tensor, expected: Sequence[float]) -> None:
    """Check numbers with their signs, including the sign of zero, and NaN for NaN."""
    for place, (value, wanted) in enumerate(zip(found.cpu().tolist(), expected, strict=True)):
        same = math.isnan(value) if math.isnan(wanted) else value == wanted
        same = same and (math.isnan(wanted) or math.copysign(1, value) == math.copysign(1, wanted))
        assert same, f"element {place} is {value!r}, expected {wanted!r}"


@pytest.mark.parametrize("dtype", [*FLOAT8, torch.float8_e8m0fnu], ids=name)
@REALS
def test_float8_to_wider_types_is_exact(device: torch.device, dtype: torch.dtype, target: torch.dtype) -> None:
    """Each of the 256 patterns becomes its number, with zeros of both signs, infinities and NaN.

    Powers of two beyond float16 become infinity or zero, like those of float32.
    """
    x = codes(range(256), dtype)
    expected = decoded(dtype)
    if dtype == torch.float8_e8m0fnu and target == torch.float16:
        # exponents from -24 are subnormal; half of the smallest rounds to zero, which is even
        expected = [
            value if math.isnan(value) or 2**-24 <= value < 2**16 else (0.0 if value < 1 else math.inf)
            for value in expected
        ]

    for found in ways(x, target, device):
        assert found.dtype == target
        assert_numbers(found, expected)


@EIGHT
@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=name)
def test_to_float8_rounds_to_nearest_even(device: torch.device, dtype: torch.dtype, source: torch.dtype) -> None:
    """Each number, the middle between neighbors, the numbers next to it, and overflow round as the definition says.

    Overflow is NaN in `fnuz` types and infinity in E5M2. Signs are kept, except that of zero in `fnuz` types.
    """
    table = rounded(dtype)
    wider = torch.tensor(list(table), dtype=torch.float64)
    fits = wider.to(source).double() == wider
    values, expected = wider[fits], [code for code, keep in zip(table.values(), fits.tolist(), strict=True) if keep]
    sign = 1 << 7
    negative = [code if FORMS[dtype].special == "fnuz" and code in (0, sign) else code | sign for code in expected]
    x = torch.cat([values, -values]).to(source)

    assert len(expected) > 100
    for found in ways(x, dtype, device):
        assert overflowed(patterns(found), dtype) == overflowed(expected + negative, dtype)


@EIGHT
def test_to_float8_of_nan_and_infinity(device: torch.device, dtype: torch.dtype) -> None:
    """NaN stays NaN. Infinity is infinity in E5M2, NaN in `fnuz` types, and NaN or the largest number in E4M3."""
    x = torch.tensor([math.nan, math.inf, -math.inf])
    infinite = [math.inf, -math.inf] if dtype == torch.float8_e5m2 else [NAN, NAN]

    for found in ways(x, dtype, device):
        table = decoded(dtype)
        first, *others = patterns(found)
        assert math.isnan(table[first])
        if dtype == torch.float8_e4m3fn:
            assert others in ([126, 254], [127, 255])
        else:
            assert_numbers(torch.tensor([table[code] for code in others]), infinite)


def test_to_float8_e8m0_takes_the_nearest_power_of_two(device: torch.device) -> None:
    """Powers of two are kept, and other numbers round down up to 1.5 times a power, otherwise up; NaN is 255."""
    powers = [math.ldexp(1.0, exponent) for exponent in (-126, -60, -1, 0, 1, 5, 100, 126)]
    x = torch.tensor([*powers, *[1.25 * power for power in powers], *[1.75 * power for power in powers], math.nan])
    exact = [127 + exponent for exponent in (-126, -60, -1, 0, 1, 5, 100, 126)]

    for found in ways(x, torch.float8_e8m0fnu, device):
        assert patterns(found) == [*exact, *exact, *[code + 1 for code in exact], 255]


@pytest.mark.parametrize("target", [torch.float32, torch.bfloat16, torch.float64], ids=name)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name)
def test_half_precision_to_wider_types_is_exact(device: torch.device, dtype: torch.dtype, target: torch.dtype) -> None:
    """All 65,536 patterns of float16 and bfloat16, including subnormals, become their numbers in wider types.

    The conversion to bfloat16 is checked for float16 numbers with up to eight bits.
    """
    if dtype == target:
        return
    numbers = decoded(dtype)
    kept = range(1 << 16)
    if target == torch.bfloat16:
        kept = [code for code in kept if code & 7 == 0 and (code & 0x7FFF >= 0x400 or code & 0x3FF == 0)]  # type: ignore[assignment]
    x = codes(list(kept), dtype)

    for found in ways(x, target, device):
        assert_numbers(found, [numbers[code] for code in kept])


def test_complex32_is_two_halves(device: torch.device) -> None:
    """complex32 becomes complex64 and back with both parts exact, and only its real part becomes a real type."""
    parts = [(1.0, -2.0), (0.5, 65504.0), (-0.0, 2.0**-24), (math.inf, 3.0), (2.0**-14, -1023.5)]
    x = torch.tensor([part for pair in parts for part in pair], dtype=torch.float16).view(torch.complex32)

    for found in ways(x, torch.complex64, device):
        assert [(value.real, value.imag) for value in found.cpu().tolist()] == parts
        for back in ways(found.cpu(), torch.complex32, device):
            assert back.cpu().view(torch.float16).tolist() == [part for pair in parts for part in pair]
    for found in ways(x, torch.float32, device):
        assert_numbers(found, [real for real, _ in parts])


# ---- unsigned types ----

UNSIGNED = [torch.uint8, torch.uint16, torch.uint32, torch.uint64]


def around_powers(width: int) -> list[int]:
    """Return zero, and each power of two below 2^width with the numbers next to it, so that each bit matters."""
    found = {0, (1 << width) - 1}
    for bit in range(width):
        found |= {(1 << bit) - 1, 1 << bit, (1 << bit) + 1}
    return sorted(number for number in found if number < 1 << width)


@pytest.mark.parametrize("source", UNSIGNED, ids=name)
@pytest.mark.parametrize("target", [*UNSIGNED, torch.int8, torch.int16, torch.int32, torch.int64], ids=name)
def test_unsigned_to_integers_keeps_the_low_bits(
    device: torch.device, source: torch.dtype, target: torch.dtype
) -> None:
    """An unsigned integer keeps all bits in a wider type and the low ones in a narrower one."""
    values, width = around_powers(8 * source.itemsize), 8 * target.itemsize
    low = [value % (1 << width) for value in values]
    expected = [value - (1 << width) if target.is_signed and value >> (width - 1) else value for value in low]

    for found in ways(codes(values, source), target, device):
        assert found.cpu().tolist() == expected


@pytest.mark.parametrize("target", [torch.uint16, torch.uint32, torch.uint64], ids=name)
def test_signed_to_unsigned_wraps(device: torch.device, target: torch.dtype) -> None:
    """A negative integer becomes its two's complement in the width of the type."""
    values = [
        0,
        1,
        -1,
        -2,
        127,
        -128,
        1 << 15,
        -(1 << 15),
        (1 << 31) - 1,
        -(1 << 31),
        1 << 40,
        -(1 << 62),
        (1 << 63) - 1,
    ]

    for found in ways(torch.tensor(values), target, device):
        assert found.cpu().tolist() == [value % (1 << 8 * target.itemsize) for value in values]


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=name)
@pytest.mark.parametrize("target", [torch.float32, torch.float64], ids=name)
def test_unsigned_to_floats_rounds_to_nearest(device: torch.device, dtype: torch.dtype, target: torch.dtype) -> None:
    """Unsigned integers become the nearest number of the type, also above the largest signed one."""
    values = around_powers(8 * dtype.itemsize)

    for found in ways(codes(values, dtype), target, device):
        assert found.cpu().double().tolist() == [nearest(value, target) for value in values]


def nearest(value: int, target: torch.dtype) -> float:
    """Return the float32 or float64 number that is nearest to a whole number, or of two the even one."""
    digits = 24 if target == torch.float32 else 53
    shift = max(value.bit_length() - digits, 0)
    kept, rest = value >> shift, value & (1 << shift) - 1
    half = 1 << shift - 1 if shift else 1
    kept += shift > 0 and (rest > half or (rest == half and kept & 1 == 1))
    return math.ldexp(kept, shift)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64], ids=name)
@pytest.mark.parametrize("source", [torch.float32, torch.float64], ids=name)
def test_floats_to_unsigned_cuts_fractions(device: torch.device, dtype: torch.dtype, source: torch.dtype) -> None:
    """Floats in the range of the type lose their fraction, up to the largest number below its limit."""
    width = 8 * dtype.itemsize
    whole = [1 << bit for bit in range(width)] + [3 << bit for bit in range(width - 1)]
    values = [float(value) for value in whole] + [0.75, 1.5, 2.999, 100.25, 30000.5]
    if width < 64:  # beyond, the numbers next to the limit differ between the types
        values.append(float((1 << min(width, 24)) - 1))

    for found in ways(torch.tensor(values, dtype=source), dtype, device):
        assert found.cpu().tolist() == [int(value) for value in torch.tensor(values, dtype=source).tolist()]
