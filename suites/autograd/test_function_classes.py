"""Classes of custom functions: their rules, refused classes, and backwards that are differentiable once.

All backward passes here run in the eager engine.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.func import grad

from . import _torch_private as private
from .functions import Square, apply


@pytest.fixture
def x(device: torch.device) -> torch.Tensor:
    return torch.tensor([1.0, 2.0], device=device, requires_grad=True)


def gradient(function: type[Function], x: torch.Tensor) -> list[float]:
    (found,) = torch.autograd.grad(apply(function, x).sum(), x)
    values: list[float] = found.tolist()
    return values


class Doubled(Function):
    """Twice its argument, without a rule for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_function_vjp_is_another_name_of_backward(x: torch.Tensor) -> None:
    """A function has its rule as `backward` or as `vjp`; a function with both is refused in the pass."""

    def rule(ctx: Any, given: torch.Tensor) -> torch.Tensor:
        return given * 3

    backward = type("OfBackward", (Doubled,), {"backward": staticmethod(rule)})
    vjp = type("OfVjp", (Doubled,), {"vjp": staticmethod(rule)})
    assert gradient(backward, x) == gradient(vjp, x) == [3.0, 3.0]
    both = type("OfBoth", (Doubled,), {"backward": staticmethod(rule), "vjp": staticmethod(rule)})
    with pytest.raises(RuntimeError, match="both 'backward' and 'vjp'"):
        gradient(both, x)


@pytest.mark.requires(torch=">=2.13")
@pytest.mark.parametrize("boxed", [False, True])
def test_function_boxed_grads_call_gives_the_gradients_as_a_list(boxed: bool, x: torch.Tensor) -> None:
    """With `boxed_grads_call`, `backward` gets one list that it may empty, from the engine and from `apply`."""
    seen: list[tuple[Any, ...]] = []

    class Two(Function):
        boxed_grads_call = boxed

        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * 2, y * 3

        @staticmethod
        def backward(ctx: Any, *given: Any) -> tuple[torch.Tensor, torch.Tensor]:
            seen.append(tuple(type(each) for each in given))
            gradients = given[0] if boxed else list(given)
            last = gradients.pop()
            return gradients.pop() * 2, last * 3

    first, second = apply(Two, x, x)
    node = first.grad_fn
    by_hand = node.apply(torch.ones_like(x), torch.ones_like(x))
    assert [each.tolist() for each in by_hand] == [[2.0, 2.0], [3.0, 3.0]]
    (found,) = torch.autograd.grad((first + 10 * second).sum(), x)
    assert seen == [(list,) if boxed else (torch.Tensor, torch.Tensor)] * 2
    assert found.tolist() == [32.0, 32.0]


def test_function_needs_setup_context_within_a_transform(x: torch.Tensor) -> None:
    """`torch.func` refuses a function whose `forward` takes the context, and names the missing method."""
    with pytest.raises(RuntimeError, match="must override the setup_context staticmethod"):
        grad(lambda at: apply(Square, at).sum())(x.detach())


def test_function_takes_a_tensor_that_a_transform_left_behind(x: torch.Tensor) -> None:
    """A tensor that escaped from a transform has its plain values afterwards, also in a custom function."""
    kept: list[torch.Tensor] = []

    def escape(at: torch.Tensor) -> torch.Tensor:
        kept.append(at)
        return at.sum()

    seen: list[bool] = []

    class Look(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            seen.append(private.is_wrapped(x))
            return x * 2

    grad(escape)(x.detach())
    assert apply(Look, kept[0]).tolist() == [2.0, 4.0]
    assert seen == [False]


def test_function_is_not_an_object(x: torch.Tensor) -> None:
    """An object of a function warns of its deprecation, and cannot be called."""
    with pytest.warns(DeprecationWarning, match="should not be instantiated"):
        made = Square()
    with pytest.raises(RuntimeError, match="Legacy autograd function"):
        made(x)


def test_once_differentiable_refuses_a_second_derivative(x: torch.Tensor) -> None:
    """With `create_graph`, the gradients of a marked backward raise when they are differentiated.

    This holds if a gradient that `backward` gets requires grad, whatever the number of results. Otherwise they are
    constants, and None stays None.
    """

    class Product(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, nothing: None) -> torch.Tensor:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        @once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, given: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
            x, y = ctx.saved_tensors
            return given * y, given * x, None

    class Passing(Doubled):
        @staticmethod
        @once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
            return kept

    kept = torch.full_like(x, 7.0).detach()
    y = torch.tensor([3.0, 4.0], device=x.device, requires_grad=True)
    weight = torch.ones_like(x, requires_grad=True)

    of_x, of_y = torch.autograd.grad(apply(Product, x, y, None).sum(), [x, y], create_graph=True)
    assert (of_x.tolist(), of_y.tolist()) == ([3.0, 4.0], [1.0, 2.0])
    assert not of_x.requires_grad
    assert not of_y.requires_grad

    for found in torch.autograd.grad(apply(Product, x, y, None), [x, y], weight, create_graph=True):
        assert found.requires_grad
        with pytest.raises(RuntimeError, match="trying to differentiate twice a function that was marked"):
            found.sum().backward()
    (found,) = torch.autograd.grad(apply(Passing, x), [x], weight, create_graph=True)
    assert torch.equal(found, kept)
    assert not kept.requires_grad
    with pytest.raises(RuntimeError, match="trying to differentiate twice a function that was marked"):
        found.sum().backward()
    assert weight.grad is None


def test_save_for_forward_refuses_what_is_no_tensor() -> None:
    """`FunctionCtx.save_for_forward` accepts tensors and None; other values must be attributes of the context."""

    class Saves(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, other: object) -> torch.Tensor:
            ctx.save_for_forward(x, None, other)
            return x * 1

    x = torch.ones(2)
    assert Saves.apply(x, None).tolist() == [1, 1]
    with pytest.raises(AssertionError, match="save_for_forward expects all arguments to be tensors"):
        Saves.apply(x, 3)


def test_mark_shared_storage_warns_and_changes_nothing() -> None:
    """`mark_shared_storage` is deprecated, since shared storages are tracked without it."""

    class Marks(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            y = x * 3
            with pytest.warns(FutureWarning, match="`mark_shared_storage` is deprecated"):
                ctx.mark_shared_storage((x, y))
            return y

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 3

    x = torch.ones(2, requires_grad=True)
    Marks.apply(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3, 3]


def test_function_without_a_rule_for_vmap_refuses_to_be_mapped() -> None:
    """A function has no `vmap` rule by default: the error names the two ways to define one."""

    class Doubles(Function):
        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            pass

    with pytest.raises(RuntimeError, match="generate_vmap_rule"):
        torch.vmap(Doubles.apply)(torch.ones(3))
    with pytest.raises(NotImplementedError, match="override the vmap staticmethod or set generate_vmap_rule=True"):
        Doubles.vmap(None, (0,), torch.ones(3))
