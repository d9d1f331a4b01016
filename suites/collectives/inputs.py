"""Inputs of ranks for which every collective is exact in every type, and references that use no collective.

Each input depends on the rank and on the position. The result therefore changes if a rank is left out, is used twice or
is confused with another, or if a chunk is at a wrong place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

FLOATS = ("float32", "float64", "float16", "bfloat16")
INTEGERS = ("int8", "uint8", "int32", "int64")
TYPES = (*FLOATS, *INTEGERS, "bool")
#: Types that are only moved: complex numbers are sent as pairs.
MOVED_TYPES = (*TYPES, "complex64")

#: Sizes around the units into which implementations divide buffers: vectors of 16 bytes, lines of 128 bytes, chunks of
#: 512 bytes, pages, and the segments of 1 MiB of gloo's ring (in elements of four bytes).
BORDERS = (
    0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025, 4097,
    65535, 65536, 65537, 262143, 262144, 262145,
)  # fmt: skip
FEW_BORDERS = (0, 1, 7, 8, 9, 33, 129, 1025, 65537, 262145)
FEWEST = (0, 1, 9, 1025)

Op = dist.ReduceOp


@dataclass(frozen=True)
class Typed:
    """A call with tensors of one type, which is given by its name."""

    dtype: str

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype


def numbers(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Return whole numbers in [-5, 5], or [0, 10] for types without a sign. Eight of them add up to less than 100."""
    index = torch.arange(size)
    values = (index * 7 + index // 64 + rank * 3) % 11
    if dtype is torch.bool:
        return values % 3 == 0
    if dtype.is_complex:
        return torch.complex(values.float(), (values * 2 % 11).float()).to(dtype)
    return (values if dtype is torch.uint8 else values - 5).to(dtype)


def factors(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Return factors 1 and, in signed types, -1.

    At each place one rank of eight has 2 or -2, and the next has 3 or -3.
    """
    index = torch.arange(size)
    place = (index + index // 64 + rank) % 8
    values = torch.where(place == 0, 2, torch.where(place == 1, 3, 1))
    if dtype is not torch.uint8:
        values = torch.where((index * 5 + rank) % 4 == 0, -values, values)
    return values.to(dtype)


def bits(rank: int, size: int, dtype: torch.dtype, *, most: bool) -> torch.Tensor:
    """Return numbers of seven bits with one bit set, or with `most` one bit cleared.

    At other places any bits are set.
    """
    index = torch.arange(size)
    one = 1 << ((index + index // 64 + 2 * rank) % 7)
    return torch.where(_alone(index), 127 ^ one if most else one, mixed(rank, size, torch.int64)).to(dtype)


def _alone(index: torch.Tensor) -> torch.Tensor:
    """Return half of the places, including the first eight: those at which a single rank differs from the others.

    At the other places several ranks have the same bits, so that sums and exclusive ors differ from an or.
    """
    return index // 8 % 2 == 0


def mixed(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Return numbers of seven bits.

    Several ranks have the same bits set, so that an exclusive or differs from an or.
    """
    index = torch.arange(size)
    return ((index * 37 + index // 64 + rank * rank * 29 + rank * 45 + 11) % 128).to(dtype)


def averaged(rank: int, size: int, dtype: torch.dtype, world: int) -> torch.Tensor:
    """Return numbers whose average over `world` ranks is exact."""
    return numbers(rank, size, dtype) * world


#: The reference for two inputs in a wide type, by reduction.
_PAIRS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}
_OF_BOOL: Mapping[str, str] = {"SUM": "BOR", "PRODUCT": "BAND", "MIN": "BAND", "MAX": "BOR"}


def reductions(dtype: str, backend: str) -> tuple[str, ...]:
    """Return the reductions that a backend supports for a type."""
    arithmetic = ("SUM", "PRODUCT", "MIN", "MAX")
    if dtype in FLOATS:
        return (*arithmetic, "AVG")
    if dtype == "bool" and backend == "gloo":  # SUM: see test_all_reduce_sum_of_bool_is_a_bool
        return (*arithmetic[1:], "BAND", "BOR", "BXOR")
    return (*arithmetic, "BAND", "BOR", "BXOR") if backend == "gloo" else arithmetic


def operand(reduction: str, rank: int, size: int, dtype: torch.dtype, world: int) -> torch.Tensor:
    """Return the input of a rank for a reduction."""
    if dtype is torch.bool:
        index = torch.arange(size)
        several = numbers(rank, size, dtype)
        if reduction == "BXOR":
            return several
        alone = (index + index // 64 + rank) % 8 == 0  # one rank in eight, at each place
        return torch.where(_alone(index), ~alone if reduction in ("PRODUCT", "MIN", "BAND") else alone, several)
    if reduction == "AVG":
        return averaged(rank, size, dtype, world)
    if reduction == "PRODUCT":
        return factors(rank, size, dtype)
    if reduction == "BXOR":
        return mixed(rank, size, dtype)
    if reduction.startswith("B"):
        return bits(rank, size, dtype, most=reduction == "BAND")
    return numbers(rank, size, dtype)


def reduced(reduction: str, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the exact result over the inputs of all ranks, in their type."""
    dtype = inputs[0].dtype
    wide = torch.bool if dtype is torch.bool else torch.float64 if dtype.is_floating_point else torch.int64
    pair = _PAIRS[_OF_BOOL.get(reduction, reduction) if dtype is torch.bool else reduction]
    total = inputs[0].to(wide)
    for each in inputs[1:]:
        total = pair(total, each.to(wide))
    return (total / len(inputs) if reduction == "AVG" else total).to(dtype)


class Guarded:
    """A tensor inside a larger buffer, at an odd element. No collective may write to the rest of the buffer."""

    def __init__(self, content: torch.Tensor, device: torch.device) -> None:
        """Copy `content` into the buffer."""
        size = content.numel()
        self._buffer = torch.full((size + 6,), 1, dtype=content.dtype, device=device)
        self._edge = self._buffer[:3].clone()
        self.tensor = self._buffer[3 : 3 + size].view(content.shape)
        self.tensor.copy_(content)

    def is_intact(self) -> bool:
        """Return whether the rest of the buffer is unchanged."""
        size = self.tensor.numel()
        return bool((self._buffer[:3] == self._edge).all() and (self._buffer[3 + size :] == self._edge).all())
