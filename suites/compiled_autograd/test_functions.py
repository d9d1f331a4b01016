"""Custom autograd functions in a captured pass: saved values, results, and the distinction between functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from suites.compiled import Counts, compare, compiled_backward

ROW = "test_compiled_autograd::TestCompiledAutograd::"

#: One size, others, and the first one again.
SIZES = [10, 100, 10, 15, 20, 25]


class SavesOne(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * torch.cos(x)


class SavesTwo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(x, y)
        return torch.sin(x), torch.sin(y)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = ctx.saved_tensors
        return gradients[0] * torch.cos(x), gradients[1] * torch.cos(y)


class SavesOneTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, x)
        return torch.sin(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        first, second = ctx.saved_tensors
        return gradients[0] * torch.cos(first) * torch.cos(second)


class UsesShapeOfSaved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradients[0] * x.shape[0]


class KeepsShape(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.shape = x.shape
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * ctx.shape[0]


class TwoGradients(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + y, y.clone()

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return gradients[0], gradients[0] + 2 * gradients[1]


class TakesPlainValues(torch.autograd.Function):
    """Takes a number among its inputs. The gradient that the backward returns for the number must be ignored."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor, number: int, z: torch.Tensor, text: str) -> tuple[torch.Tensor, torch.Tensor]:
        return x * len(text), z * number

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, torch.Tensor, None]:
        return gradients[0] * 3, None, gradients[1] * 7, None


def leaf(size: int, device: torch.device, *, start: float = 0.0) -> torch.Tensor:
    return (torch.arange(0.0, size, device=device) + start).requires_grad_()


def _one(function: Any) -> Callable[[int, torch.device], list[torch.Tensor]]:
    def run(size: int, device: torch.device) -> list[torch.Tensor]:
        x = leaf(size, device)
        function.apply(x).sum().backward()
        return [x]

    return run


def _two(function: Any) -> Callable[[int, torch.device], list[torch.Tensor]]:
    def run(size: int, device: torch.device) -> list[torch.Tensor]:
        x, y = leaf(size, device), leaf(size, device, start=0.5)
        first, second = function.apply(x, y)
        (first * second).sum().backward()
        return [x, y]

    return run


def _plain(size: int, device: torch.device) -> list[torch.Tensor]:
    x, z = leaf(size, device), leaf(size, device, start=0.5)
    first, second = TakesPlainValues.apply(x, 7, z, "abc")
    (first * second).sum().backward()
    return [x, z]


KINDS = {
    "saved_tensors": (_one(SavesOne), True),
    "saved_multiple_tensors": (_two(SavesTwo), True),
    "saved_multiple_tensors_dedup": (_one(SavesOneTwice), True),
    "saved_shape_tensor": (_one(UsesShapeOfSaved), True),
    "saved_attr": (_one(KeepsShape), False),
    "multiple_grads": (_two(TwoGradients), True),
    "non_variable_input": (_plain, True),
}


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.covers(f"{ROW}test_custom_fn_{kind}")) for kind in KINDS]
)
def test_save_for_backward_is_right_at_every_size(device: torch.device, kind: str) -> None:
    """Custom functions that save tensors or attributes, or take non-tensors, match the engine at six sizes.

    Two of the sizes are equal, and at most two passes are captured.
    """
    run, fullgraph = KINDS[kind]

    def work() -> Iterator[object]:
        for size in SIZES:
            for x in run(size, device):
                yield x.grad

    counts = compare(work, backend="eager", dynamic=True, fullgraph=fullgraph)

    assert 1 <= counts.captures <= 2
    assert counts.compiles <= len(set(SIZES))


@pytest.mark.covers(f"{ROW}test_custom_fn_output_metadata")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.complex64], ids=str)
def test_function_gradient_has_the_dtype_of_its_leaf(device: torch.device, dtype: torch.dtype) -> None:
    """Through a custom function and a view, the gradient has the dtype, device, layout and shape of its leaf.

    The captured graph contains no conversion.
    """

    class Same(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0]

    x = torch.arange(1, 10, device=device).to(dtype).requires_grad_()
    with compiled_backward(backend="eager") as recording:
        Same.apply(x.view(3, 3)).sum().abs().backward()

    assert x.grad is not None
    assert (x.grad.dtype, x.grad.device, x.grad.layout, x.grad.shape) == (dtype, device, torch.strided, x.shape)
    assert torch.equal(x.grad, torch.ones_like(x))
    assert recording.captures == 1
    called = [str(node.target) for graph in recording.graphs for node in graph.graph.nodes]
    assert called
    assert not [name for name in called if "_to_copy" in name or "aten.to." in name]


@pytest.mark.covers(f"{ROW}test_custom_fn_with_same_graph")
def test_function_classes_of_the_same_code_are_distinguished(device: torch.device) -> None:
    """Two classes with the same name and code are captured separately, once each."""

    class First(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0]

    class Second(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return gradients[0]

    Second.__name__, Second.__qualname__ = First.__name__, First.__qualname__

    def work() -> Iterator[object]:
        for function in (First, Second, First, Second):
            x = leaf(10, device)
            function.apply(x).sum().backward()
            yield x.grad

    assert compare(work, backend="eager").captures == 2


@pytest.mark.covers(f"{ROW}test_custom_fn_dynamically_defined_class")
def test_function_class_made_for_each_call_is_captured_each_time(device: torch.device) -> None:
    """A class created for each call, with its factor in a closure, is captured each time with the correct factor."""

    def scaling(factor: int) -> Any:
        class Scales(torch.autograd.Function):
            @staticmethod
            def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
                return x * factor

            @staticmethod
            def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
                return gradients[0] * factor

        return Scales

    def work() -> Iterator[object]:
        for factor in (10, 20, 30):
            x = leaf(10, device)
            scaling(factor).apply(x).sum().backward()
            assert x.grad is not None
            assert x.grad.tolist() == [factor] * 10
            yield x.grad

    assert compare(work, backend="eager").captures == 3


def test_function_backward_that_returns_none_gives_no_gradient(device: torch.device) -> None:
    """A None gradient stays None, and earlier functions get no gradient."""

    class Drops(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

        @staticmethod
        def backward(_: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
            return gradients[0], None

    def work() -> Iterator[object]:
        x, y = leaf(4, device), leaf(4, device)
        Drops.apply(x, y * 2).sum().backward()
        yield [x.grad, y.grad]

    assert compare(work, backend="eager") == Counts(1, 1)


@pytest.mark.requires(torch=">=2.13")  # earlier releases have no `boxed_grads_call`
def test_boxed_grads_call_is_refused(device: torch.device) -> None:
    """A function whose `backward` gets its gradients as one list cannot be captured: an error names it."""

    class Boxed(torch.autograd.Function):
        boxed_grads_call = True

        @staticmethod
        def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(_: Any, gradients: list[torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
            return gradients[0] * 2

    x = torch.ones(3, device=device, requires_grad=True)
    with (
        compiled_backward(backend="eager"),
        pytest.raises(RuntimeError, match="boxed_grads_call=True on Boxed is not supported with compiled autograd"),
    ):
        Boxed.apply(x).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is None
    Boxed.apply(x).sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert x.grad.tolist() == [2.0] * 3
