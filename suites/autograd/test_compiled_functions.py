"""Custom functions in a compiled forward: a tensor that is several inputs, and gradients that are one tensor.

`torch.compile` traces `forward` and `backward` into one graph (`torch.autograd.Function`, "Extending torch.autograd").
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd import Function

from ..compiled import KEEPS, KEPT

pytestmark = [
    pytest.mark.keeps(KEEPS, **KEPT),
    # Dynamo creates an instance of the function while it traces (torch 2.11 to 2.13).
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]

VALUES = (0.5, -1.25, 2.0, 0.25)


class Mix(Function):
    """`a * b + a + 2 * b`: each input has its own gradient."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        return a * b + a + 2 * b

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b = ctx.saved_tensors
        return gradients[0] * (b + 1), gradients[0] * (a + 2)


class Twice(Function):
    """The input and its double: two results, whose gradients add up."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return a.clone(), a * 2

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] + 2 * gradients[1]


def _apply(function: type[Function], *inputs: torch.Tensor) -> Any:
    return function.apply(*inputs)  # type: ignore[no-untyped-call]


#: A function of one tensor, and its derivative.
PROGRAMS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]] = {
    "one_tensor_twice": (lambda x: _apply(Mix, x, x).sum(), lambda x: 2 * x + 3),
    "a_tensor_and_its_view": (lambda x: _apply(Mix, x, x.view(4)).sum(), lambda x: 2 * x + 3),
    "a_tensor_and_its_flip": (lambda x: _apply(Mix, x, x.flip(0)).sum(), lambda x: 2 * x.flip(0) + 3),
    "one_intermediate_twice": (lambda x: _apply(Mix, y := x * 3, y).sum(), lambda x: 3 * (6 * x + 3)),
    "two_calls_of_one_tensor": (
        lambda x: (_apply(Mix, x, x.detach()) + _apply(Mix, x.detach(), x)).sum(),
        lambda x: 2 * x + 3,
    ),
    "both_results": (lambda x: sum(each.sum() for each in _apply(Twice, x)), lambda x: torch.full_like(x, 3.0)),
    "one_result": (lambda x: _apply(Twice, x)[1].sum(), lambda x: torch.full_like(x, 2.0)),
}


@pytest.fixture(autouse=True)
def no_compiled_code() -> Iterator[None]:
    """Start without compiled code, and leave none."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


LOST = pytest.mark.xfail(
    torch.__version__ < (2, 13),
    raises=AssertionError,
    reason="torch 2.11 loses one of the gradients (https://github.com/pytorch/pytorch/issues/183604)",
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=LOST) if name.startswith("one_") and "twice" in name else name for name in PROGRAMS],
)
def test_compiled_function_gradient_of_a_tensor_that_is_given_twice(device: torch.device, name: str) -> None:
    """The gradient of a tensor is the sum over all inputs of the function in whose place it is, as in an eager pass.

    A graph that has the tensor once must add both gradients. Torch 2.13 leaves such a call out of the graph.
    """
    program, derivative = PROGRAMS[name]
    values = torch.tensor(VALUES, device=device)
    compiled = torch.compile(program, backend="aot_eager")
    for run in (program, compiled, compiled):
        x = values.clone().requires_grad_()
        run(x).backward()
        assert x.grad is not None
        assert x.grad.tolist() == derivative(values).tolist()


class Tripled(Function):
    """The sine, whose backward returns three times the incoming gradient, unlike that of the sine."""

    @staticmethod
    def forward(a: torch.Tensor) -> torch.Tensor:
        return a.sin()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * 3


DROPPED = pytest.mark.xfail(
    raises=AssertionError,
    reason="torch 2.11 to 2.13 differentiate what forward does (https://github.com/pytorch/pytorch/issues/193279)",
)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=DROPPED)], ids=["eager", "compiled"])
@pytest.mark.parametrize("transform", ["grad", "grad_and_value"])
def test_function_keeps_its_backward_within_a_transform(device: torch.device, transform: str, compiled: bool) -> None:
    """`torch.func.grad` and `grad_and_value` of a custom function call its `backward`, compiled as in an eager call."""
    x = torch.tensor(VALUES, device=device)

    def program(x: torch.Tensor) -> Any:
        return getattr(torch.func, transform)(lambda y: _apply(Tripled, y).sum())(x)

    found = (torch.compile(program, backend="aot_eager") if compiled else program)(x)
    gradient, value = found if transform == "grad_and_value" else (found, x.sin().sum())
    torch.testing.assert_close(value, x.sin().sum())
    assert gradient.tolist() == [3.0] * 4
