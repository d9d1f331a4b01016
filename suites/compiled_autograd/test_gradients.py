"""`.grad` before and after a captured pass: created, accumulated, in place or replaced; retained graphs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from suites import _torch_private_compiled as private
from suites.compiled import Counts, assert_same, compare, run

from .models import gradients, network, rows

ROW = "test_compiled_autograd::TestCompiledAutograd::"
UNSUPPORTED = pytest.mark.xfail(
    raises=(IndexError, RuntimeError),  # in torch 2.11 and 2.12, one of them is an internal compiler error
    reason="the compiler cannot trace a tensor whose gradient is sparse, because it reads its strides "
    "(https://github.com/pytorch/pytorch/issues/154161)",
)


@pytest.mark.covers(f"{ROW}test_accumulate_without_zero")
def test_grad_accumulates_over_captured_passes(device: torch.device) -> None:
    """Passes without `zero_grad` accumulate.

    A pass with an existing gradient differs from one without, so any number of passes needs two captures.
    """

    def work() -> Iterator[object]:
        model = network(device)
        compiled = torch.compile(model, backend="aot_eager", dynamic=True)
        for _ in range(5):
            compiled(rows(10, device)).sum().backward()
            yield list(gradients(model))

    counts = compare(work)

    assert 1 <= counts.captures <= 2
    assert counts.compiles <= 2


@pytest.mark.covers(f"{ROW}test_inplace_grad_update")
def test_grad_that_exists_is_accumulated_in_place(device: torch.device) -> None:
    """A `.grad` that the program assigned is the same object after the pass, and has the sum."""

    def work() -> Iterator[object]:
        model = network(device)
        for _ in range(3):
            own = [torch.rand(parameter.shape).to(device) for parameter in model.parameters()]
            for parameter, gradient in zip(model.parameters(), own, strict=True):
                parameter.grad = gradient
            model(rows(10, device)).sum().backward()
            yield [found is gradient for found, gradient in zip(gradients(model), own, strict=True)]
            yield own

    assert compare(work) == Counts(1, 1)


@pytest.mark.covers(f"{ROW}test_keep_graph_simple")
def test_retain_graph_allows_a_repeated_captured_pass(device: torch.device) -> None:
    """With `retain_graph`, a pass can be repeated, is captured once, and has 2x each time."""

    def work() -> Iterator[object]:
        x = torch.tensor([2.0, 5.0], device=device, requires_grad=True)
        y = x**2
        for _ in range(3):
            x.grad = torch.zeros(2, device=device)
            y.sum().backward(retain_graph=True)
            assert x.grad is not None
            assert x.grad.tolist() == [4.0, 10.0]
            yield x.grad

    assert compare(work) == Counts(1, 1)


@pytest.mark.covers(f"{ROW}test_keep_graph_usage_after_compiled")
def test_retain_graph_with_alternating_engine_and_captured_passes(device: torch.device) -> None:
    """A captured pass with `retain_graph` leaves the graph usable for the engine and for further captured passes."""

    def work() -> Iterator[object]:
        x = torch.tensor([2.0], device=device, requires_grad=True)
        y = x**2 * x.sin()
        for _ in range(3):
            for context in (private.disable, None):
                x.grad = None
                if context is None:
                    y.backward(retain_graph=True)
                else:
                    with context():
                        y.backward(retain_graph=True)
                yield x.grad

    assert compare(work) == Counts(1, 1)


def test_retain_graph_left_out_makes_a_second_pass_an_error(device: torch.device) -> None:
    """A second pass over a graph that was not retained raises the engine's error."""

    def work() -> Iterator[object]:
        x = torch.tensor([2.0], device=device, requires_grad=True)
        y = (x**2).exp()
        y.backward()
        yield x.grad
        with pytest.raises(RuntimeError, match="second time"):
            y.backward()
        yield x.grad

    assert compare(work, backend="eager").captures == 1


class Passes(torch.autograd.Function):
    """The identity, with a backward that returns the gradient given at construction."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        ctx.gradient = gradient
        return x.sum()

    @staticmethod
    @torch.compiler.disable
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.gradient, None


def strided(device: torch.device) -> torch.Tensor:
    """Return six numbers in rows of two, stored in column-major order."""
    return torch.arange(6.0, device=device).reshape(2, 3).t()


def sparse(device: torch.device) -> torch.Tensor:
    return strided(device).contiguous().to_sparse()


def pass_with(x: torch.Tensor, gradient: torch.Tensor, *, create_graph: bool = False) -> None:
    Passes.apply(x, gradient).backward(create_graph=create_graph)


#: The existing gradient, the new one, whether `create_graph` is set, and the inventory row.
MEETINGS = [
    (None, "dense", False, "1_1"),
    (None, "sparse", False, "1_2"),
    (None, "sparse kept", False, "1_3"),
    (None, "dense kept", False, "1_5_1"),
    (None, "strided kept", False, "1_5_2"),
    ("sparse", "dense", False, "2_1"),
    ("dense", "dense", False, "2_3_1"),
    ("sparse", "sparse", False, "2_3_2"),
    ("dense", "sparse", False, "2_3_3"),
    ("sparse", "dense", True, "3_1"),
    ("dense", "dense", True, "3_2"),
]

CASES = [
    pytest.param(
        there,
        comes,
        graph,
        compiled,
        id=f"{there or 'none'}-{comes.replace(' ', '_')}{'-graph' * graph}{'-compiled' * compiled}",
        marks=[pytest.mark.covers(f"{ROW}test_accumulate_grad_polyfill_case_{number}")]
        + [UNSUPPORTED] * (compiled and there == "sparse")
        + [pytest.mark.requires(sparse=True)] * ("sparse" in (there or "", comes.split()[0])),
    )
    for there, comes, graph, number in MEETINGS
    for compiled in (False, True)
]


@pytest.mark.filterwarnings("ignore:Using backward\\(\\) with create_graph=True:UserWarning")
@pytest.mark.parametrize(("there", "comes", "graph", "compiled"), CASES)
def test_grad_accumulation_layouts(
    device: torch.device, there: str | None, comes: str, graph: bool, compiled: bool
) -> None:
    """An existing gradient and a new one, each dense, sparse or differently strided, accumulate as in the engine.

    The sum, its layout, strides, identity and memory sharing are compared, in the captured graph and compiled.
    """

    def work() -> Iterator[object]:
        x = torch.ones(3, 2, device=device, requires_grad=True)
        if there is not None:
            other = strided(device).contiguous() * 3 + 1
            x.grad = other.to_sparse() if there == "sparse" else other
        old = x.grad
        if "sparse" in comes:
            came = sparse(device)
        else:
            came = strided(device) if "strided" in comes else strided(device).contiguous()
        kept = came if "kept" in comes else None
        pass_with(x, came, create_graph=graph)
        del came
        assert x.grad is not None
        yield [x.grad.to_dense(), str(x.grad.layout), old is not None and x.grad is old]
        if x.grad.layout is torch.strided:
            yield x.grad.stride()
            yield kept is not None and x.grad.data_ptr() == kept.data_ptr()
        elif kept is not None:
            yield x.grad._values().data_ptr() == kept._values().data_ptr()

    if compiled:
        assert compare(work, backend="eager", fullgraph=False).captures == 1
        return
    expected, graphs = run(work), []

    def as_it_is(captured: torch.fx.GraphModule) -> private.Compiled:
        graphs.append(captured)
        return captured

    try:
        with private.enable(as_it_is):
            actual = run(work)
    finally:
        private.reset_compiler()
    assert len(graphs) == 1
    assert_same(expected, actual)
