"""Computations and copies whose exact results are known, for the examination of a device.

All functions raise HealthError with the first difference. They change no setting of torch, and none of them depends on
TF32: floating point holds all integers that occur.
"""

from __future__ import annotations

import operator
import random
import sys
import zlib
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.core.errors import HarnessError

if TYPE_CHECKING:
    import torch

_SUMMED_BYTES = 1 << 20
_COUNTED = 1 << 22
_EDGE = 512  # rows and columns of the matrices
_LARGEST = 8  # largest element; 512 * 8 * 8 is far below 2**24, and float32 holds every integer up to 2**24
#: Maps a random byte to an element of a matrix, from -8 to 8.
_ELEMENTS = bytes((byte % (2 * _LARGEST + 1) - _LARGEST) % 256 for byte in range(256))
_SAMPLES = 4096
_WORD = 1 << 64


class HealthError(HarnessError):
    """A step of the examination failed on the device. The text names the step and the error."""


def bytes_of(torch: Any, there: torch.Tensor) -> bytearray:
    """Return the bytes of a uint8 tensor, copied to host memory."""
    fetched = bytearray(there.numel())
    torch.frombuffer(fetched, dtype=torch.uint8).copy_(there)
    return fetched


def same_bytes(wanted: bytes, actual: bytearray) -> None:
    """Compare bytes by their checksum, and count the bits that differ."""
    if zlib.crc32(wanted) == zlib.crc32(actual):
        return
    difference = int.from_bytes(wanted, "little") ^ int.from_bytes(actual, "little")
    first = ((difference & -difference).bit_length() - 1) // 8
    raise HealthError(
        f"{difference.bit_count()} of {8 * len(wanted)} bits differ; "
        f"the first is in byte {first}: {actual[first]:#04x} instead of {wanted[first]:#04x}"
    )


def check_integers(torch: Any, source: random.Random, pattern: bytes, words: torch.Tensor) -> None:
    """Scramble 64-bit words with an invertible function. Compare samples with Python; undo it and compare all words."""
    key, factor, term = source.getrandbits(63), source.getrandbits(62) | 1, source.getrandbits(63)
    scrambled = (words ^ key) * factor + term
    count = words.numel()
    places = range(0, count, count // _SAMPLES)
    for place, actual in zip(places, scrambled[:: places.step].tolist(), strict=True):
        word = int.from_bytes(pattern[8 * place : 8 * place + 8], sys.byteorder)
        wanted = ((word ^ key) * factor + term) % _WORD
        if actual % _WORD != wanted:
            raise HealthError(f"word {place} is {actual % _WORD:#018x} instead of {wanted:#018x}")
    inverse = _signed(pow(factor, -1, _WORD))
    restored = ((scrambled - term) * inverse) ^ key
    same_bytes(pattern, bytes_of(torch, restored.view(torch.uint8)))


def _signed(word: int) -> int:
    return word - _WORD if word >= _WORD // 2 else word


def check_reductions(torch: Any, device: torch.device, pattern: bytes, there: torch.Tensor) -> None:
    """Compare sums and maxima of a range and of the pattern, which `there` has on the device, with Python's."""
    counted = torch.arange(_COUNTED, dtype=torch.int64, device=device)
    part = pattern[:_SUMMED_BYTES]
    for name, actual, wanted in (
        ("the sum of arange", counted.sum(), _COUNTED * (_COUNTED - 1) // 2),
        ("the maximum of arange", counted.max(), _COUNTED - 1),
        ("the sum of the pattern", there[:_SUMMED_BYTES].sum(dtype=torch.int64), sum(part)),
        ("the maximum of the pattern", there[:_SUMMED_BYTES].max(), max(part)),
    ):
        if int(actual.item()) != wanted:
            raise HealthError(f"{name} is {int(actual.item())} instead of {wanted}")


def check_product(torch: Any, source: random.Random, device: torch.device, dtype: torch.dtype) -> None:
    """Check a product of matrices of small integers with Freivalds' method: C v = A (B v) in Python's integers.

    A single wrong element is always found; other errors are missed with a probability of one in 2**30.
    """
    left, right = (array("b", source.randbytes(_EDGE * _EDGE).translate(_ELEMENTS)) for _ in range(2))
    here = [torch.frombuffer(matrix, dtype=torch.int8).view(_EDGE, _EDGE).to(dtype) for matrix in (left, right)]
    product = here[0].to(device) @ here[1].to(device)
    vector = [source.randint(1, 1 << 30) for _ in range(_EDGE)]
    wanted = _times(left, _times(right, vector))
    for number, (row, expected) in enumerate(zip(product.tolist(), wanted, strict=True)):
        if not all(map(float.is_integer, row)):
            element = next(element for element in row if not element.is_integer())
            raise HealthError(f"row {number} has the element {element!r}, expected a whole number")
        if sum(map(operator.mul, map(int, row), vector)) != expected:
            raise HealthError(f"row {number} of {_EDGE} is wrong")


def _times(matrix: array[int], vector: Sequence[int]) -> list[int]:
    """Return the product of a matrix, row by row, and a vector."""
    edge = len(vector)
    return [sum(map(operator.mul, matrix[first : first + edge], vector)) for first in range(0, len(matrix), edge)]
