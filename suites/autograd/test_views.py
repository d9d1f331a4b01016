"""Views: gradients through them, and the effect of in-place changes on the graph and on other views."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from .engines import Engine

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"

VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "slice": lambda x: x[1:, ::2],
    "transpose": lambda x: x.t(),
    "reshape": lambda x: x.view(2, 6),
    "select": lambda x: x.select(1, 2),
    "diagonal": lambda x: x.diagonal(),
    "unfold": lambda x: x.unfold(1, 2, 2),
    "narrow": lambda x: x.narrow(0, 1, 2),
    "unsqueeze": lambda x: x.unsqueeze(0).squeeze(0),
    "permute_and_slice": lambda x: x.permute(1, 0)[1:3],
    "as_strided": lambda x: x.as_strided((2, 2), (5, 1), 1),
}


@pytest.mark.parametrize("view", VIEWS)
def test_view_gradient_lies_where_the_view_was_taken(view: str, engine: Engine, device: torch.device) -> None:
    """The gradient of a view is zero outside the region that the view covers.

    The expected value comes without autograd, by writing to the same view of zeros.
    """
    x = torch.arange(12.0, device=device).reshape(3, 4).requires_grad_()
    taken = VIEWS[view](x)
    gradient = torch.arange(1.0, taken.numel() + 1, device=device).reshape(taken.shape)

    taken.backward(gradient)

    expected = torch.zeros(3, 4, device=device)
    VIEWS[view](expected).copy_(gradient)
    assert x.grad is not None
    assert torch.equal(x.grad, expected)


@pytest.mark.covers(ROW)
@pytest.mark.parametrize("view", VIEWS)
def test_view_changed_in_place_changes_its_base(view: str, engine: Engine, device: torch.device) -> None:
    """An in-place change of a view changes the base.

    The base's gradient passes through the change at the view's elements, and the factor gets its own gradient.
    """
    x = torch.arange(12.0, device=device).reshape(3, 4).requires_grad_()
    factor = torch.tensor(3.0, device=device, requires_grad=True)

    base = x * 1
    VIEWS[view](base).mul_(factor)
    (base * 2).sum().backward()

    expected = torch.full((3, 4), 2.0, device=device)
    VIEWS[view](expected).mul_(3)
    assert x.grad is not None
    assert torch.equal(x.grad, expected)
    assert factor.grad is not None
    assert factor.grad.item() == 2 * VIEWS[view](x.detach()).sum().item()


def test_view_taken_before_its_base_changed(engine: Engine, device: torch.device) -> None:
    """A view taken before an in-place change of its base has the history of the changed base."""
    x = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    base = x * 1
    view = base[:2]
    before = view.grad_fn

    base.mul_(5)
    view.sum().backward()

    assert view.grad_fn is not before
    assert x.grad is not None
    assert x.grad.tolist() == [5.0, 5.0, 0.0]


def test_view_written_with_grad_makes_its_base_require_grad(engine: Engine, device: torch.device) -> None:
    """Writing a tensor that requires grad into a view makes the base and its other views require grad."""
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    buffer = torch.zeros(4, device=device)
    other = buffer.view(2, 2)

    buffer[1:3].copy_(x * 3)

    assert buffer.requires_grad
    assert other.requires_grad
    (other * torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [6.0, 9.0]


def test_views_of_views_changed_at_several_levels(engine: Engine, device: torch.device) -> None:
    """Changes through views of views, visible to all aliases, are differentiated in their order."""
    x = torch.ones(2, 3, device=device, requires_grad=True)
    base = x * 1
    row = base[0]
    element = row[1:]

    element.mul_(2)  # 2 of x
    base.mul_(3)  # 3 everywhere
    row.pow_(2)  # row: (3x)^2, 1 and 2: (6x)^2
    base.sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [[18.0, 72.0, 72.0], [3.0, 3.0, 3.0]]


MULTIPLE: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "unbind": lambda x: x.unbind(),
    "split": lambda x: x.split(1),
    "chunk": lambda x: x.chunk(2),
}


@pytest.mark.parametrize("function", MULTIPLE)
def test_unbind_and_split_views_are_not_changed_in_place(function: str, engine: Engine, device: torch.device) -> None:
    """A view from a function with several results cannot be changed in place while grad mode is on.

    The base can, and the gradients of all views accumulate in it.
    """
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device, requires_grad=True)
    base = x * 1

    for place in (0, 1):
        with pytest.raises(RuntimeError, match="output of a function that returns multiple views"):
            MULTIPLE[function](base)[place].mul_(2)

    views = MULTIPLE[function](base)
    with torch.no_grad():
        views[1].add_(10)
    base.mul_(3)
    assert base.tolist() == [[3.0, 6.0], [39.0, 42.0]]
    assert torch.autograd.grad(base.sum(), x)[0].tolist() == [[3.0, 3.0], [3.0, 3.0]]

    base = x * 1
    first, second = MULTIPLE[function](base)
    (first * 2 + second * second).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[2.0, 2.0], [6.0, 8.0]]


def test_view_taken_under_no_grad_is_not_changed_with_grad(engine: Engine, device: torch.device) -> None:
    """A view taken under `no_grad` of a tensor with a history raises if changed in place with grad mode on.

    Its history would be ambiguous.
    """
    x = torch.ones(3, device=device, requires_grad=True)
    base = x * 2
    with torch.no_grad():
        view = base[:2]

    with pytest.raises(RuntimeError, match="view was created in no_grad mode and is being modified inplace"):
        view.mul_(2)
    base.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0, 2.0]


def test_detach_shares_values_and_no_history(engine: Engine, device: torch.device) -> None:
    """`detach` returns an alias that does not require grad; changes through it affect the values but not the graph."""
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    y = x * 2

    alias = y.detach()
    alias.add_(100)
    y.sum().backward()

    assert not alias.requires_grad
    assert y.tolist() == [102.0, 104.0]
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]


def test_as_strided_overlapping_views_add_up(engine: Engine, device: torch.device) -> None:
    """An element that appears several times in an `as_strided` view gets the sum of its gradients."""
    x = torch.arange(4.0, device=device).requires_grad_()

    windows = x.as_strided((3, 2), (1, 1))
    windows.backward(torch.tensor([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]], device=device))

    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 12.0, 120.0, 200.0]
