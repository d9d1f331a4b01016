"""Custom functions that break the rules: the errors that they raise, and the results that are corrected."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import Function

from .engines import LIST, Engine, Known, each
from .functions import apply, square

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"


def returning(gradients: Callable[[torch.Tensor], Any]) -> type[Function]:
    """Return a function that multiplies by one, with the given backward."""

    class Returning(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, *given: torch.Tensor) -> Any:
            return gradients(given[0])

    return Returning


WRONG: dict[str, tuple[Callable[[torch.Tensor], Any], str]] = {
    "too_many": (lambda gradient: (gradient, gradient), "incorrect number of gradients"),
    "none_at_all": (lambda gradient: (), "incorrect number of gradients"),
    "wrong_shape": (lambda gradient: gradient.new_ones(5), "invalid gradient.*expected shape"),
}


@pytest.mark.covers(ROW)
@each(
    "kind",
    WRONG,
    {
        "too_many": Known("gradients are not counted: an extra one is dropped", LIST, pytest.fail.Exception),
        "none_at_all": Known("gradients are not counted: too few fail in a lookup", LIST, IndexError),
    },
)
def test_function_backward_gradients_that_do_not_fit_are_refused(
    kind: str, engine: Engine, device: torch.device
) -> None:
    """A backward that returns too many gradients, too few, or one of the wrong shape raises with the details.

    No gradient is written.
    """
    gradients, message = WRONG[kind]
    x = torch.ones(2, device=device, requires_grad=True)

    with pytest.raises(RuntimeError, match=message):
        apply(returning(gradients), x).sum().backward()
    assert x.grad is None
    engine.still_works()


def test_function_backward_nones_too_many_are_ignored(engine: Engine, device: torch.device) -> None:
    """A backward may return more gradients than there are inputs if the additional ones are None."""
    x = torch.ones(2, device=device, requires_grad=True)

    apply(returning(lambda gradient: (gradient * 3, None, None)), x).sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 3.0]


FITTED: dict[str, tuple[Callable[[torch.Tensor], Any], list[list[float]]]] = {
    "larger_by_broadcasting": (lambda gradient: gradient.expand(4, 2, 3), [[4.0] * 3] * 2),
    "another_dtype": (lambda gradient: gradient.double() * 0.5, [[0.5] * 3] * 2),
}


@pytest.mark.covers(ROW)
@pytest.mark.parametrize("kind", FITTED)
def test_function_backward_gradients_are_summed_and_converted_to_fit(
    kind: str, engine: Engine, device: torch.device
) -> None:
    """A gradient larger by broadcasting is summed to its input's shape, and one of another dtype is converted."""
    gradients, expected = FITTED[kind]
    x = torch.ones(2, 3, device=device, requires_grad=True)

    apply(returning(gradients), x).sum().backward()

    assert x.grad is not None
    assert x.grad.dtype == torch.float32
    assert x.grad.tolist() == expected


def test_function_backward_none_is_no_gradient(engine: Engine, device: torch.device) -> None:
    """A None gradient accumulates nothing, and `autograd.grad` raises for it unless `allow_unused` is set."""
    function = returning(lambda gradient: None)
    x = torch.ones(2, device=device, requires_grad=True)

    apply(function, x).sum().backward()
    assert x.grad is None
    with pytest.raises(RuntimeError, match="to not have been used in the graph"):
        torch.autograd.grad(apply(function, x).sum(), x)
    assert torch.autograd.grad(apply(function, x).sum(), x, allow_unused=True) == (None,)


def test_function_without_a_backward_raises(engine: Engine, device: torch.device) -> None:
    """A function without `backward` works forward, and the backward pass raises and names the missing method."""

    class Forward(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    x = torch.ones(2, device=device, requires_grad=True)
    y = apply(Forward, x)

    assert y.tolist() == [2.0, 2.0]
    with pytest.raises((RuntimeError, NotImplementedError), match="must implement either the backward"):
        y.sum().backward()
    engine.still_works()


class OwnError(Exception):
    """Raised in a backward and caught at the call of `backward`."""


@pytest.mark.covers(ROW)
def test_function_backward_error_is_raised_as_it_is(engine: Engine, device: torch.device) -> None:
    """An exception from a custom function's backward propagates with its type and message."""

    def refuse(gradient: torch.Tensor) -> torch.Tensor:
        raise OwnError("of our own")

    x = torch.ones(2, device=device, requires_grad=True)

    with pytest.raises(OwnError, match="of our own"):
        apply(returning(refuse), x).sum().backward()
    assert x.grad is None
    engine.still_works()


@pytest.mark.covers(ROW)
def test_save_for_backward_tensor_changed_in_place_is_refused(engine: Engine, device: torch.device) -> None:
    """An in-place change of a tensor that a custom function saved makes the pass raise, as for built-in functions."""
    x = torch.ones(2, device=device, requires_grad=True)
    y = x * 2

    z = square(y)
    y.add_(1)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
    engine.still_works()


def test_save_for_backward_is_freed_with_the_pass(engine: Engine, device: torch.device) -> None:
    """A pass without `retain_graph` frees what a custom function saved, and a second pass raises.

    Attributes of the context remain.
    """
    x = torch.ones(2, device=device, requires_grad=True)
    y = square(x)
    node: Any = y.grad_fn
    node.attribute = "kept"

    y.sum().backward()

    with pytest.raises(RuntimeError, match=r"saved tensors after they have already been freed|second time"):
        y.sum().backward()
    with pytest.raises(RuntimeError, match="have already been freed"):
        _ = node.saved_tensors
    assert node.attribute == "kept"


def test_function_that_returns_a_view_forbids_in_place_changes(engine: Engine, device: torch.device) -> None:
    """An in-place change of a view that a custom function returned raises, because the history would be lost.

    Its gradient is the one its backward returns.
    """

    class Row(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x[0]

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return torch.stack([gradients[0] * 2, torch.zeros_like(gradients[0])])

    x = torch.ones(2, 2, device=device, requires_grad=True)

    with pytest.raises(RuntimeError, match=r"Output 0 of Row(Backward)? is a view and is being modified inplace"):
        apply(Row, x * 1).add_(1)
    apply(Row, x * 1).sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [[2.0, 2.0], [0.0, 0.0]]


def test_mark_dirty_input_has_to_be_returned(engine: Engine, device: torch.device) -> None:
    """An input marked dirty that is not among the returned results raises."""

    class Dirty(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.mark_dirty(x)
            return x + 1

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0]

    x = torch.ones(2, device=device, requires_grad=True)

    with pytest.raises(RuntimeError, match="Some elements marked as dirty during the forward method were not returned"):
        apply(Dirty, x * 1)
    engine.still_works()
