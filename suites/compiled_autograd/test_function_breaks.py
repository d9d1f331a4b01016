"""Custom functions that the compiler cannot trace completely: graph breaks in backward, forward, or both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from suites.compiled import compare, compiled_backward

ROW = "test_compiled_autograd::TestCompiledAutograd::"
SIZES = [10, 100, 10, 15, 20, 25]


def sine(*, forward_breaks: bool, backward_breaks: bool) -> Any:
    """Return a class for the sine, with optional graph breaks."""

    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            if forward_breaks:
                torch._dynamo.graph_break()
            ctx.save_for_backward(x)
            return torch.sin(x)

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            grown = gradients[0] * 2
            if backward_breaks:
                torch._dynamo.graph_break()
            return grown * torch.cos(x)

    return Sine


def sines(function: Any, device: torch.device) -> Iterator[object]:
    for size in SIZES:
        x = torch.arange(0.0, size, device=device).requires_grad_()
        function(x).sum().backward()
        yield x.grad


@pytest.mark.covers(f"{ROW}test_custom_fn_bw_graph_break")
def test_graph_break_in_a_backward(device: torch.device) -> None:
    """A graph break in a backward splits the compiled graph, not the capture, and the gradients match the engine's."""
    function = sine(forward_breaks=False, backward_breaks=True)

    counts = compare(lambda: sines(function.apply, device), backend="eager", dynamic=True, fullgraph=False)

    assert 1 <= counts.captures <= 2
    assert counts.compiles > counts.captures


def test_fullgraph_with_a_graph_break_in_a_backward_is_an_error(device: torch.device) -> None:
    """Under `fullgraph=True`, a graph break in a backward raises with its name, and no gradient is written.

    This is also the control of the case above.
    """
    function = sine(forward_breaks=False, backward_breaks=True)

    x = torch.arange(4.0, device=device).requires_grad_()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="graph_break"), compiled_backward(backend="eager"):
        function.apply(x).sum().backward()
    assert x.grad is None


@pytest.mark.covers(f"{ROW}test_custom_fn_compiled_fw_graph_break")
def test_graph_break_in_a_compiled_forward(device: torch.device) -> None:
    """If the function breaks the graph of a compiled forward, the pass is still captured as a whole."""
    function = sine(forward_breaks=True, backward_breaks=False)

    def work() -> Iterator[object]:
        yield from sines(torch.compile(function.apply, backend="eager"), device)

    counts = compare(work, backend="eager", dynamic=True, fullgraph=False)

    assert 1 <= counts.captures <= 2
    assert counts.compiles == counts.captures


@pytest.mark.covers(f"{ROW}test_custom_fn_compiled_fw_bw_graph_break")
def test_graph_break_in_forward_and_backward(device: torch.device) -> None:
    """With graph breaks in forward and backward, there are more compiled graphs than passes, with correct gradients."""
    function = sine(forward_breaks=True, backward_breaks=True)

    def work() -> Iterator[object]:
        yield from sines(torch.compile(function.apply, backend="eager"), device)

    counts = compare(work, backend="eager", dynamic=True, fullgraph=False)

    assert 1 <= counts.captures <= 2
    assert counts.compiles > counts.captures


@pytest.mark.covers(f"{ROW}test_graph_break_custom_op")
def test_graph_break_for_an_operator_without_a_fake(device: torch.device) -> None:
    """An operator without a fake implementation breaks the graph of a backward, and the gradients are correct."""
    with torch.library._scoped_library("conformance_breaks", "DEF") as library:
        library.define("opaque(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
        library.impl("opaque", lambda x: x * 5 - 1, device.type.upper())

        class CallsOpaque(torch.autograd.Function):
            @staticmethod
            def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
                return x.clone()

            @staticmethod
            def backward(_: Any, *gradients: torch.Tensor) -> Any:
                return torch.ops.conformance_breaks.opaque(gradients[0] * 2) + 1

        def work() -> Iterator[object]:
            for _ in range(2):
                x = torch.randn(5).to(device).requires_grad_()
                (CallsOpaque.apply(x.exp()) * 2).sum().backward()
                yield x.grad

        assert compare(work, backend="eager", fullgraph=False).captures == 1


def test_graph_break_for_item_in_a_backward(device: torch.device) -> None:
    """A backward that branches on a tensor's value takes the branch of the current pass, not of the first one."""

    class Branches(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            if x.sum().item() > 0:
                return gradients[0] * 2
            return gradients[0] * 3

    def work() -> Iterator[object]:
        for sign in (1, -1, 1, -1):
            x = torch.full((4,), float(sign), device=device, requires_grad=True)
            Branches.apply(x).sum().backward()
            assert x.grad is not None
            assert x.grad.tolist() == [2.0 if sign > 0 else 3.0] * 4
            yield x.grad

    assert compare(work, backend="eager", fullgraph=False).captures == 1
