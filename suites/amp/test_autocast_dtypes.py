"""Autocast on the device: the dtype in which operations run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from .lower import LOWER

pytestmark = pytest.mark.requires(autocast=True)

PRODUCTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "matmul": torch.matmul,
    "mm": torch.mm,
    "operator": lambda a, b: a @ b,
    "addmm": lambda a, b: torch.addmm(a, a, b),
    "linear": F.linear,
    "bmm": lambda a, b: torch.bmm(a[None], b[None]),
}


@LOWER
@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS.keys())
def test_autocast_runs_matrix_products_in_the_lower_type(
    device: torch.device, dtype: torch.dtype, product: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
) -> None:
    """Under autocast, a product of float32 matrices has the autocast dtype and equals that of converted matrices."""
    a, b = (torch.randn(8, 8, device=device) for _ in range(2))

    with torch.autocast(device.type, dtype=dtype):
        inside = product(a, b)
    outside = product(a, b)

    assert inside.dtype == dtype
    assert outside.dtype == torch.float32
    assert torch.equal(inside, product(a.to(dtype), b.to(dtype)))


@LOWER
def test_autocast_runs_mse_loss_in_float32(device: torch.device, dtype: torch.dtype) -> None:
    """Under autocast, the MSE loss of lower-precision inputs equals that of inputs converted to float32."""
    a, b = (torch.randn(8, 8, device=device, dtype=dtype) for _ in range(2))

    with torch.autocast(device.type, dtype=dtype):
        loss = F.mse_loss(a, b)

    assert loss.dtype == torch.float32
    assert torch.equal(loss, F.mse_loss(a.float(), b.float()))


@LOWER
def test_autocast_enabled_false_switches_off_inside_a_region(device: torch.device, dtype: torch.dtype) -> None:
    """A nested block with `enabled=False` uses the inputs' dtype, and the outer region continues after it."""
    a, b = (torch.randn(8, 8, device=device) for _ in range(2))

    with torch.autocast(device.type, dtype=dtype):
        before = a @ b
        with torch.autocast(device.type, enabled=False):
            inner = a @ b
        after = a @ b

    assert [before.dtype, inner.dtype, after.dtype] == [dtype, torch.float32, dtype]
    assert torch.equal(inner, a @ b)
    assert torch.equal(before, after)
    assert not torch.is_autocast_enabled(device.type)


@LOWER
def test_autocast_backward_gives_gradients_of_the_parameters_type(device: torch.device, dtype: torch.dtype) -> None:
    """Gradients of float32 parameters under autocast are float32, and close to those without autocast.

    The tolerance is a twentieth of the largest gradient, about ten roundings to bfloat16's eight bits.
    """
    layer = torch.nn.Linear(8, 4, device=device)
    x = torch.randn(3, 8, device=device)

    with torch.autocast(device.type, dtype=dtype):
        out = layer(x)
        loss = out.float().square().mean()
    loss.backward()
    plain = torch.autograd.grad(layer(x).square().mean(), list(layer.parameters()))

    assert out.dtype == dtype
    for parameter, wanted in zip(layer.parameters(), plain, strict=True):
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32
        assert (parameter.grad - wanted).abs().max() <= wanted.abs().max() / 20
