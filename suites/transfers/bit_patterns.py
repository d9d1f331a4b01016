"""Tensors for checking that copies preserve bits."""

from __future__ import annotations

import struct

import pytest
import torch

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
REALS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
EVERY = [torch.bool, *INTEGERS, *REALS, *COMPLEX]


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


DTYPE = pytest.mark.parametrize("dtype", EVERY, ids=name)

#: Bit patterns that an implementation may mishandle, as float32: zeros, subnormals, the smallest normal number, one,
#: the largest, infinities, quiet and signalling NaNs, of both signs, with payloads.
SPECIAL_32 = (
    *(0x00000000, 0x80000000, 0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800000, 0x80800000),
    *(0x3F800000, 0xBF800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7F800000, 0xFF800000),
    *(0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7FD55555, 0xFFAAAAAA, 0x7FFFFFFF, 0xFFFFFFFF),
)
#: The same kinds of patterns as float64.
SPECIAL_64 = (
    *(0x0000000000000000, 0x8000000000000000, 0x0000000000000001, 0x8000000000000001),
    *(0x000FFFFFFFFFFFFF, 0x800FFFFFFFFFFFFF, 0x0010000000000000, 0x8010000000000000),
    *(0x3FF0000000000000, 0xBFF0000000000000, 0x7FEFFFFFFFFFFFFF, 0xFFEFFFFFFFFFFFFF),
    *(0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000, 0xFFF8000000000000),
    *(0x7FF0000000000001, 0xFFF0000000000001, 0x7FFD555555555555, 0xFFF2AAAAAAAAAAAA),
    *(0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF),
)


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a tensor in the order of its elements, for comparisons that treat NaNs bitwise."""
    return tensor.cpu().contiguous().view(torch.uint8).reshape(-1)


def pattern(size: int) -> torch.Tensor:
    """Return bytes of all 256 values.

    Each byte differs from its neighbors and from those a power of two away, so that any shift is visible.
    """
    numbers = torch.arange(size, dtype=torch.int64)
    return (((numbers * 2654435761 >> 7) % 251 + numbers // 251 % 7) % 256).to(torch.uint8)


def bit_patterns(dtype: torch.dtype) -> torch.Tensor:
    """Return elements of a dtype, built from bytes: all patterns of 8- and 16-bit dtypes.

    Wider dtypes have special patterns and 2048 mixed ones. Complex numbers combine each special pattern with each other
    in both parts.
    """
    if dtype == torch.bool:
        return (pattern(4096) % 2).bool()
    if dtype.is_complex:
        parts = bit_patterns(dtype.to_real())
        special = parts[: len(SPECIAL_32)].view(_WHOLE[parts.dtype])
        pairs = torch.cartesian_prod(special, special)
        return torch.cat([pairs.flatten().view(dtype), parts.view(dtype)])
    if dtype.itemsize < 4:
        form, numbers = ("B", range(1 << 8)) if dtype.itemsize == 1 else ("H", range(1 << 16))
        return _packed(form, numbers).view(dtype)
    form, special_bits = ("I", SPECIAL_32) if dtype.itemsize == 4 else ("Q", SPECIAL_64)
    return torch.cat([_packed(form, special_bits), pattern(2048 * dtype.itemsize)]).view(dtype)


#: Integer dtypes with the widths of the real dtypes, because pairs are built from bits.
_WHOLE = {torch.float32: torch.int32, torch.float64: torch.int64}


def _packed(form: str, numbers: tuple[int, ...] | range) -> torch.Tensor:
    """Return the bytes of unsigned integers in native byte order."""
    return torch.tensor(list(struct.pack(f"={len(numbers)}{form}", *numbers)), dtype=torch.uint8)
