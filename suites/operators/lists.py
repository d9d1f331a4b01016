"""Lists of tensors for operators that work on lists: sizes, memory, and their numbers as one array.

CUDA's kernels process a list in parts: up to 110 tensors, up to 320 chunks of 65536 elements, and vectors of four
elements where addresses allow. Tensors with gaps, or with different strides, take another path. The lists cover each of
these limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from . import comparison, tolerances
from .comparison import Bound, WrongValueError
from .references import formats
from .references.formats import Array

Shape = tuple[int, ...]

#: The shapes of each list. The memory of those of `memory` has further elements, which must not change.
SHAPES: dict[str, Sequence[Shape]] = {
    "one": [(7,)],
    "few": [(3, 4), (), (0,), (1,), (2, 3, 5), (17,), (0, 4), (33,)],
    "misaligned": [(5,), (64,), (3, 5), (1,), (130,)],
    "strided": [(4, 3), (9,), (2, 3, 4), (), (1, 5), (0, 3)],
    "many": [(1 + place % 7,) for place in range(231)],
    "chunks": [(65536 + 3,), (2,), (2, 65536), (65535,)],
}


def number(values: Array, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor in the host's memory of these numbers, rounded to the type."""
    return torch.from_numpy(np.array(values, order="C")).to(dtype)


@dataclass
class Listed:
    """A list of tensors on a device, and the numbers of all of them, read bit by bit."""

    tensors: list[torch.Tensor]
    values: Array
    #: The memory of each tensor, if it has elements outside of the tensors.
    around: list[torch.Tensor]

    @property
    def sizes(self) -> list[int]:
        return [each.numel() for each in self.tensors]


def flat(tensors: Sequence[torch.Tensor]) -> Array:
    """Return the numbers of all tensors, one after the other."""
    return np.concatenate([formats.read(comparison.on_host(each)).ravel() for each in tensors])


def _placed(x: torch.Tensor, kind: str, place: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return a tensor on the device with these numbers, and the memory that contains it."""
    if kind == "misaligned":  # one element after an address that is a multiple of 64 bytes
        base = torch.full((x.numel() + 3,), 77, dtype=x.dtype, device=device)
        found = base[1 : 1 + x.numel()].view(x.shape)
    elif kind == "strided" and x.dim():
        wide = torch.full((*x.shape[:-1], 2 * x.shape[-1] + 1), 77, dtype=x.dtype, device=device)
        base, found = wide, wide[..., 1::2]
        if place % 2 and x.dim() > 1:  # column-major
            base = found = torch.empty(x.shape[::-1], dtype=x.dtype, device=device).permute(*range(x.dim())[::-1])
    else:
        return x.to(device, copy=True), None
    return found.copy_(x), base


def listed(
    name: str, draw: Callable[[Shape], Array], dtype: torch.dtype, device: torch.device, like: str = ""
) -> Listed:
    """Return a list of tensors whose numbers `draw` generates.

    `like`: the kind of memory, if it is not that of `name`.
    """
    hosts = [number(draw(shape), dtype) for shape in SHAPES[name]]
    placed = [_placed(each, like or name, place, device) for place, each in enumerate(hosts)]
    return Listed([each for each, _ in placed], flat(hosts), [base for _, base in placed if base is not None])


def outside(found: Listed) -> int:
    """Return the number of elements with the value 77 in the memory around the tensors."""
    return sum(int((formats.read(comparison.on_host(each)) == 77).sum()) for each in found.around)


def bound(dtype: torch.dtype, roundings: float) -> Bound:
    """Return the error bound of elementwise functions: their roundings, and 16 times those for float64."""
    return Bound(16 * roundings if dtype in (torch.float64, torch.complex128) else roundings, 0.0)


def check(
    found: Sequence[torch.Tensor],
    shapes: Sequence[Shape],
    wanted: Array,
    dtype: torch.dtype,
    allowed: Bound | None,
    where: str,
) -> None:
    """Raise WrongValueError unless tensors have these shapes, this type and, one after the other, these numbers."""
    if [tuple(each.shape) for each in found] != list(shapes):
        raise WrongValueError(f"{where}: shapes {[tuple(each.shape) for each in found]}, expected {list(shapes)}")
    for each in found:
        if each.dtype != dtype:
            raise WrongValueError(f"{where}: type {each.dtype}, expected {dtype}")
    actual = flat(found)
    wanted = np.asarray(wanted)
    if dtype.is_floating_point or dtype.is_complex:
        wanted = wanted.astype(formats.wide(dtype))
    bad = comparison.excess(actual, wanted, dtype, allowed or tolerances.bound("", dtype))
    if bad.any():
        raise WrongValueError(f"{where} ({dtype}): {comparison.describe(actual, wanted, bad)}")
