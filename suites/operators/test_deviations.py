"""Differences that `known.py` lists: each case is expected to fail until torch is fixed."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from suites.host_kernels import has_host_kernels

from . import _torch_private, comparison, gradients, known, oracles, samples, types

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # deprecated and experimental features warn
    pytest.mark.extended,
]


def _values() -> list[Any]:
    found = [(name, dtype) for name, entry in known.VALUES.items() for dtype in entry.types]
    return [pytest.param(*each, id="-".join(each), marks=pytest.mark.operator(each[0])) for each in found]


@pytest.mark.requires(not_={"silicon": True})  # there `test_values` covers these types
@pytest.mark.parametrize(("name", "dtype"), _values())
def test_values_known_to_deviate(name: str, dtype: str, device: torch.device, request: pytest.FixtureRequest) -> None:
    """An operator's results have the values of its definition, in the types that `test_values` leaves out."""
    entry = known.VALUES[name]
    if not has_host_kernels(device):
        pytest.skip(f"test_values covers {dtype} of {name} on {device.type}")
    known.waive(request, entry.reason, device)
    info = _torch_private.operator(name)
    for sample in samples.samples(info, getattr(torch, dtype), 64):
        oracles.verify(name, info, sample, device)


@pytest.mark.operator("arange")
def test_arange_of_int64_has_each_number_below_the_end(device: torch.device, request: pytest.FixtureRequest) -> None:
    """`arange` has ceil((end - start) / step) elements, also if the bounds are not whole numbers.

    The other integer types conform (`test_values`).
    """
    known.waive(request, f"cuts the bounds off before it divides ({known.ISSUE}149097)", device, everywhere=True)
    for start, end, step in ((0, 2.5, 1), (0.0, -8.000001, -4.0), (-1.5, 1.5, 1), (0, 0.5, 1)):
        found = torch.arange(start, end, step, dtype=torch.int64, device=device)
        if len(found) != (count := math.ceil((end - start) / step)):
            raise comparison.WrongValueError(f"arange({start}, {end}, {step}) has {len(found)} elements, not {count}")


@pytest.mark.parametrize("name", [pytest.param(each, marks=pytest.mark.operator(each)) for each in known.AT_INFINITY])
def test_bessel_functions_of_infinity_are_infinite(
    name: str, device: torch.device, request: pytest.FixtureRequest
) -> None:
    """Modified Bessel functions of the first kind are infinite at infinity, with the sign of x for odd orders."""
    known.waive(request, known.AT_INFINITY[name], device, everywhere=True)
    info = _torch_private.operator(name)
    for dtype in (torch.float32, torch.float64):
        values = torch.tensor([math.inf, -math.inf, 1.0], dtype=dtype)
        oracles.verify(name, info, SimpleNamespace(input=values, args=(), kwargs={}), device)


@pytest.mark.operator("cumprod")
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=["complex64", "complex128"])
def test_cumprod_begins_with_the_first_element_also_if_it_is_infinite(
    dtype: torch.dtype, device: torch.device, request: pytest.FixtureRequest
) -> None:
    """The first element of `cumprod` is that of its input, even if it is infinite."""
    known.waive(request, "multiplies by one, and 0 times infinity is NaN", device)
    first = complex(math.inf, 1.0)
    found = complex(torch.tensor([first, 2.0], dtype=dtype, device=device).cumprod(0)[0].item())
    if found != first:
        raise comparison.WrongValueError(f"cumprod begins with {found}, expected {first}")


def _gradients() -> list[Any]:
    found = [(name, group) for name, (groups, _) in known.GRADIENTS.items() for group in groups]
    return [pytest.param(*each, id="-".join(each), marks=pytest.mark.operator(each[0])) for each in found]


@pytest.mark.parametrize(("name", "group"), _gradients())
def test_gradients_known_to_deviate(
    name: str, group: str, device: torch.device, request: pytest.FixtureRequest
) -> None:
    """First, second and forward gradients are the derivatives, for the types that `test_gradients` leaves out."""
    known.waive(request, known.GRADIENTS[name][1], device, everywhere=True)
    info = _torch_private.operator(name)
    for dtype in types.types_of(info, group, device):
        if dtype == torch.complex32:
            continue
        for sample in samples.samples(info, dtype, 64, gradient=True):
            for way in _ways(info):
                gradients.compare(name, info, way, sample, device)


@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=pytest.mark.operator(each)) for each in known.GRADIENT_SAMPLES]
)
def test_gradients_of_samples_known_to_deviate(name: str, device: torch.device, request: pytest.FixtureRequest) -> None:
    """The gradient is also the derivative for the samples that `test_gradients` leaves out."""
    deviates, reason = known.GRADIENT_SAMPLES[name]
    known.waive(request, reason, device)
    info = _torch_private.operator(name)
    for dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128):
        for sample in samples.samples(info, dtype, 64, gradient=True):
            if deviates(sample, dtype):
                gradients.compare(name, info, gradients.first, sample, device)


def _ways(info: Any) -> list[Any]:
    supported = ((gradients.first, True), (gradients.forward, info.supports_forward_ad))
    return [way for way, has in (*supported, (gradients.second, info.supports_gradgrad)) if has]
