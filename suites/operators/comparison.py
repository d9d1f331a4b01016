"""Compare the result of an operator with a reference, within bounds of rounding.

A result must have the structure, types and shapes of the reference. Integers and truth values must be equal. A float
may differ by `k` roundings of its type, and by the change of the reference that the same number of roundings of the
inputs causes: no algorithm that rounds its inputs can do better. `k` is defined per type and, for operators that round
more often, per operator (`tolerances.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .references import formats
from .references.formats import Array
from .references.interpreter import Host


class WrongValueError(AssertionError):
    """A value differs from the reference."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The allowed roundings.

    `roundings`: of each element. `scaled`: of the largest element of the result, for sums with cancellation. `least`:
    an absolute error that is always allowed.
    """

    roundings: float
    scaled: float = 0.0
    least: float = 0.0


def describe(actual: Array, expected: Array, bad: Array) -> str:
    """Return the first wrong element and the number of wrong elements."""
    place = tuple(int(each) for each in np.argwhere(bad)[0]) if bad.ndim else ()
    return f"{int(bad.sum())} of {bad.size} wrong, first at {place}: {actual[place]!r}, expected {expected[place]!r}"


def _values(array: Array) -> list[Array]:
    return [array.real, array.imag] if array.dtype.kind == "c" else [array]


def excess(actual: Array, expected: Array, dtype: torch.dtype, bound: Bound, slack: Array | float = 0.0) -> Array:
    """Return where `actual` (exact values of a tensor of `dtype`) is farther from `expected` than allowed."""
    if actual.dtype.kind not in "fc":
        if not bound.least or actual.dtype.kind == "b":
            return np.asarray(actual != expected)
        return np.asarray(np.abs(actual.astype(np.int64) - expected.astype(np.int64)) > bound.least)
    with np.errstate(all="ignore"):
        unit = formats.unit(dtype)
        near = formats.rounded(expected, dtype)
        size = np.abs(np.where(np.isfinite(expected), expected, 0))
        largest = size.max(initial=0.0)
        allowed = (
            unit * (bound.roundings * size + bound.scaled * largest)
            + bound.least
            + slack
            + formats.smallest(dtype) * unit * 4
        )
        bad = np.zeros(actual.shape, bool)
        for one, two, exact in zip(_values(actual), _values(near), _values(expected), strict=True):
            same = (one == two) | (np.isnan(one) & np.isnan(two))
            close = np.abs(one - exact) <= allowed
            # At the edge of the type, the result may or may not round to infinity.
            edge = (
                np.isinf(one)
                & np.isfinite(exact)
                & (np.abs(exact) + allowed >= formats.largest(dtype))
                & (np.sign(one) == np.sign(exact))
            )
            edge |= (
                np.isfinite(one)
                & np.isinf(two)
                & (np.abs(one) >= formats.largest(dtype) * (1 - unit * bound.roundings * 2))
                & (np.sign(one) == np.sign(two))
            )
            bad |= ~(same | close | edge)
        return bad


def check_tensor(actual: Any, expected: Host, bound: Bound, slack: Callable[[], Array | float], where: str) -> None:
    """Raise WrongValueError if a tensor of the device is not as expected. `slack` is called if it is not close."""
    if actual.dtype != expected.dtype:
        raise WrongValueError(f"{where} has type {actual.dtype}, expected {expected.dtype}")
    if tuple(actual.shape) != tuple(expected.shape):
        raise WrongValueError(f"{where} has shape {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    found = formats.read(on_host(actual))
    bad = excess(found, expected.array, expected.dtype, bound)
    if bad.any() and found.dtype.kind in "fc":
        bad = excess(found, expected.array, expected.dtype, bound, slack())
    if bad.any():
        raise WrongValueError(
            f"{where} ({expected.dtype}): {describe(found, formats.rounded(expected.array, expected.dtype), bad)}"
        )


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in the host's memory, without its gradient."""
    tensor = tensor.detach()
    return tensor if tensor.device.type == "cpu" else tensor.cpu()


def bits(tensor: torch.Tensor) -> bytes:
    """Return the bits of a tensor's elements in their order."""
    found = on_host(tensor)
    found = found.resolve_conj().resolve_neg() if found.layout == torch.strided else found
    return formats.memory(found).tobytes()


def tensors(value: Any) -> list[torch.Tensor]:
    """Return the tensors of a result in order; numbers as tensors of no dimensions."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [each for part in value for each in tensors(part)]
    if isinstance(value, dict):
        return [each for part in value.values() for each in tensors(part)]
    return []


def check(
    actual: Any,
    expected: Any,
    bounds: Callable[[torch.dtype], Bound],
    disturbed: Callable[[], Sequence[Any]],
    where: str,
) -> None:
    """Raise WrongValueError if results differ.

    `disturbed` returns the reference's results for slightly different inputs.
    """
    found, wanted = tensors(actual), tensors(expected)
    if len(found) != len(wanted):
        raise WrongValueError(f"{where} returns {len(found)} tensors, expected {len(wanted)}")
    if not wanted:
        same = actual == expected or (actual != actual and expected != expected)
        if not same and isinstance(actual, float | complex):
            same = abs(actual - expected) <= 1e-6 * abs(expected)
        if not same:
            raise WrongValueError(f"{where} returns {actual!r}, expected {expected!r}")
    results: list[list[Any]] = []

    def slack(place: int) -> Array | float:
        if not results:
            results.extend(tensors(each) for each in disturbed())
        base = wanted[place].array
        with np.errstate(all="ignore"):
            changes = [np.abs(each[place].array - base) for each in results if each[place].array.shape == base.shape]
            changes = [np.where(np.isfinite(each), each, 0) for each in changes]
        if not changes:
            return 0.0
        change = np.maximum.reduce(changes)
        return change + (change.max(initial=0.0) if bounds(wanted[place].dtype).scaled else 0.0)

    for place, (one, two) in enumerate(zip(found, wanted, strict=True)):
        check_tensor(
            one,
            two,
            bounds(two.dtype),
            lambda place=place: slack(place),
            f"{where}[{place}]" if len(wanted) > 1 else where,
        )
