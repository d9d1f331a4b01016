"""Tensors made from bits, and the expected result of a conversion between types."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import torch

from . import comparison
from .comparison import WrongValueError
from .references import formats

_CODES = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def made(source: str, numbers: Sequence[float]) -> torch.Tensor:
    """Return a tensor of a type on the host, whose bits NumPy wrote: these numbers, or whole numbers of all sizes."""
    dtype = getattr(torch, source)
    if dtype.is_floating_point and source in formats.FORMATS:
        table = formats.FORMATS[source].decode(np.arange(1 << formats.FORMATS[source].bits))
        wanted = np.asarray([each for each in numbers if formats.FORMATS[source].signed or each > 0])
        wanted = wanted[np.abs(wanted) <= formats.FORMATS[source].largest]
        finite = np.where(np.isfinite(table), table, np.inf)
        codes = np.abs(finite[None] - wanted[:, None]).argmin(1).astype(_CODES[dtype.itemsize])
    elif dtype.is_floating_point:
        codes = np.asarray(numbers, source).view(_CODES[dtype.itemsize])
    else:
        bits = dtype.itemsize * 8 - dtype.is_signed
        whole = [0, 1, 2, 3, 5, 77, (1 << bits) - 1, (1 << bits) - 2, (1 << bits) // 3, 1 << (bits - 1)]
        codes = np.asarray(whole, np.uint64).astype(_CODES[dtype.itemsize])
    found = torch.empty(len(codes), dtype=dtype)
    ctypes.memmove(found.data_ptr(), codes.ctypes.data, codes.nbytes)
    return found


def defined(source: str, target: str) -> bool:
    """Return whether every number that `made` has for `source` has a defined value in `target`."""
    one, two = getattr(torch, source), getattr(torch, target)
    if one.is_floating_point and not two.is_floating_point:
        return False  # beyond the type, results depend on the machine
    return "e8m0" not in target or "e8m0" in source  # only powers of two


def check(source: torch.Tensor, found: torch.Tensor, what: str) -> None:
    """Raise WrongValueError unless `found` has the values of `source` in its own type."""
    exact, got = formats.read(source), formats.read(comparison.on_host(found))
    with np.errstate(all="ignore"):
        if found.dtype.is_floating_point:
            wanted = formats.rounded(exact.astype(np.float64), found.dtype)
            bad = (got != wanted) & ~(np.isnan(got) & np.isnan(wanted))
            # Beyond the largest value, torch may choose infinity, NaN or the largest value.
            over = np.abs(exact.astype(np.float64)) > formats.largest(found.dtype)
            bad &= ~(over & ~(np.abs(got) < formats.largest(found.dtype)))
        else:
            wanted = exact.astype(formats.wide(found.dtype))
            bad = got != wanted
    if bad.any():
        raise WrongValueError(
            f"{what}: {comparison.describe(got, wanted, bad)}, from {exact[np.flatnonzero(bad)[0]]!r}"
        )
