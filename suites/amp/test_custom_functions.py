"""`custom_fwd` and `custom_bwd`: autograd functions whose forward and backward run in the same autocast state."""

from __future__ import annotations

import warnings
from typing import Any

import numpy
import pytest
import torch

from .lower import LOWER, other

pytestmark = pytest.mark.requires(autocast=True)


def state(device: torch.device) -> tuple[bool, torch.dtype]:
    """Return whether autocast is enabled, and its dtype."""
    return torch.is_autocast_enabled(device.type), torch.get_autocast_dtype(device.type)


def matrices(device: torch.device, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = (torch.randn(4, 4, device=device, dtype=dtype, requires_grad=True) for _ in range(2))
    return first, second


@pytest.mark.covers("test_cuda::TestCuda::test_autocast_custom_enabled")
@LOWER
def test_custom_bwd_runs_in_the_autocast_state_of_custom_fwd(device: torch.device, dtype: torch.dtype) -> None:
    """With `custom_fwd` and `custom_bwd`, the backward runs in the autocast state of its forward.

    This holds when `backward` is called outside, or in a region of another dtype, and for a forward outside with a
    `backward` call in a region.
    """
    seen: list[tuple[str, bool, torch.dtype, torch.dtype]] = []

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device.type)
        def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            assert a.dtype == b.dtype == torch.float32
            ctx.save_for_backward(a, b)
            result = a.mm(b)
            seen.append(("forward", *state(device), result.dtype))
            return result

        @staticmethod
        @torch.amp.custom_bwd(device_type=device.type)
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            a, b = ctx.saved_tensors
            result = gradient.mm(b.t())
            seen.append(("backward", *state(device), result.dtype))
            return result, a.t().mm(gradient)

    a, b = matrices(device)
    with torch.autocast(device.type, dtype=dtype):
        first, second, third = (Product.apply(a, b) for _ in range(3))
    first.float().sum().backward()
    with torch.autocast(device.type, dtype=other(dtype)):
        second.float().sum().backward()
    with torch.autocast(device.type, dtype=other(dtype), enabled=False):
        third.float().sum().backward()
    on = [("forward", True, dtype, dtype)] * 3 + [("backward", True, dtype, dtype)] * 3
    assert seen == on
    assert a.grad is not None
    assert a.grad.dtype == torch.float32

    seen.clear()
    outside = Product.apply(a, b)
    with torch.autocast(device.type, dtype=dtype):
        outside.sum().backward()
    assert [(name, on, result) for name, on, _, result in seen] == [
        ("forward", False, torch.float32),
        ("backward", False, torch.float32),
    ]


@pytest.mark.covers("test_cuda::TestCuda::test_autocast_custom_cast_inputs")
@LOWER
def test_custom_fwd_cast_inputs_converts_tensors_in_containers(device: torch.device, dtype: torch.dtype) -> None:
    """With `cast_inputs`, a forward in a region gets converted floating-point tensors, also in containers.

    Forward and backward then run with autocast off. Outside a region, inputs are unchanged.
    """
    seen: list[tuple[str, bool, list[torch.dtype]]] = []

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device.type, cast_inputs=torch.float32)
        def forward(ctx: Any, a: torch.Tensor, held: tuple[int, dict[int, list[torch.Tensor]]]) -> torch.Tensor:
            b = held[1][0][0]
            seen.append(("forward", torch.is_autocast_enabled(device.type), [a.dtype, b.dtype]))
            assert held[0] == 17
            ctx.save_for_backward(a, b)
            return a.mm(b)

        @staticmethod
        @torch.amp.custom_bwd(device_type=device.type)
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
            _, b = ctx.saved_tensors
            result = gradient.mm(b.t())
            seen.append(("backward", torch.is_autocast_enabled(device.type), [gradient.dtype, result.dtype]))
            return result, None

    a, b = matrices(device, dtype)
    held = (17, {0: [b.detach()]})

    with torch.autocast(device.type, dtype=dtype):
        inside = Product.apply(a, held)
        inside.sum().backward()
    outside = Product.apply(a, held)
    outside.sum().backward()

    assert [inside.dtype, outside.dtype] == [torch.float32, dtype]
    wide, narrow = [torch.float32] * 2, [dtype] * 2
    assert seen == [
        ("forward", False, wide),
        ("backward", False, wide),
        ("forward", False, narrow),
        ("backward", False, narrow),
    ]
    assert a.grad is not None
    assert a.grad.dtype == dtype


@LOWER
@pytest.mark.types("float64")
def test_custom_fwd_cast_inputs_does_not_convert_other_inputs(device: torch.device, dtype: torch.dtype) -> None:
    """`cast_inputs` does not convert integer or float64 tensors, tensors of other device types, or non-tensors."""
    whole = torch.ones(2, dtype=torch.int64, device=device)
    double = torch.ones(2, dtype=torch.float64, device=device)
    elsewhere = torch.ones(2, device="meta")
    array = numpy.ones(2, dtype=numpy.float32)
    seen: list[Any] = []

    class Taking(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device.type, cast_inputs=torch.float16)
        def forward(ctx: Any, x: torch.Tensor, *others: Any) -> torch.Tensor:  # noqa: ARG004
            seen.extend([x.dtype, *others])
            return x.clone()

    with torch.autocast(device.type, dtype=dtype):
        Taking.apply(torch.ones(2, device=device), whole, double, elsewhere, array, "text", b"bytes", 1.5)

    assert seen[0] == torch.float16
    assert all(found is given for found, given in zip(seen[1:5], (whole, double, elsewhere, array), strict=True))
    assert seen[5:] == ["text", b"bytes", 1.5]


def test_custom_fwd_and_custom_bwd_want_device_type_as_text() -> None:
    """`custom_fwd` and `custom_bwd` raise ValueError if the device type is not a string."""
    for decorate in (torch.amp.custom_fwd, torch.amp.custom_bwd):
        with pytest.raises(ValueError, match="str"):
            decorate(device_type=torch.device("cpu"))  # type: ignore[call-overload]


@pytest.mark.covers("test_cuda::TestCuda::test_autocast_custom_deprecated_warning")
@pytest.mark.filterwarnings("ignore:CUDA is not available", "ignore:User provided device_type of 'cuda'")
def test_custom_fwd_and_custom_bwd_old_names_warn_and_work() -> None:
    """The deprecated `torch.cuda.amp` names warn with a FutureWarning that names the replacement, when they decorate.

    They behave like the new names: `cast_inputs` disables autocast in forward and backward.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")

        class Sum(torch.autograd.Function):
            @staticmethod
            @torch.cuda.amp.custom_fwd(cast_inputs=torch.float32)
            def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
                assert not torch.is_autocast_enabled("cuda")
                return x + y

            @staticmethod
            @torch.cuda.amp.custom_bwd
            def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: ARG004
                assert not torch.is_autocast_enabled("cuda")
                return gradient, gradient * 2

    assert [warning.category for warning in caught] == [FutureWarning] * 2
    for warning, name in zip(caught, ("custom_fwd", "custom_bwd"), strict=True):
        assert f"torch.cuda.amp.{name}" in str(warning.message)
        assert f"torch.amp.{name}" in str(warning.message)

    x, y = (torch.ones(3, requires_grad=True) for _ in range(2))
    with torch.autocast("cuda"):
        Sum.apply(x, y).sum().backward()
    assert x.grad is not None
    assert y.grad is not None
    assert [x.grad.tolist(), y.grad.tolist()] == [[1.0] * 3, [2.0] * 3]
