"""Operators for the cases about skips and partitions, defined once per process as an imported library would.

Operators with the tag `cudagraph_unsafe` declare that they cannot be captured, although they could be.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from suites.streams.busy import sleep_on

from . import _torch_private as private

LIBRARY = "conformance_trees"

UNSAFE = (torch.Tag.cudagraph_unsafe,)


@custom_op(f"{LIBRARY}::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x * 2


@twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@custom_op(f"{LIBRARY}::unsafe_twice", mutates_args=(), tags=UNSAFE)
def unsafe_twice(x: Tensor) -> Tensor:
    """Return `2 * x`. The read-back to the host fails if the operator is captured."""
    assert x.sum().item() is not None
    return x * 2


@unsafe_twice.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _of_twice(_: Any, gradient: Tensor) -> Tensor:
    return gradient * 2


twice.register_autograd(_of_twice)


@custom_op(f"{LIBRARY}::unsafe_add_", mutates_args=("x",), tags=UNSAFE)
def unsafe_add_(x: Tensor, y: Tensor) -> None:
    x.add_(y)


@custom_op(f"{LIBRARY}::positive", mutates_args=())
def positive(x: Tensor) -> Tensor:
    """Return the positive elements. Their number depends on the data."""
    return x[x > 0]


@positive.register_fake
def _(x: Tensor) -> Tensor:
    return x.new_empty(torch.library.get_ctx().new_dynamic_size())


@custom_op(f"{LIBRARY}::beside", mutates_args=())
def beside(x: Tensor) -> Tensor:
    """Return `x + 2`, computed and allocated on a side stream if the device has streams."""
    if x.device.type != "cuda":
        return x + 2
    main, side = torch.cuda.current_stream(x.device), torch.cuda.Stream(x.device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        result = torch.full_like(x, 2) + x
    main.wait_stream(side)
    result.record_stream(main)
    return result


@beside.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@custom_op(f"{LIBRARY}::slow", mutates_args=())
def slow(x: Tensor) -> Tensor:
    """Return `x + 2` with a delay: the device sleeps first. For CUDA."""
    sleep_on(torch.cuda.current_stream(x.device), 20)
    return x + 2


@slow.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


_OpaqueBase, _register = private.opaque_types()


class Scale(_OpaqueBase):  # type: ignore[misc, valid-type]
    """A factor in an opaque object, which the compiler compares by its factor only."""

    def __init__(self, factor: float) -> None:
        self.factor = factor


if _register is not None:
    _register(Scale, typ="reference", guard_fn=lambda scale: [scale.factor])

    @custom_op(f"{LIBRARY}::scaled", mutates_args=())
    def scaled(x: Tensor, scale: Scale) -> Tensor:
        return x * scale.factor

    @scaled.register_fake
    def _(x: Tensor, _: Scale) -> Tensor:
        return torch.empty_like(x)


class SafeForward(torch.autograd.Function):
    """Doubles `x`. The backward pass cannot be captured."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> Tensor:
        result: Tensor = unsafe_twice(gradients[0])
        return result
