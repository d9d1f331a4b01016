"""Derivatives of each operator: backward, forward, and second, in the types of 32 and 64 bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from . import case, gradients, known, samples
from .catalogue import COSTLY, by_operator, entries

pytestmark = pytest.mark.filterwarnings("ignore")  # deprecated and experimental features warn


#: Operators without a group whose gradients are known to be correct. `test_deviations.py` has their gradients, if any.
_LEFT_OUT = frozenset(
    entry.name
    for entry in entries()
    if {"float", "complex"}.intersection(entry.groups) <= {*known.left_out(entry.name)}
)


#: The requirement of a case with values that deviate with the kernels of the CPU.
_DEVIATES = pytest.mark.requires(silicon=True)


def _groups(name: str, device: torch.device) -> list[str]:
    from . import _torch_private, types

    declared = types.supported(_torch_private.operator(name), device)
    return [
        each
        for each in ("float", "complex")
        if each not in known.left_out(name) and any(getattr(torch, one) in declared for one in types.GROUPS[each])
    ]


def _check(name: str, device: torch.device, way: Callable[..., Any], count: int, *, apart: bool = False) -> None:
    """Compare the derivatives of `count` samples of each group.

    Only second derivatives may be missing for all of them.
    """
    tried = 0
    for group in _groups(name, device):
        for info, sample, dtype in case.spread(name, group, device, count, gradient=True, apart=apart):
            if dtype == torch.complex32:
                continue
            found = gradients.compare(name, info, way, sample, device)
            tried += 1 if way is gradients.second else found
    if not tried:
        pytest.skip(f"no sample of {name} has a derivative")


@by_operator("gradients", extended=COSTLY, without=_LEFT_OUT)
def test_gradients(name: str, device: torch.device) -> None:
    """`torch.autograd.grad` gives the derivative: its formula, computed by NumPy (torch, autograd mechanics)."""
    _check(name, device, gradients.first, 3, apart=True)


@by_operator("gradients", extended=True, without=_LEFT_OUT)
def test_gradients_of_more_samples(name: str, device: torch.device) -> None:
    """`torch.autograd.grad` gives the derivative for 12 samples of each group: other shapes, options and broadcasting.

    The formulas are those of `test_gradients`, computed by NumPy.
    """
    _check(name, device, gradients.first, 3 if name in COSTLY else 12, apart=True)


@by_operator("second", extended=True, without=_LEFT_OUT)
def test_second_gradients(name: str, device: torch.device) -> None:
    """Gradients of gradients are the derivatives of the derivatives: the formulas, computed by NumPy.

    The gradient of a linear operator does not depend on the inputs, so it has no second one, as by the formulas.
    """
    _check(name, device, gradients.second, 2)


@by_operator("forward", extended=True, without={*_LEFT_OUT, *known.NO_FORWARD})
def test_forward_gradients(name: str, device: torch.device) -> None:
    """Forward-mode differentiation gives the derivative along a direction: its formula, computed by NumPy."""
    _check(name, device, gradients.forward, 2)


@by_operator(
    "gradients",
    extended=True,
    without={*known.NO_SLOPES, *(entry.name for entry in entries() if "float" not in entry.groups)},
    needs={name: _DEVIATES for name, entry in known.VALUES.items() if "float64" in entry.types},
)
def test_gradients_are_slopes(name: str, device: torch.device) -> None:
    """The gradient along a direction is the slope of the values there, found by differences in 64 bits."""
    info, kinds = case.types_to_try(name, "float", device)
    if torch.float64 not in kinds:
        pytest.skip(f"{name} has no float64 on {device.type}")
    for sample in samples.samples(info, torch.float64, 2, gradient=True):
        gradients.by_differences(name, info, sample)
