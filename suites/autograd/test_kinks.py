"""Points without a derivative: the gradients that torch's documentation or tests specify there."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from .engines import Engine

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"

INF = math.inf

#: The gradient of `clamp` at its bounds was 1 up to torch 2.13, and is the smallest subgradient, 0, since 2.14 (pytorch
#: issue 184572).
AT_A_BOUND = 0.0 if torch.__version__ >= (2, 14) else 1.0

KINKS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], list[float], list[float]]] = {
    "abs": (torch.abs, [-2.0, 0.0, 3.0], [-1.0, 0.0, 1.0]),
    "relu": (torch.relu, [-1.0, 0.0, 2.0], [0.0, 0.0, 1.0]),
    "sqrt": (torch.sqrt, [0.0, 4.0], [INF, 0.25]),
    "norm": (lambda x: x.norm(), [0.0, 0.0], [0.0, 0.0]),
    "clamp": (lambda x: x.clamp(0, 1), [-1.0, 0.0, 0.5, 1.0, 2.0], [0.0, AT_A_BOUND, 1.0, AT_A_BOUND, 0.0]),
    "round": (torch.round, [0.4, 0.5, 2.0], [0.0, 0.0, 0.0]),
    "sign": (torch.sign, [-1.0, 0.0, 1.0], [0.0, 0.0, 0.0]),
    "power_zero": (lambda x: x**0, [0.0, 2.0], [0.0, 0.0]),
    "square": (lambda x: x**2, [0.0, 2.0], [0.0, 4.0]),
    "product_with_a_zero": (lambda x: x.prod(), [2.0, 0.0, 5.0], [0.0, 10.0, 0.0]),
    "product_with_zeros": (lambda x: x.prod(), [2.0, 0.0, 0.0], [0.0, 0.0, 0.0]),
    "hardtanh": (torch.nn.functional.hardtanh, [-1.0, 0.0, 1.0], [0.0, 1.0, 0.0]),
    "leaky_relu": (lambda x: torch.nn.functional.leaky_relu(x, 0.5), [-1.0, 0.0, 1.0], [0.5, 0.5, 1.0]),
}


@pytest.mark.covers(ROW)
@pytest.mark.parametrize("name", KINKS)
def test_gradient_at_a_kink(name: str, engine: Engine, device: torch.device) -> None:
    """Without a derivative, the gradient is the smallest subgradient, the limit if it exists, or as documented.

    For `clamp`, the smallest subgradient applies since torch 2.14.
    """
    function, values, expected = KINKS[name]
    x = torch.tensor(values, device=device, requires_grad=True)

    function(x).sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == expected


TIES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], list[float]]] = {
    "max": (lambda x: x.max(), [0.0, 0.5, 0.5, 0.0]),
    "amax": (lambda x: x.amax(0), [0.0, 0.5, 0.5, 0.0]),
    "amin": (lambda x: (-x).amin(0), [0.0, -0.5, -0.5, 0.0]),
    "maximum_of_both": (lambda x: torch.maximum(x[1], x[2]), [0.0, 0.5, 0.5, 0.0]),
}


@pytest.mark.covers(ROW)
@pytest.mark.parametrize("name", TIES)
def test_max_gradient_is_shared_among_equals(name: str, engine: Engine, device: torch.device) -> None:
    """`max` without an index divides its gradient evenly among equal maxima."""
    function, expected = TIES[name]
    x = torch.tensor([1.0, 3.0, 3.0, 2.0], device=device, requires_grad=True)

    function(x).backward()

    assert x.grad is not None
    assert x.grad.tolist() == expected


@pytest.mark.parametrize("function", ["max", "min", "median", "mode", "cummax", "sort"])
def test_max_with_indices_gradient_goes_to_the_index(function: str, engine: Engine, device: torch.device) -> None:
    """Functions that return indices send the gradient to the indexed elements, also among equal values."""
    x = torch.tensor([3.0, 3.0, 1.0, 1.0, 3.0], device=device, requires_grad=True)
    values, indices = getattr(torch, function)(x, dim=0)
    start = torch.arange(1.0, 1 + values.numel(), device=device).reshape(values.shape)

    values.backward(start)

    expected = torch.zeros(5, device=device).scatter_add(0, indices.reshape(-1), start.reshape(-1))
    assert x.grad is not None
    assert torch.equal(x.grad, expected)


def test_where_does_not_hide_an_infinite_gradient(engine: Engine, device: torch.device) -> None:
    """`where` does not mask an infinite gradient of the branch not taken: zero times infinity is NaN.

    Safe values must be selected before the function, and not after it.
    """
    x = torch.tensor([0.0, 4.0], device=device, requires_grad=True)

    (after,) = torch.autograd.grad(torch.where(x > 0, x.sqrt(), 0.0).sum(), x)
    (before,) = torch.autograd.grad(torch.where(x > 0, torch.where(x > 0, x, 1.0).sqrt(), 0.0).sum(), x)

    assert math.isnan(after[0].item())
    assert after[1].item() == 0.25
    assert before.tolist() == [0.0, 0.25]


def test_nan_stays_in_its_element_in_backward(engine: Engine, device: torch.device) -> None:
    """NaN or infinity in one element does not affect the gradients of the others."""
    x = torch.tensor([1.0, float("nan"), INF, 2.0], device=device, requires_grad=True)

    (x * x).sum().backward()

    assert x.grad is not None
    assert [x.grad[0].item(), x.grad[2].item(), x.grad[3].item()] == [2.0, INF, 4.0]
    assert math.isnan(x.grad[1].item())
