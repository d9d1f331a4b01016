"""The allowed number of roundings of a result, by type and operator.

A rounding is half of the distance between neighbouring values, relative to the value. The bounds of a type hold for
every operator that is not in `MORE`, which states a reason for each. All are far below 1% of the result, except for
bfloat16 and the 8-bit types, whose one rounding is 0.4% and more.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from .comparison import Bound
from .references import formats

#: The allowed roundings of an element, and of the largest element of the result, by type.
_BOUNDS = {
    torch.float64: Bound(256, 256), torch.float32: Bound(64, 64), torch.complex128: Bound(256, 256),
    torch.complex64: Bound(64, 64), torch.float16: Bound(4, 4), torch.bfloat16: Bound(2, 1),
    torch.complex32: Bound(8, 8),
}  # fmt: skip
_OTHERS = Bound(1.01, 0)

_INSIDE = "rounds intermediate results to the type of its inputs"
_SERIES = "an approximation whose error grows with the argument or near its roots"
_COORDINATES = "computes positions in the type of its inputs, whose rounding moves the sampled place"
#: By operator: the factor for 32- and 64-bit types, the factor for smaller types, the roundings of the inputs, and the
#: reason.
MORE: dict[str, tuple[float, float, float, str]] = {
    "matrix_exp": (400, 1, 2, "squares a polynomial several times"),
    "special.airy_ai": (16, 1, 2, _SERIES),
    "nn.functional.ctc_loss": (32, 1, 2, "adds logarithms over all steps, whose rounding is of the size of the loss"),
    "sinc": (1, 1, 16, "sin(pi x) / (pi x) rounds pi x before the sine"),
    "nn.functional.grid_sample": (1, 1, 24, _COORDINATES),
    "grid_sampler_2d": (1, 1, 24, _COORDINATES),
    "grid_sampler_3d": (1, 1, 24, _COORDINATES),
}
#: Absolute errors by type, for results that are exactly 0, or integers that are computed with rounded weights.
LEAST: dict[str, dict[torch.dtype, float]] = {
    # For one element, (x - mean) is a rounding of x, divided by the root of eps.
    "native_layer_norm": {torch.bfloat16: 2e-3, torch.float16: 2e-3},
    # The CPU rounds the sum of the exponentials, which begins at 1, to bfloat16 (pytorch/pytorch#140222).
    "nn.functional.cross_entropy": {torch.bfloat16: 2**-8},
    "sinc": {torch.float32: 1e-7},
    **{f"special.bessel_{each}": {torch.float32: 1e-6} for each in ("j0", "j1", "y0", "y1")},  # near roots
    "nn.functional.interpolate.bilinear": {torch.uint8: 1},
    "nn.functional.interpolate.bicubic": {torch.uint8: 1},
    "nn.functional.upsample_bilinear": {torch.uint8: 1},
    "_upsample_bilinear2d_aa": {torch.uint8: 1},
}


def bound(name: str, dtype: torch.dtype) -> Bound:
    """Return the roundings by which an operator's results of a type may be off."""
    found = _BOUNDS.get(dtype, _OTHERS)
    if name in MORE:
        large, small, _, _ = MORE[name]
        factor = large if dtype in (torch.float32, torch.float64, torch.complex64, torch.complex128) else small
        found = replace(found, roundings=found.roundings * factor, scaled=found.scaled * factor)
    least = LEAST.get(name, {}).get(dtype, 0.0)
    if least:
        found = replace(found, least=least)
    return found


def disturbance(name: str) -> float:
    """Return the number of roundings by which the inputs are moved, to find out how much the result depends on them."""
    return MORE[name][2] if name in MORE else 2.0


#: For one element, the derivative divides rounding by the root of eps; weights of `cov` cancel each other.
_SMALL_EPS = frozenset(
    {"native_layer_norm", "nn.functional.layer_norm", "native_batch_norm", "_native_batch_norm_legit", "cov"}
)


def gradient_bound(name: str, dtype: torch.dtype) -> Bound:
    """Return the roundings by which a derivative may be off, which consists of more operations."""
    found = bound(name, dtype)
    # Terms as large as the inputs and weights cancel each other in derivatives that are small.
    least = max(found.least, 64 * formats.unit(dtype)) * (300 if name in _SMALL_EPS else 1)
    return replace(found, roundings=found.roundings * 4, scaled=max(found.scaled, 1) * 4, least=least)
