"""In-place operations: their gradients, and the cases in which the backward pass raises."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from . import _torch_private as private
from .engines import Engine

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"

CHANGES: dict[str, Callable[[torch.Tensor], object]] = {
    "itself": lambda saved: saved.add_(1),
    "a_view": lambda saved: saved[1:].mul_(2),
    "a_view_of_a_view": lambda saved: saved.view(3, 1)[2].zero_(),
    "a_detached_alias": lambda saved: saved.detach().fill_(0),
    "an_assignment": lambda saved: saved.__setitem__(0, 5.0),
    "an_out_argument": lambda saved: torch.ones(3, device=saved.device, out=saved.detach()),
}


@pytest.mark.covers(ROW)
@pytest.mark.parametrize("change", CHANGES)
def test_in_place_change_of_a_saved_tensor_is_refused(change: str, engine: Engine, device: torch.device) -> None:
    """An in-place change of a saved tensor, directly or through an alias, makes the backward pass raise.

    The message has the expected and found versions; no gradient is written, and the next pass works.
    """
    x = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    saved = x * 2
    result = (saved * saved).sum()
    before = private.version(saved)

    with torch.no_grad():
        CHANGES[change](saved)

    assert private.version(saved) == before + 1
    with pytest.raises(
        RuntimeError, match=rf"modified by an inplace operation.*version {before + 1}; expected.*{before}"
    ):
        result.backward()
    assert x.grad is None
    engine.still_works()


def test_data_change_is_not_seen_by_version_counters(engine: Engine, device: torch.device) -> None:
    """A change through `.data` does not bump the version, and the backward pass uses the changed values."""
    x = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    saved = x * 2
    result = (saved * saved).sum()
    before = private.version(saved)

    saved.data.fill_(10)
    result.backward()

    assert private.version(saved) == before
    assert x.grad is not None
    assert x.grad.tolist() == [40.0, 40.0, 40.0]


@pytest.mark.covers(ROW)
def test_in_place_change_of_an_unsaved_result(engine: Engine, device: torch.device) -> None:
    """Only tensors that the backward pass needs are checked.

    The result of a multiplication by a number is not saved, so in-place changes of it are allowed and recorded.
    """
    x = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)

    y = x * 3
    y.add_(1).mul_(2)
    y[1] = 0.0
    y.sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [6.0, 0.0, 6.0]


SAVERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": torch.relu_,
    "sigmoid": torch.sigmoid_,
    "tanh": torch.tanh_,
    "exp": torch.exp_,
}


@pytest.mark.parametrize("function", SAVERS)
def test_in_place_function_that_saves_its_result(function: str, engine: Engine, device: torch.device) -> None:
    """An in-place function that saves its result has the same gradient as the out-of-place function.

    A later change of the result makes the backward pass raise.
    """
    values = torch.tensor([-1.0, 0.5, 2.0], device=device)
    in_place = SAVERS[function]
    out_of_place: Callable[[torch.Tensor], torch.Tensor] = getattr(torch, function)
    x, y = values.clone().requires_grad_(), values.clone().requires_grad_()

    in_place(x * 2).sum().backward()
    out_of_place(y * 2).sum().backward()
    changed = in_place(x * 2).mul_(3)

    assert x.grad is not None
    assert y.grad is not None
    assert torch.equal(x.grad, y.grad)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        changed.sum().backward()


def test_in_place_change_of_a_leaf_that_requires_grad_is_refused(engine: Engine, device: torch.device) -> None:
    """An in-place change of a leaf that requires grad, or of a view of one, raises while grad mode is on.

    Under `no_grad` it is allowed, the tensor stays a leaf, and later passes use the new values.
    """
    x = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)

    with pytest.raises(RuntimeError, match="a leaf Variable that requires grad"):
        x.add_(1)
    with pytest.raises(RuntimeError, match="a view of a leaf Variable that requires grad"):
        x[0].add_(1)
    assert x.tolist() == [1.0, 2.0, 3.0]

    with torch.no_grad():
        x.add_(1)
    assert x.is_leaf
    (x * x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [4.0, 6.0, 8.0]


@pytest.mark.covers(ROW)
def test_copy_takes_over_the_gradient_of_the_overwritten_tensor(engine: Engine, device: torch.device) -> None:
    """`a.copy_(b)` sends the gradient to `b`, converted to its dtype and shape, and none to the previous `a`."""
    old = torch.ones(2, 3, device=device, requires_grad=True)
    new = torch.tensor([1.0, 2.0, 3.0], device=device, dtype=torch.float16, requires_grad=True)
    weights = torch.arange(6.0, device=device).reshape(2, 3)

    target = old * 1
    target.copy_(new)
    (target * weights).sum().backward()

    assert new.grad is not None
    assert old.grad is not None
    assert new.grad.dtype == torch.float16
    assert new.grad.tolist() == [3.0, 5.0, 7.0]
    assert old.grad.tolist() == [[0.0] * 3] * 2


OVERWRITES: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "masked_fill": lambda x, mask: x.masked_fill_(mask, 9.0),
    "setitem_mask": lambda x, mask: x.__setitem__(mask, 9.0),
    "index_fill": lambda x, mask: x.index_fill_(0, mask.nonzero().flatten(), 9.0),
    "index_put": lambda x, mask: x.index_put_((mask.nonzero().flatten(),), torch.tensor(9.0, device=x.device)),
    "zero_a_slice": lambda x, mask: x[1:3].zero_(),
}


@pytest.mark.parametrize("overwrite", OVERWRITES)
def test_in_place_overwritten_elements_get_no_gradient(overwrite: str, engine: Engine, device: torch.device) -> None:
    """Elements overwritten with a constant get gradient zero; the others keep their gradients."""
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], device=device, requires_grad=True)
    mask = torch.tensor([False, True, True, False], device=device)

    y = x * 2
    OVERWRITES[overwrite](y, mask)
    (y * y).sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [8.0, 0.0, 0.0, 32.0]


def test_index_put_values_get_their_gradients(engine: Engine, device: torch.device) -> None:
    """Values written by index get the gradients of their target positions.

    If two values are accumulated into one position, both get its gradient.
    """
    x = torch.zeros(3, device=device, requires_grad=True)
    values = torch.tensor([1.0, 2.0, 3.0], device=device, requires_grad=True)
    indices = torch.tensor([0, 2, 2], device=device)
    weights = torch.tensor([10.0, 20.0, 30.0], device=device)

    y = x * 1
    y.index_put_((indices,), values, accumulate=True)
    (y * weights).sum().backward()

    assert values.grad is not None
    assert x.grad is not None
    assert values.grad.tolist() == [10.0, 30.0, 30.0]
    assert x.grad.tolist() == [10.0, 20.0, 30.0]
