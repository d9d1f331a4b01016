"""Dynamic sizes: the number of captures and compiles, and correct gradients for each size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from suites.compiled import Counts, compare, compiled_backward

from .models import gradients, network, rows, train

ROW = "test_compiled_autograd::TestCompiledAutograd::"

#: One size, others, and the first one again.
SIZES = [10, 100, 10, 15, 20, 25]


@pytest.mark.covers(f"{ROW}test_dynamic_shapes")
def test_dynamic_batch_that_changes_is_captured_at_most_twice(device: torch.device) -> None:
    """A second batch size makes the pass dynamic, so that no further captures occur.

    The gradients of each size are correct.
    """

    def work() -> Iterator[object]:
        model = network(device)
        compiled = torch.compile(model, backend="aot_eager", dynamic=True)
        for size in SIZES:
            compiled(rows(size, device)).sum().backward()
            yield list(gradients(model))
            model.zero_grad()

    counts = compare(work, dynamic=True)

    assert 1 <= counts.captures <= 2
    assert 1 <= counts.compiles <= 2


def test_dynamic_new_size_needs_no_capture(device: torch.device) -> None:
    """After two sizes, twenty more are served without a capture."""
    model = network(device)
    with compiled_backward(backend="eager", dynamic=True) as recording:
        for size in (10, 11):
            model(rows(size, device)).sum().backward()
        after_two = recording.counts
        for size in range(12, 32):
            model(rows(size, device)).sum().backward()

    assert recording.counts == after_two
    assert after_two.captures <= 2


def test_dynamic_false_compiles_for_each_size(device: torch.device) -> None:
    """Control: with `dynamic=False`, each new size is compiled, and a known one is not."""

    def work() -> Iterator[object]:
        x = torch.randn(30).to(device)
        for size in (10, 20, 30, 10, 20):
            y = x[:size].detach().requires_grad_()
            (y.sin() * size).sum().backward()
            yield y.grad

    counts = compare(work, backend="eager", dynamic=False)

    assert counts.compiles == 3


@pytest.mark.covers(f"{ROW}test_dynamic_shapes_from_forward")
def test_dynamic_forward_passes_its_sizes_to_the_backward(device: torch.device) -> None:
    """A dynamic forward passes its sizes to the backward, such as the number of rows by which a mean divides."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            halves = x[: x.shape[0] // 2]
            return (halves * x.shape[0]).mean() + x.sum() / x.shape[0]

    def work() -> Iterator[object]:
        compiled = torch.compile(Model(), backend="aot_eager", dynamic=True)
        for size in SIZES:
            x = rows(size, device).requires_grad_()
            compiled(x).backward()
            yield x.grad

    counts = compare(work, dynamic=True)

    assert 1 <= counts.captures <= 3


@pytest.mark.covers(f"{ROW}test_dynamic_shapes_eager_node")
def test_dynamic_sizes_saved_by_functions_of_the_engine(device: torch.device) -> None:
    """Functions that save sizes as numbers are captured once or twice, and are correct for every size."""

    def work() -> Iterator[object]:
        for size in SIZES:
            x = torch.randn(size).to(device).requires_grad_()
            padded = torch.nn.functional.pad(x, (1, 2)).unsqueeze(0).expand(3, -1)
            (padded * padded).mean().backward()
            yield x.grad

    counts = compare(work, backend="eager", dynamic=True)

    assert 1 <= counts.captures <= 2
    assert 1 <= counts.compiles <= 2


@pytest.mark.parametrize(
    ("mark", "compiles"),
    [
        pytest.param("dynamic", 1, id="dynamic"),
        pytest.param("unbacked", None, id="maybe", marks=pytest.mark.extended),
        pytest.param("static", None, id="static"),
    ],
)
@pytest.mark.covers(f"{ROW}test_dynamic_shapes_annotations")
def test_mark_dynamic_and_mark_static_do_not_change_gradients(
    device: torch.device, mark: str, compiles: int | None
) -> None:
    """`mark_dynamic`, `maybe_mark_dynamic` and `mark_static` on the input do not affect gradients.

    If the size is marked dynamic from the start, the forward is not recompiled.
    """
    frames: list[int] = []

    def count(graph: torch.fx.GraphModule, examples: Any) -> Any:  # noqa: ARG001
        frames.append(1)
        return graph

    def work() -> Iterator[object]:
        model = network(device)
        compiled = torch.compile(model, backend=count)
        for size in (8, 16, 24, 8):
            x = rows(size, device)
            if mark == "dynamic":
                torch._dynamo.mark_dynamic(x, 0)
            elif mark == "static":
                torch._dynamo.mark_static(x, 0)
            else:
                torch._dynamo.maybe_mark_dynamic(x, 0)
            compiled(x).sum().backward()
            yield list(gradients(model))
            model.zero_grad()

    assert compare(work, backend="eager", dynamic=True).captures <= 2
    if compiles is not None:
        assert len(frames) <= 2 * compiles


@pytest.mark.covers(f"{ROW}test_compiled_autograd_does_not_specialize_on_bw_symints")
def test_dynamic_graph_is_not_bound_to_the_size_of_its_capture(device: torch.device) -> None:
    """Sizes that only the backward uses do not specialize the compiled pass.

    After two sizes, other sizes need no compile.
    """

    class Scales(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            return gradients[0].reshape(-1, 2).sum(0).repeat(x.shape[0] // 2) * x.numel()

    def work() -> Iterator[object]:
        for size in (4, 8, 12, 16, 20, 4):
            x = torch.randn(size).to(device).requires_grad_()
            (Scales.apply(x) * torch.arange(float(size), device=device)).sum().backward()
            yield x.grad

    counts = compare(work, backend="eager", dynamic=True)

    assert counts.captures <= 2
    assert counts.compiles <= 2


def test_dynamic_batch_of_no_rows(device: torch.device) -> None:
    """An empty batch has zero gradients, before and after a full one."""

    def work() -> Iterator[object]:
        for size in (0, 3, 0):
            found = list(train(network(device), rows(size, device)))
            yield found
            yield [bool(gradient.any()) for gradient in found]
            assert size > 0 or not any(gradient.any() for gradient in found)

    assert compare(work, backend="eager").captures >= 1


def test_dynamic_dimensions_of_another_number_are_another_pass(device: torch.device) -> None:
    """The same functions over a tensor with another number of dimensions are captured separately."""

    def work() -> Iterator[object]:
        for shape in ((4,), (2, 4), (4,), (2, 4)):
            x = torch.randn(shape).to(device).requires_grad_()
            x.exp().sum().backward()
            yield x.grad

    assert compare(work, backend="eager") == Counts(2, 2)
