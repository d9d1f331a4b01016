"""Captured backward passes that are not compiled: each operation of a capture runs as plain Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from suites import _torch_private_compiled as private
from suites.compiled import assert_same, run

from .models import network, rows, train


def slices(device: torch.device) -> Iterator[object]:
    """Write into views: of a part, of a part of a part, with another gradient than that of the whole."""
    x = torch.randn(4, 3).to(device).requires_grad_()
    w = torch.randn(2, 3).to(device).requires_grad_()
    y = x * 2
    y[1:3].mul_(w)
    y.t()[1:][1].exp_()
    (y * y).sum().backward()
    yield x.grad
    yield w.grad


def model(device: torch.device) -> Iterator[object]:
    yield from train(network(device), rows(3, device))


def accumulated(device: torch.device) -> Iterator[object]:
    x = torch.randn(3).to(device).requires_grad_()
    for number in range(3):
        (x * number).exp().sum().backward()
        yield x.grad


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * x * factor

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (x,) = ctx.saved_tensors
        return 2 * x * ctx.factor * gradients[0], None


def function(device: torch.device) -> Iterator[object]:
    x = torch.randn(3).to(device).requires_grad_()
    Scaled.apply(x, 1.5).sum().backward()
    yield x.grad


def hooks(device: torch.device) -> Iterator[object]:
    """Register hooks of tensors, of nodes and of leaves, which change or record gradients."""
    seen: list[object] = []
    x = torch.randn(3).to(device).requires_grad_()
    y = x * 2
    y.register_hook(lambda gradient: gradient * 3)
    z = y.exp()
    assert z.grad_fn is not None
    z.grad_fn.register_prehook(lambda gradients: (gradients[0] * 5,))
    z.grad_fn.register_hook(lambda inputs, _: (inputs[0] + 1,))
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(leaf.grad.clone()))
    z.sum().backward()
    yield x.grad
    yield seen


def unpacked(device: torch.device) -> Iterator[object]:
    """Register hooks that keep saved tensors in another form."""
    x = torch.randn(3).to(device).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda saved: saved * 2, lambda kept: kept / 2):
        y = x.sin()
    y.sum().backward()
    yield x.grad


def asked(device: torch.device) -> Iterator[object]:
    """Call `torch.autograd.grad` with given gradients, for some inputs."""
    x, y = (torch.randn(2, 3).to(device).requires_grad_() for _ in range(2))
    yield from torch.autograd.grad((x * y).sum(1), (y, x), torch.tensor([1.0, 3.0]).to(device))


def hooked_within(device: torch.device) -> Iterator[object]:
    """Run a compiled function that registers a hook on one of its own tensors."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda gradient: gradient * 3)
        return y.sin()

    x = torch.randn(3).to(device).requires_grad_()
    compiled = torch.compile(forward, backend="aot_eager") if private.enabled() else forward
    compiled(x).sum().backward()
    yield x.grad


def slices_of_a_part(device: torch.device) -> Iterator[object]:
    """Write into a view of a tensor that does not begin with its storage."""
    x = torch.randn(2, 3).to(device).requires_grad_()
    y = torch.empty(0, device=device).set_(torch.ones(18, device=device).untyped_storage(), 6, (4, 3), (3, 1))
    y[1:3].mul_(x)
    (y * y).sum().backward()
    yield x.grad


def of_any_size(device: torch.device) -> Iterator[object]:
    """Run a compiled function of any size, whose backward reads sizes and tensors."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * x.shape[0]).sum(1)

    compiled = torch.compile(forward, backend="aot_eager", dynamic=True) if private.enabled() else forward
    for size in (3, 5):
        x = torch.randn(size, size + 1).to(device).requires_grad_()
        compiled(x).exp().sum().backward()
        yield x.grad


WORK = [
    slices,
    slices_of_a_part,
    model,
    accumulated,
    function,
    hooks,
    unpacked,
    asked,
    hooked_within,
    of_any_size,
]


@pytest.mark.parametrize("work", WORK)
def test_captured_pass_that_is_not_compiled_gives_the_gradients_of_the_engine(
    work: Callable[[torch.device], Iterator[object]], device: torch.device
) -> None:
    """A captured pass is a graph of calls that Python can run: a compiler that returns it unchanged changes no result.

    torch/_dynamo/compiled_autograd.py, `_enable`: its argument is a function from a graph to a callable.
    """
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule) -> torch.fx.GraphModule:
        graphs.append(graph)
        return graph

    expected = run(lambda: work(device))
    with private.fresh_compiler(), private.enable(keep):
        found = run(lambda: work(device))
    assert graphs
    assert_same(expected, found)


def test_create_graph_of_a_compiled_function_is_refused(device: torch.device) -> None:
    """A captured pass with `create_graph` over a compiled function raises: it has no second derivative."""
    with private.fresh_compiler():
        x = torch.ones(3, device=device, requires_grad=True)
        y = torch.compile(lambda x: (x * x).sin(), backend="aot_eager")(x)
        with private.enable(lambda graph: graph), pytest.raises(RuntimeError, match="higher order gradients"):
            torch.autograd.grad(y.sum(), x, create_graph=True)
