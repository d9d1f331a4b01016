"""Hooks on graph nodes, and the order of all kinds of hooks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .engines import Engine

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"


def node(tensor: torch.Tensor) -> Any:
    """Return the node that computes the gradients of the tensor's operands."""
    assert tensor.grad_fn is not None
    return tensor.grad_fn


@pytest.mark.covers(ROW)
def test_node_register_prehook_replaces_the_incoming_gradients(engine: Engine, device: torch.device) -> None:
    """A node's pre-hook receives the gradients of the node's results as a tuple.

    Its result is passed to the node.
    """
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    seen: list[list[float]] = []

    def triple(gradients: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        seen.append(gradients[0].tolist())
        return (gradients[0] * 3,)

    y = x * 5
    node(y).register_prehook(triple)
    (y * 2).sum().backward()

    assert seen == [[2.0, 2.0]]
    assert x.grad is not None
    assert x.grad.tolist() == [30.0, 30.0]


@pytest.mark.covers(ROW)
def test_node_register_hook_replaces_the_computed_gradients(engine: Engine, device: torch.device) -> None:
    """A node's hook receives the gradients that the node computed and those it was given, and its result propagates."""
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    seen: list[tuple[list[float], list[float]]] = []

    def add(made: tuple[torch.Tensor, ...], given: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor | None, ...]:
        seen.append((made[0].tolist(), given[0].tolist()))
        return (made[0] + 1, *made[1:])

    y = x * 5
    node(y).register_hook(add)
    (y * 2).sum().backward()

    assert seen == [([10.0, 10.0], [2.0, 2.0])]
    assert x.grad is not None
    assert x.grad.tolist() == [11.0, 11.0]


def test_node_register_prehook_and_register_hook_run_in_order(engine: Engine, device: torch.device) -> None:
    """Pre-hooks and hooks of a node run in registration order, each on the result of the previous one.

    Removed hooks do not run.
    """
    x = torch.ones(1, device=device, requires_grad=True)
    calls: list[tuple[str, float]] = []

    def before(name: str, factor: float) -> Any:
        def hook(gradients: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
            calls.append((name, gradients[0].item()))
            return (gradients[0] * factor,)

        return hook

    def after(name: str, factor: float) -> Any:
        def hook(made: tuple[torch.Tensor, ...], _: Any) -> tuple[torch.Tensor | None, ...]:
            calls.append((name, made[0].item()))
            return (made[0] * factor, *made[1:])

        return hook

    y = x * 2
    node(y).register_prehook(before("before 1", 2))
    node(y).register_prehook(before("removed", 1000)).remove()
    node(y).register_prehook(before("before 2", 3))
    node(y).register_hook(after("after 1", 5))
    node(y).register_hook(after("removed", 1000)).remove()
    node(y).register_hook(after("after 2", 7))
    y.sum().backward()

    assert calls == [("before 1", 1.0), ("before 2", 2.0), ("after 1", 12.0), ("after 2", 60.0)]
    assert x.grad is not None
    assert x.grad.item() == 420.0


def test_accumulategrad_node_has_hooks(engine: Engine, device: torch.device) -> None:
    """`get_gradient_edge` reaches the AccumulateGrad node of a leaf.

    Its pre-hook changes what is accumulated, and its hook runs after `.grad` is written.
    """
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    written: list[list[float] | None] = []
    accumulate: Any = torch.autograd.graph.get_gradient_edge(x).node

    def look(made: Any, given: Any) -> None:
        written.append(None if x.grad is None else x.grad.tolist())

    accumulate.register_prehook(lambda gradients: (gradients[0] * 2,))
    accumulate.register_hook(look)
    (x * 3).sum().backward()

    assert written == [[6.0, 6.0]]


@pytest.mark.covers(ROW)
def test_hooks_of_tensor_and_node_run_in_order(engine: Engine, device: torch.device) -> None:
    """For one node, tensor hooks run first, then node pre-hooks, the node, and node hooks, in any registration order.

    For a leaf, the order is tensor hooks, accumulation, post-accumulate hooks. Nodes nearer to the result run first.
    """
    x = torch.ones(2, device=device, requires_grad=True)
    order: list[str] = []

    class Trace(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, given: torch.Tensor) -> torch.Tensor:
            return given * 2

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            order.append("the node")
            return gradients[0] * 2

    y: torch.Tensor = Trace.apply(x)  # type: ignore[no-untyped-call]
    z = y * 3
    x.register_post_accumulate_grad_hook(lambda leaf: order.append("after accumulation"))
    node(y).register_hook(lambda made, given: order.append("after the node"))
    node(y).register_prehook(lambda gradients: order.append("before the node"))
    y.register_hook(lambda gradient: order.append("of its result"))
    x.register_hook(lambda gradient: order.append("of the leaf"))
    node(z).register_hook(lambda made, given: order.append("after the next node"))
    z.sum().backward()

    assert order == [
        "after the next node",
        "of its result",
        "before the node",
        "the node",
        "after the node",
        "of the leaf",
        "after accumulation",
    ]


def test_next_functions_lead_from_the_result_to_the_leaves(engine: Engine, device: torch.device) -> None:
    """`next_functions` lists the node of each operand in order, and None for operands that do not require grad.

    For a leaf, the node is its AccumulateGrad node.
    """
    x = torch.ones(2, device=device, requires_grad=True)
    constant = torch.ones(2, device=device)

    y = x * constant
    z = y + x
    edges = [following for following, _ in node(z).next_functions]

    assert edges[0] is node(y)
    assert edges[1].variable is x
    assert [following is None for following, _ in node(y).next_functions] == [False, True]
    z.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 2.0]


@pytest.mark.covers(ROW)
def test_get_gradient_edge_is_an_input_of_autograd_grad(engine: Engine, device: torch.device) -> None:
    """`autograd.grad` accepts a gradient edge as an input and returns the same gradient as for the tensor."""
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    y = x * 2
    edge = torch.autograd.graph.get_gradient_edge(y)
    z = (y * y).sum()

    (by_edge,) = torch.autograd.grad(z, [edge], retain_graph=True)
    (by_tensor,) = torch.autograd.grad(z, [y])

    assert by_edge.tolist() == [4.0, 8.0]
    assert torch.equal(by_edge, by_tensor)


def test_get_gradient_edge_of_a_later_output(engine: Engine, device: torch.device) -> None:
    """An edge has the number of its output, so a function with several outputs has an edge for each."""
    x = torch.tensor([1.0, 2.0, 3.0, 4.0], device=device, requires_grad=True)
    parts = (x * 2).split(2)
    edges = [torch.autograd.graph.get_gradient_edge(part) for part in parts]
    assert [edge.output_nr for edge in edges] == [0, 1]
    assert all(edge.node == parts[0].grad_fn for edge in edges)

    found = torch.autograd.grad((parts[0] * 3).sum() + (parts[1] * 5).sum(), edges)

    assert [each.tolist() for each in found] == [[3.0, 3.0], [5.0, 5.0]]
