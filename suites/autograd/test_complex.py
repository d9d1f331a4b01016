"""Complex gradients: the conjugate convention, by which the negative gradient is the direction of descent."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch

from .engines import LIST, Engine, Known, waived

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"

POINTS = [1.0 + 2.0j, -0.5 + 0.25j, 3.0 - 1.0j]


def points(device: torch.device) -> torch.Tensor:
    return torch.tensor(POINTS, dtype=torch.complex128, device=device, requires_grad=True)


LOSSES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[complex], complex]]] = {
    "square_of_the_modulus": (lambda z: (z * z.conj()).real, lambda z: 2 * z),
    "modulus": (torch.abs, lambda z: z / abs(z)),
    "real_part": (lambda z: z.real, lambda z: 1 + 0j),
    "imaginary_part": (lambda z: z.imag, lambda z: 1j),
    "real_part_of_a_square": (lambda z: (z * z).real, lambda z: 2 * z.conjugate()),
    "imaginary_part_of_a_square": (lambda z: (z * z).imag, lambda z: 2j * z.conjugate()),
    "as_two_reals": (
        lambda z: (torch.view_as_real(z) * torch.tensor([3.0, 5.0]).to(z.device)).sum(-1),
        lambda z: 3 + 5j,
    ),
}


@pytest.mark.covers(ROW)
@pytest.mark.parametrize("loss", LOSSES)
def test_complex_gradient_of_a_real_result(loss: str, engine: Engine, device: torch.device) -> None:
    """For a real L(z) with z = x + iy, the gradient is dL/dx + i dL/dy, compared with values derived by hand."""
    function, by_hand = LOSSES[loss]
    z = points(device)

    function(z).sum().backward()

    assert z.grad is not None
    expected = torch.tensor([by_hand(value) for value in POINTS], dtype=torch.complex128, device=device)
    torch.testing.assert_close(z.grad, expected, rtol=1e-14, atol=1e-14)


HOLOMORPHIC: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
    "square": (lambda z: z * z, lambda z: 2 * z),
    "exp": (torch.exp, torch.exp),
    "sin": (torch.sin, torch.cos),
    "reciprocal": (torch.reciprocal, lambda z: -1 / (z * z)),
    "conj_twice": (lambda z: z.conj().conj() * 3, lambda z: torch.full_like(z, 3)),
}


@pytest.mark.covers(ROW)
@pytest.mark.parametrize("name", HOLOMORPHIC)
def test_complex_gradient_through_a_holomorphic_function(name: str, engine: Engine, device: torch.device) -> None:
    """A holomorphic function multiplies the gradient by the conjugate of its derivative."""
    function, derivative = HOLOMORPHIC[name]
    z = points(device)
    start = torch.tensor([1.0 + 1.0j, 2.0 - 3.0j, -1.0j], dtype=torch.complex128, device=device)

    function(z).backward(start)

    assert z.grad is not None
    expected = start * derivative(z.detach()).conj()
    torch.testing.assert_close(z.grad, expected, rtol=1e-13, atol=1e-13)


def test_complex_gradient_descent_reduces_the_loss(engine: Engine, device: torch.device) -> None:
    """Gradient descent on complex parameters reduces a real loss at every step."""
    z = points(device)
    goal = torch.tensor([1.0j, 2.0, -1.0 - 1.0j], dtype=torch.complex128, device=device)
    losses = []

    for _ in range(30):
        loss = (z - goal).abs().pow(2).sum()
        losses.append(loss.item())
        (gradient,) = torch.autograd.grad(loss, z)
        with torch.no_grad():
            z -= 0.25 * gradient

    assert all(after < before for before, after in pairwise(losses))
    torch.testing.assert_close(z.detach(), goal, rtol=1e-6, atol=1e-6)


def test_complex_functions_of_real_inputs_have_real_gradients(engine: Engine, device: torch.device) -> None:
    """A real input of complex operations gets a real gradient: the real part of the complex one."""
    x = torch.tensor([2.0, 3.0], dtype=torch.float64, device=device, requires_grad=True)
    z = torch.tensor([1.0 + 1.0j, 2.0 - 1.0j], dtype=torch.complex128, device=device)

    (x * z).real.sum().backward()
    first = None if x.grad is None else x.grad.clone()
    x.grad = None
    (x * z).imag.sum().backward()

    assert first is not None
    assert x.grad is not None
    assert x.grad.dtype == torch.float64
    assert first.tolist() == [1.0, 2.0]
    assert x.grad.tolist() == [1.0, -1.0]


def test_complex_backward_needs_an_initial_gradient(engine: Engine, device: torch.device) -> None:
    """`backward` on a complex scalar without an initial gradient raises.

    A given initial gradient propagates through a sum to each element.
    """
    z = points(device)

    with pytest.raises(RuntimeError, match="grad can be implicitly created only for real scalar outputs"):
        z.sum().backward()
    z.sum().backward(torch.tensor(2.0 + 3.0j, dtype=torch.complex128, device=device))

    assert z.grad is not None
    assert z.grad.tolist() == [2.0 + 3.0j] * 3


@waived(Known("an in-place change through a view of another dtype cannot be captured", LIST, RuntimeError))
def test_complex_real_and_imag_views_changed_in_place(engine: Engine, device: torch.device) -> None:
    """In-place changes through the `real` or `imag` view scale the gradient of that part only."""
    z = points(device)

    w = z * 1
    w.real.mul_(10)
    (w.real + 2 * w.imag).sum().backward()

    assert z.grad is not None
    assert z.grad.tolist() == [10.0 + 2.0j] * 3

    z.grad = None
    w = z * 1
    w.imag.mul_(7)
    (w.real + 2 * w.imag).sum().backward()

    assert z.grad.tolist() == [1.0 + 14.0j] * 3
