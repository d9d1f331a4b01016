"""Leaves, and `retain_grad` for non-leaf tensors."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch

from .engines import Engine

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"


@pytest.mark.covers(ROW)
def test_retain_grad_keeps_the_gradient_of_a_tensor_within_the_graph(engine: Engine, device: torch.device) -> None:
    """After `retain_grad`, a non-leaf tensor has its gradient in `.grad`.

    Other non-leaf tensors have None, and reading `.grad` warns.
    """
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    kept, other = x * 2, x * 3
    kept.retain_grad()

    (kept * kept + other).sum().backward()

    assert kept.retains_grad
    assert not other.retains_grad
    assert kept.grad is not None
    assert kept.grad.tolist() == [4.0, 8.0]
    with pytest.warns(UserWarning, match=r"\.grad attribute of a Tensor that is not a leaf"):
        assert other.grad is None


@pytest.mark.covers(ROW)
def test_retain_grad_keeps_the_gradient_after_hooks(engine: Engine, device: torch.device) -> None:
    """The retained gradient is the one after all hooks of the tensor, also those registered after `retain_grad`.

    Repeated calls of `retain_grad` have no further effect.
    """
    x = torch.ones(2, device=device, requires_grad=True)
    y = x * 2

    y.register_hook(lambda gradient: gradient * 3)
    y.retain_grad()
    y.retain_grad()
    y.register_hook(lambda gradient: gradient * 5)
    y.sum().backward()

    assert y.grad is not None
    assert y.grad.tolist() == [15.0, 15.0]


def test_retain_grad_adds_up_over_passes(engine: Engine, device: torch.device) -> None:
    """Retained gradients accumulate over passes, like those of leaves."""
    x = torch.ones(2, device=device, requires_grad=True)
    y = x * 2
    y.retain_grad()
    z = (y * 3).sum()

    z.backward(retain_graph=True)
    z.backward()

    assert y.grad is not None
    assert y.grad.tolist() == [6.0, 6.0]


@pytest.mark.covers(ROW)
def test_retain_grad_follows_the_tensor_through_changes(engine: Engine, device: torch.device) -> None:
    """`retain_grad` belongs to the tensor, and not to its node.

    After an in-place change, it keeps the gradient of the new value. Hooks registered before the change stay with the
    old value.
    """
    x = torch.ones(2, device=device, requires_grad=True)
    hooked: list[list[float]] = []

    y = x * 1
    y.retain_grad()
    y.register_hook(lambda gradient: hooked.append(gradient.tolist()))
    y.mul_(10)
    (y * 2).sum().backward()

    assert y.grad is not None
    assert y.grad.tolist() == [2.0, 2.0]
    assert hooked == [[20.0, 20.0]]


def test_retain_grad_of_a_base_changed_by_a_view(engine: Engine, device: torch.device) -> None:
    """Base and view retain the gradients of their current values after a change through the view."""
    x = torch.ones(3, device=device, requires_grad=True)
    base = x * 1
    base.retain_grad()
    view = base[:2]
    view.retain_grad()

    view.mul_(10)
    of_base = (base * torch.tensor([1.0, 2.0, 3.0], device=device)).sum()
    (of_base + (view * torch.tensor([100.0, 200.0], device=device)).sum()).backward()

    assert view.grad is not None
    assert view.grad.tolist() == [100.0, 200.0]
    assert base.grad is not None
    assert base.grad.tolist() == [101.0, 202.0, 3.0]
    assert x.grad is not None
    assert x.grad.tolist() == [1010.0, 2020.0, 3.0]


def test_retain_grad_of_leaves_and_constants(engine: Engine, device: torch.device) -> None:
    """`retain_grad` on a leaf has no effect; on a tensor that does not require grad it raises."""
    x = torch.ones(2, device=device, requires_grad=True)

    x.retain_grad()
    (x * 2).sum().backward()

    assert not x.retains_grad
    assert x.grad is not None
    with pytest.raises(RuntimeError, match="requires_grad=False"):
        torch.ones(2, device=device).retain_grad()


def test_is_leaf_tells_what_is_a_leaf(engine: Engine, device: torch.device) -> None:
    """A tensor is a leaf if the user created it or it does not require grad.

    Results of tensors that require grad are not leaves; detached results, results under `no_grad`, and results of
    constants are.
    """
    x = torch.ones(2, device=device, requires_grad=True)
    y = x * 2
    with torch.no_grad():
        untracked = x * 2

    assert x.is_leaf
    assert not y.is_leaf
    assert y.detach().is_leaf
    assert y.detach().requires_grad_().is_leaf
    assert untracked.is_leaf
    assert (torch.ones(2, device=device) * 2).is_leaf
    assert not y.requires_grad_().is_leaf
    y.sum().backward()
    with warnings.catch_warnings(action="ignore"):
        assert [one.grad is None for one in (x, y, untracked)] == [False, True, True]


def test_requires_grad_is_for_leaves_of_real_and_complex_numbers(engine: Engine, device: torch.device) -> None:
    """`requires_grad_` accepts only floating-point and complex tensors.

    Only leaves can be set not to require grad.
    """
    for dtype in (torch.int64, torch.bool, torch.uint8):
        with pytest.raises(RuntimeError, match="floating point"):
            torch.ones(2, dtype=dtype, device=device, requires_grad=True)
    y = torch.ones(2, device=device, requires_grad=True) * 2

    with pytest.raises(RuntimeError, match="you can only change requires_grad flags of leaf variables"):
        y.requires_grad = False

    assert torch.ones(2, dtype=torch.complex64, device=device).requires_grad_().requires_grad
    engine.still_works()


def test_grad_that_is_assigned_must_fit_its_tensor(engine: Engine, device: torch.device) -> None:
    """`.grad` accepts None or a tensor of the same shape, dtype and device, and raises for anything else.

    The next pass accumulates into it.
    """
    x = torch.ones(2, device=device, requires_grad=True)

    with pytest.raises(RuntimeError, match="size"):
        x.grad = torch.ones(3, device=device)
    with pytest.raises(RuntimeError, match="type"):
        x.grad = torch.ones(2, device=device, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="same device"):
        x.grad = torch.ones(2, device="meta")
    with pytest.raises(TypeError, match="expected to be a Tensor or None"):
        x.grad = 1.0  # type: ignore[assignment]
    assert x.grad is None

    x.grad = torch.tensor([10.0, 20.0], device=device)
    (x * 3).sum().backward()
    assert x.grad.tolist() == [13.0, 23.0]
    x.grad = None
    (x * 3).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 3.0]


def test_deepcopy_and_clone_of_leaves_and_others(engine: Engine, device: torch.device) -> None:
    """`deepcopy` copies a leaf with its gradient, independent of the original, and raises for a non-leaf tensor.

    `clone` works for both, and its gradient flows back.
    """
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    (x * 3).sum().backward()

    again = copy.deepcopy(x)
    with pytest.raises(RuntimeError, match="deepcopy"):
        copy.deepcopy(x * 2)
    (again * 2).sum().backward()
    (x.clone() * 5).sum().backward()

    assert again.grad is not None
    assert x.grad is not None
    assert again.is_leaf
    assert again.grad.tolist() == [5.0, 5.0]
    assert x.grad.tolist() == [8.0, 8.0]


def test_requires_grad_false_parameter_gets_no_gradient(engine: Engine, device: torch.device) -> None:
    """A parameter with `requires_grad=False` gets no gradient; the others do.

    A later change of the flag applies to graphs recorded afterwards.
    """
    layer = torch.nn.Linear(2, 2, device=device)
    layer.weight.requires_grad_(False)
    x = torch.ones(1, 2, device=device)

    early = layer(x).sum()
    layer.weight.requires_grad_(True)
    early.backward()
    assert layer.weight.grad is None
    assert layer.bias.grad is not None
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [[1.0, 1.0]] * 2
    assert layer.bias.grad.tolist() == [2.0, 2.0]
