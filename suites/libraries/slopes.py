"""Gradients, compared with derivatives that NumPy computes at an imaginary step (Squire and Trapp, 1998).

A step of 1e-30 i has no cancellation, so the slope is exact except for rounding. The function must be analytic, and its
comparisons must use real parts. A gradient is compared along a direction of random numbers, so that a wrong entry is
visible.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from .oracle import Array, numbers, unit

_STEP = 1e-30


def assert_slopes(
    value: Callable[[Mapping[str, Array]], complex],
    arrays: Mapping[str, Array],
    gradients: Mapping[str, torch.Tensor | None],
    rng: np.random.Generator,
    roundings: float,
) -> None:
    """Check the gradients of `value` by each of its arrays.

    `roundings`: the allowed error of a gradient in roundings of its type, relative to the sum of the magnitudes of its
    entries times those of the direction.
    """
    for name, gradient in gradients.items():
        assert gradient is not None, f"no gradient of {name}"
        found = numbers(gradient)
        assert found.shape == arrays[name].shape, f"the gradient of {name} has shape {found.shape}"
        direction = rng.uniform(0.5, 1.5, found.shape) * rng.choice([-1.0, 1.0], found.shape)
        moved = {**arrays, name: arrays[name] + 1j * _STEP * direction}
        wanted = complex(value(moved)).imag / _STEP
        slope = float((found * direction).sum())
        allowed = roundings * unit(gradient.dtype) * float(np.abs(found * direction).sum() + 1)
        assert abs(slope - wanted) <= allowed, (
            f"the gradient of {name} along a direction is {slope!r}, expected {wanted!r} within {allowed:.3g}"
        )
