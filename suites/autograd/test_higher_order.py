"""Higher-order gradients."""

from __future__ import annotations

import pytest
import torch

from .engines import Engine
from .functions import square

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"


def double(device: torch.device, *values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, device=device, requires_grad=True)


@pytest.mark.covers(ROW)
def test_create_graph_derivatives_of_a_power(engine: Engine, device: torch.device) -> None:
    """With `create_graph`, gradients have a graph.

    Differentiating a fourth power repeatedly gives four derivatives.
    """
    x = double(device, 1.0, 2.0, -3.0)
    derivative = x**4
    values = []

    for _ in range(4):
        (derivative,) = torch.autograd.grad(derivative.sum(), x, create_graph=True)
        values.append(derivative.detach())
    assert derivative.requires_grad

    expected = x.detach()
    wanted = [4 * expected**3, 12 * expected**2, 24 * expected, torch.full_like(expected, 24)]
    torch.testing.assert_close(values, wanted)


def test_create_graph_is_needed_for_gradients_with_history(engine: Engine, device: torch.device) -> None:
    """Without `create_graph`, gradients are constants, and differentiating them raises."""
    x = double(device, 1.0, 2.0)
    (gradient,) = torch.autograd.grad((x**3).sum(), x)

    assert not gradient.requires_grad
    with pytest.raises(RuntimeError, match="does not require grad"):
        torch.autograd.grad(gradient.sum(), x)


@pytest.mark.covers(ROW)
def test_create_graph_hessian_is_symmetric_and_right(engine: Engine, device: torch.device) -> None:
    """Second derivatives, row by row, form the symmetric Hessian derived by hand for x²y + exp(xy)."""
    p = double(device, 0.5, 2.0)
    value = p[0] ** 2 * p[1] + (p[0] * p[1]).exp()

    (gradient,) = torch.autograd.grad(value, p, create_graph=True)
    hessian = torch.stack([torch.autograd.grad(one, p, retain_graph=True)[0] for one in gradient])

    x, y = p.tolist()
    e = torch.tensor(x * y, dtype=torch.float64).exp().item()
    by_hand = [[2 * y + y * y * e, 2 * x + (1 + x * y) * e], [2 * x + (1 + x * y) * e, x * x * e]]
    torch.testing.assert_close(hessian, torch.tensor(by_hand, dtype=torch.float64, device=device))
    torch.testing.assert_close(hessian, hessian.t())


@pytest.mark.covers(ROW)
def test_create_graph_penalty_on_the_gradient(engine: Engine, device: torch.device) -> None:
    """A gradient penalty can be trained: parameters get the gradient of loss plus penalty."""
    w = double(device, 2.0, 3.0)
    x = double(device, 1.0, -1.0)

    loss = (w * x).pow(2).sum()
    (of_x,) = torch.autograd.grad(loss, x, create_graph=True)
    (loss + of_x.pow(2).sum()).backward()

    # loss: 2 w x²; penalty: (2 w² x)², so 16 w³ x²
    expected = 2 * w.detach() * x.detach() ** 2 + 16 * w.detach() ** 3 * x.detach() ** 2
    assert w.grad is not None
    torch.testing.assert_close(w.grad, expected)


@pytest.mark.covers(ROW)
@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True:UserWarning")  # once per process
def test_create_graph_product_with_the_hessian(engine: Engine, device: torch.device) -> None:
    """Gradients accumulated with `backward(create_graph=True)` have a graph that a second pass can traverse."""
    x = double(device, 1.0, 2.0)

    (x**3).sum().backward(create_graph=True)
    gradient = x.grad
    assert gradient is not None
    assert gradient.requires_grad
    x.grad = None
    (gradient * torch.tensor([10.0, 1.0], dtype=torch.float64, device=device)).sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [60.0, 12.0]
    x.grad = None


@pytest.mark.covers(ROW)
def test_create_graph_through_a_custom_function(engine: Engine, device: torch.device) -> None:
    """The backward of a custom function is differentiable if it uses differentiable operations on its saved tensors."""
    x = double(device, 1.0, 2.0)

    (first,) = torch.autograd.grad((square(x) * x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)

    assert first.tolist() == [3.0, 12.0]
    assert second.tolist() == [6.0, 12.0]


def test_create_graph_includes_hooks(engine: Engine, device: torch.device) -> None:
    """The second derivative includes a hook's change of the gradient."""
    x = double(device, 2.0)
    x.register_hook(lambda gradient: gradient * gradient)

    (first,) = torch.autograd.grad((x**2).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)

    # The hook turns 2x into (2x)², and squares 8x in the second pass.
    assert first.item() == 16.0
    assert second.item() == 256.0


def test_create_graph_through_once_differentiable_is_an_error(engine: Engine, device: torch.device) -> None:
    """Under `create_graph`, a `once_differentiable` backward gives first derivatives, and second derivatives raise."""

    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: object, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0] * 2

    x = double(device, 1.0)
    result = Once.apply(x)  # type: ignore[no-untyped-call]

    (first,) = torch.autograd.grad((result * x).sum(), x, create_graph=True)
    assert first.item() == 4.0
    with pytest.raises(RuntimeError, match="marked with @once_differentiable"):
        first.sum().backward()
    engine.still_works()
