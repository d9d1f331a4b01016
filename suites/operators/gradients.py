"""Derivatives on the device, of the reference, and by differences of the reference's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad

from . import comparison, oracles, samples, tolerances, types
from .comparison import WrongValueError
from .nested import mapped
from .references import formats, running
from .references.interpreter import Host


def _weights(tensors: list[torch.Tensor]) -> list[np.ndarray[Any, Any]]:
    """Return numbers between 0.5 and 1.5 for each tensor, exact in every float type."""
    found = []
    for place, each in enumerate(tensors):
        count = np.arange(each.numel(), dtype=np.float64)
        values = 1 + ((count * 5 + place * 3) % 9 - 4) / 8
        values = values + 1j * ((count * 7 + place) % 5 - 2) / 4 if each.dtype.is_complex else values
        found.append(values.reshape(tuple(each.shape)))
    return found


def _like(values: np.ndarray[Any, Any], tensor: torch.Tensor) -> torch.Tensor:
    if isinstance(tensor, Host):
        return Host(values.astype(formats.wide(tensor.dtype)), tensor.dtype)
    kind = np.complex128 if tensor.dtype.is_complex else np.float64
    return torch.from_numpy(values.astype(kind)).to(tensor.dtype).to(tensor.device)


def weights_of(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the weights as tensors of the same types, on the same devices."""
    return [_like(each, tensor) for each, tensor in zip(_weights(tensors), tensors, strict=True)]


Function = Callable[[Any], Any]


def results(function: Function, sample: Any, given: Any) -> list[torch.Tensor]:
    """Return the results of an operator that have a gradient."""
    found = sample.output_process_fn_grad(function(given))
    return [each for each in comparison.tensors(found) if each.requires_grad]


def first(function: Function, sample: Any) -> Callable[[Any], list[torch.Tensor]]:
    """Return a function that computes the gradients by all inputs that require one, for fixed result weights."""

    def gradients(given: Any) -> list[torch.Tensor]:
        outs, ins = results(function, sample, given), samples.leaves(given)
        if not outs or not ins:
            return []
        weights = weights_of(outs)
        return [each for each in torch.autograd.grad(outs, ins, weights, allow_unused=True) if each is not None]

    return gradients


def second(function: Function, sample: Any) -> Callable[[Any], list[torch.Tensor]]:
    """Return a function that computes the gradients of weighted gradients."""

    def gradients(given: Any) -> list[torch.Tensor]:
        outs, ins = results(function, sample, given), samples.leaves(given)
        if not outs or not ins:
            return []
        weights = weights_of(outs)
        once = torch.autograd.grad(outs, ins, weights, create_graph=True, allow_unused=True)
        once = [each for each in once if each is not None and each.requires_grad]
        if not once:
            return []
        again = weights_of(once)
        return [each for each in torch.autograd.grad(once, ins, again, allow_unused=True) if each is not None]

    return gradients


def forward(function: Function, sample: Any) -> Callable[[Any], list[torch.Tensor]]:
    """Return a function that computes the derivative of the results along fixed directions of the inputs."""

    def derivatives(given: Any) -> list[torch.Tensor]:
        ins = samples.leaves(given)
        directions = {id(one): each for one, each in zip(ins, weights_of(ins), strict=True)}
        with forward_ad.dual_level():

            def dual(each: Any) -> Any:
                if id(each) in directions:
                    return forward_ad.make_dual(each, directions[id(each)])
                return each

            found = comparison.tensors(sample.output_process_fn_grad(function(mapped(dual, given))))
            tangents = [forward_ad.unpack_dual(each).tangent for each in found]
            return [each for each in tangents if each is not None]

    return derivatives


def compare(name: str, info: Any, way: Callable[..., Any], sample: Any, device: torch.device) -> int:
    """Raise WrongValueError unless the device's derivatives equal the reference's. Return the number of derivatives."""
    types.skip_if_lacking(name)
    given = samples.arguments(sample)
    call = oracles.call(info)
    reference = way(oracles.OWN.get(name, call), sample)
    found = way(call, sample)(samples.move(given, device))
    expected = running.run(reference, running.on_reference(given))

    def disturbed() -> Any:
        return running.all_disturbed(reference, running.on_reference(given), 2 * tolerances.disturbance(name))

    comparison.check(
        found, expected, lambda dtype: tolerances.gradient_bound(name, dtype), disturbed, f"{name}: derivative"
    )
    return len(expected)


def _moved(given: Any, direction: dict[int, np.ndarray[Any, Any]], step: float) -> Any:
    place = iter(range(1 << 30))

    def move(each: Any) -> Any:
        if not isinstance(each, Host) or not each.requires_grad:
            return each
        return Host(each.array + step * direction[next(place)], each.dtype).requires_grad_(True)

    return mapped(move, given)


def by_differences(name: str, info: Any, sample: Any) -> None:
    """Raise WrongValueError unless the reference's gradient is the slope of its values along a direction.

    Infinite values, such as those of an operator whose elements are all masked, have no slope.
    """
    given = running.on_reference(samples.arguments(sample))
    function = oracles.OWN.get(name, oracles.call(info))
    ins = samples.leaves(given)
    direction = dict(enumerate(_weights(ins)))
    gradient = running.run(first(function, sample), given)
    if not gradient or len(gradient) != len(ins):
        return

    def value(step: float) -> float:
        outs = running.run(lambda each: results(function, sample, each), _moved(given, direction, step))
        return float(sum((np.conj(w) * out.array).real.sum() for w, out in zip(_weights(outs), outs, strict=True)))

    if not np.isfinite(value(0.0)):
        return
    slope = float(sum((np.conj(each.array) * direction[place]).real.sum() for place, each in enumerate(gradient)))
    closest, size = np.inf, abs(slope)
    for step in (1e-5, 1e-4, 1e-6):
        measured = (8 * (value(step) - value(-step)) - (value(2 * step) - value(-2 * step))) / (12 * step)
        closest = min(closest, abs(measured - slope))
        size = max(size, abs(measured))
        if closest <= 2e-5 * max(size, 1e-3):
            return
    raise WrongValueError(f"{name}: the gradient along a direction is {slope!r}, differences are off by {closest:.3g}")
