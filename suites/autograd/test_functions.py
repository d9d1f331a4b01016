"""Custom functions: their inputs, saved tensors, and results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from .engines import Engine
from .functions import apply, square

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"


@pytest.mark.covers(ROW)
def test_save_for_backward_keeps_inputs_results_and_none(engine: Engine, device: torch.device) -> None:
    """`save_for_backward` keeps inputs, results, intermediate tensors and None, in order."""

    class Power(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, exponent: int) -> torch.Tensor:
            lower = x ** (exponent - 1)
            result = lower * x
            ctx.save_for_backward(x, None, lower, result)
            ctx.exponent = exponent
            return result

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
            x, nothing, lower, result = ctx.saved_tensors
            assert nothing is None
            return gradients[0] * ctx.exponent * (lower + result / x) / 2, None

    x = torch.tensor([1.0, 2.0, 4.0], device=device, requires_grad=True)
    apply(Power, x, 3).sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 12.0, 48.0]


@pytest.mark.covers(ROW)
def test_needs_input_grad_tells_what_is_wanted(engine: Engine, device: torch.device) -> None:
    """`needs_input_grad` is True for inputs that require grad and False for all others, including numbers and None.

    A gradient returned for an input that does not need one is ignored.
    """
    needed: list[tuple[bool, ...]] = []

    class Combine(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor, factor: float, nothing: None) -> torch.Tensor:
            ctx.factor = factor
            return (x + y) * factor

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None, None]:
            needed.append(ctx.needs_input_grad)
            return gradients[0] * ctx.factor, gradients[0] * 1000, None, None

    x = torch.ones(2, device=device, requires_grad=True)
    y = torch.ones(2, device=device)
    apply(Combine, x, y, 3.0, None).sum().backward()

    assert needed == [(True, False, False, False)]
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 3.0]
    assert y.grad is None

    y.requires_grad_()
    apply(Combine, x.detach(), y, 3.0, None).sum().backward()

    assert needed[1:] == [(False, True, False, False)]
    assert x.grad.tolist() == [3.0, 3.0]
    assert y.grad is not None
    assert y.grad.tolist() == [1000.0, 1000.0]


@pytest.mark.covers(ROW)
@pytest.mark.parametrize("materialised", [True, False])
def test_set_materialize_grads_decides_the_gradient_of_an_unused_result(
    materialised: bool, engine: Engine, device: torch.device
) -> None:
    """The gradient of an unused result is a zero tensor of its shape.

    After `set_materialize_grads(False)` it is None.
    """
    seen: list[list[list[float] | None]] = []

    class Two(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            ctx.set_materialize_grads(materialised)
            return x * 2, x[:1] * 3

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor | None) -> torch.Tensor:
            first, second = gradients
            seen.append([None if one is None else one.tolist() for one in gradients])
            of_first = torch.zeros(2, device=device) if first is None else first * 2
            return of_first if second is None else of_first + torch.cat([second * 3, torch.zeros_like(second)])

    x = torch.ones(2, device=device, requires_grad=True)
    apply(Two, x)[0].sum().backward()

    assert seen == [[[1.0, 1.0], [0.0] if materialised else None]]
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]

    x.grad = None
    apply(Two, x)[1].sum().backward()

    assert seen[1:] == [[[0.0, 0.0] if materialised else None, [1.0]]]
    assert x.grad.tolist() == [3.0, 0.0]


@pytest.mark.covers(ROW)
def test_mark_non_differentiable_result_requires_no_grad(engine: Engine, device: torch.device) -> None:
    """Results marked non-differentiable do not require grad; the other results do, and their gradients arrive."""

    class Sorted(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            values, indices = x.sort()
            places, ranks = indices.to(x.dtype), indices.argsort().to(x.dtype)
            ctx.mark_non_differentiable(places, ranks)
            ctx.save_for_backward(indices)
            return places, values, ranks

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            (indices,) = ctx.saved_tensors
            return torch.zeros_like(gradients[1]).scatter(0, indices, gradients[1])

    x = torch.tensor([3.0, 1.0, 2.0], device=device, requires_grad=True)
    places, values, ranks = apply(Sorted, x)
    (values * torch.tensor([1.0, 10.0, 100.0], device=device)).sum().backward()

    assert values.requires_grad
    assert (places.requires_grad, ranks.requires_grad) == (False, False)
    assert (places.tolist(), ranks.tolist()) == ([1.0, 2.0, 0.0], [2.0, 0.0, 1.0])
    assert x.grad is not None
    assert x.grad.tolist() == [100.0, 1.0, 10.0]


@pytest.mark.covers(ROW)
def test_mark_dirty_input_has_a_new_history(engine: Engine, device: torch.device) -> None:
    """An input that is marked dirty and returned has a new history, through which the gradient passes once.

    Marking a leaf that requires grad raises.
    """

    class DoubleInPlace(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0] * 2

    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    y = x * 3
    before = y.grad_fn

    result = apply(DoubleInPlace, y)

    assert result is y
    assert y.grad_fn is not before
    assert y.tolist() == [6.0, 12.0]
    (y * y).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [72.0, 144.0]
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        apply(DoubleInPlace, x)


def test_function_that_returns_its_input_has_its_own_backward(engine: Engine, device: torch.device) -> None:
    """A function that returns its input unchanged still runs its own backward.

    The result is another tensor object with the same values, and the input is not changed.
    """

    class Reverse(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return -gradients[0]

    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    result = apply(Reverse, x)
    (result * 5).sum().backward()

    assert result is not x
    assert not result.is_leaf
    assert x.is_leaf
    assert result.tolist() == x.tolist() == [1.0, 2.0]
    assert x.grad is not None
    assert x.grad.tolist() == [-5.0, -5.0]


def test_setup_context_fills_the_context_apart(engine: Engine, device: torch.device) -> None:
    """With `setup_context`, `forward` receives all inputs, defaults included, and no context.

    `setup_context` fills the context from inputs and result, and `backward` uses it.
    """

    class Weighted(Function):
        @staticmethod
        def forward(x: torch.Tensor, factor: float = 4.0) -> torch.Tensor:  # type: ignore[override]
            return x * x * factor

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            x, ctx.factor = inputs
            assert torch.equal(output, x * x * ctx.factor)
            ctx.save_for_backward(x)

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
            return 2 * ctx.factor * ctx.saved_tensors[0] * gradients[0], None

    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    apply(Weighted, x).sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [8.0, 16.0]

    apply(Weighted, x, 0.5).sum().backward()

    assert x.grad.tolist() == [9.0, 18.0]


def test_function_passes_lists_and_other_objects_through(engine: Engine, device: torch.device) -> None:
    """Non-tensor inputs reach `forward` unchanged, and tensors inside them are not differentiated.

    Non-tensor results are returned unchanged.
    """

    class Odd(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, others: list[torch.Tensor], name: str) -> tuple[torch.Tensor, str, None]:
            return x + others[0], name.upper(), None

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> tuple[torch.Tensor, None, None]:
            return gradients[0] * 3, None, None

    x = torch.ones(2, device=device, requires_grad=True)
    other = torch.full((2,), 4.0, device=device, requires_grad=True)
    result, name, nothing = apply(Odd, x, [other], "name")
    result.sum().backward()

    assert result.tolist() == [5.0, 5.0]
    assert (name, nothing) == ("NAME", None)
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 3.0]
    assert other.grad is None


def test_function_within_a_function(engine: Engine, device: torch.device) -> None:
    """A function may build a graph in `forward` and traverse it in `backward`, invisibly to enclosing functions."""

    class Inner(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            assert not torch.is_grad_enabled()
            with torch.enable_grad():
                ctx.x = x.detach().requires_grad_()
                ctx.y = square(ctx.x) * 3
            return ctx.y.detach()  # type: ignore[no-any-return]

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            (gradient,) = torch.autograd.grad(ctx.y, ctx.x, gradients[0])
            return gradient

    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    square(apply(Inner, x)).sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [36.0, 288.0]


def test_function_class_made_for_each_call(engine: Engine, device: torch.device) -> None:
    """Functions are distinguished by class, and not by name or source: each has its own backward."""

    def scaling(factor: float) -> type[Function]:
        class Scale(Function):
            @staticmethod
            def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
                return x * 1

            @staticmethod
            def backward(ctx: Any, *given: torch.Tensor) -> torch.Tensor:
                return given[0] * factor

        return Scale

    gradients = []
    for factor in (2.0, 3.0, 5.0):
        x = torch.ones(1, device=device, requires_grad=True)
        apply(scaling(factor), x).sum().backward()
        assert x.grad is not None
        gradients.append(x.grad.item())

    assert gradients == [2.0, 3.0, 5.0]


def test_once_differentiable_gives_first_derivatives(engine: Engine, device: torch.device) -> None:
    """A backward marked `once_differentiable` gives first derivatives as usual."""

    class Once(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        @once_differentiable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            assert not torch.is_grad_enabled()
            return 3 * ctx.saved_tensors[0] ** 2 * gradients[0]

    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    apply(Once, x).sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 12.0]
