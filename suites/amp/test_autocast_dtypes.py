"""Autocast on the device: which type operations run in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from .lower import LOWER

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
    """Contract: under autocast a product of float32 matrices is of the autocast type, and is that of the matrices cast
    to it; outside it is float32."""
    a, b = (torch.randn(8, 8, device=device) for _ in range(2))

    with torch.autocast(device.type, dtype=dtype):
        inside = product(a, b)
    outside = product(a, b)

    assert inside.dtype == dtype
    assert outside.dtype == torch.float32
    assert torch.equal(inside, product(a.to(dtype), b.to(dtype)))


@LOWER
def test_autocast_runs_mse_loss_in_float32(device: torch.device, dtype: torch.dtype) -> None:
    """Contract: a loss of lower-precision inputs is computed in float32 under autocast: it is that of the inputs cast
    to it, to the last bit."""
    a, b = (torch.randn(8, 8, device=device, dtype=dtype) for _ in range(2))

    with torch.autocast(device.type, dtype=dtype):
        loss = F.mse_loss(a, b)

    assert loss.dtype == torch.float32
    assert torch.equal(loss, F.mse_loss(a.float(), b.float()))


@LOWER
def test_autocast_enabled_false_switches_off_inside_a_region(device: torch.device, dtype: torch.dtype) -> None:
    """Contract: a nested block with `enabled=False` computes in the inputs' type; the outer one goes on after it."""
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
    """Contract: gradients of float32 parameters used under autocast are float32, and near those without it: within a
    twentieth of the largest, some ten roundings to the eight bits of bfloat16."""
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
