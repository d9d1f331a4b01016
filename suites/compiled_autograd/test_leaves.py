"""The gradients that a pass computes: returned or accumulated, for all or some leaves, and no others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from suites.compiled import Counts, compare


class Unreachable(torch.autograd.Function):
    """The identity, with a backward that must not run."""

    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        raise AssertionError("no requested gradient needs this function")


def leaf(device: torch.device, size: int = 4) -> torch.Tensor:
    return torch.randn(size).to(device).requires_grad_()


def unreachable(x: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = Unreachable.apply(x)
    return result


@pytest.mark.covers("test_compiled_autograd::TestCompiledAutograd::test_output_nodes_all_leaves")
def test_autograd_grad_returns_and_does_not_accumulate(device: torch.device) -> None:
    """`autograd.grad` of all leaves returns their gradients in the requested order and writes no `.grad`.

    One capture serves three passes.
    """

    def work(*, turned: bool) -> Iterator[object]:
        y, z = leaf(device), leaf(device)
        for _ in range(3):
            x = torch.randn(4).to(device)
            result = torch.sigmoid(x * z + torch.sin(y) + torch.cos(y)).sum()
            yield from torch.autograd.grad(result, inputs=[z, y] if turned else [y, z])
            yield [y.grad, z.grad]

    assert compare(lambda: work(turned=False)) == Counts(1, 1)
    assert compare(lambda: work(turned=True)) == Counts(1, 1)


@pytest.mark.covers("test_compiled_autograd::TestCompiledAutograd::test_output_nodes_some_leaves")
def test_autograd_grad_of_some_leaves_runs_no_other_function(device: torch.device) -> None:
    """`autograd.grad` of some leaves neither captures nor runs functions that only lead to other leaves."""

    def work() -> Iterator[object]:
        y, z = leaf(device), leaf(device)
        for _ in range(3):
            result = torch.sigmoid(unreachable(y) * z).sum()
            yield torch.autograd.grad(result, inputs=[z])
            yield [y.grad, z.grad]

    assert compare(work) == Counts(1, 1)


@pytest.mark.covers("test_compiled_autograd::TestCompiledAutograd::test_no_output_nodes_all_leaves")
def test_backward_accumulates_into_all_leaves(device: torch.device) -> None:
    """`backward` returns nothing and accumulates into the `.grad` of every leaf."""

    def work() -> Iterator[object]:
        y, z = leaf(device), leaf(device)
        for _ in range(3):
            x = torch.randn(4).to(device)
            yield torch.sigmoid(x * z + torch.sin(y) + torch.cos(y)).sum().backward()
            assert None not in (y.grad, z.grad)
            yield [y.grad, z.grad]
            y.grad = z.grad = None

    assert compare(work) == Counts(1, 1)


@pytest.mark.covers("test_compiled_autograd::TestCompiledAutograd::test_no_output_nodes_some_leaves")
def test_backward_inputs_touches_no_other_leaf(device: torch.device) -> None:
    """`backward(inputs=…)` accumulates into these leaves only, and runs no function that only leads to others."""

    def work() -> Iterator[object]:
        y, z, a = leaf(device), leaf(device), leaf(device)
        for _ in range(3):
            x = torch.randn(4).to(device)
            torch.sigmoid(x * y * z * unreachable(a)).sum().backward(inputs=[y, z])
            assert None not in (y.grad, z.grad)
            yield [y.grad, z.grad, a.grad]
            y.grad = z.grad = None

    assert compare(work) == Counts(1, 1)


@pytest.mark.covers(
    "test_compiled_autograd::TestCompiledAutograd::test_no_output_nodes_different_leaves_will_recompile"
)
def test_backward_inputs_of_other_leaves_is_another_pass(device: torch.device) -> None:
    """A pass over the same functions for other leaves is captured separately, and both captures stay cached."""

    def work() -> Iterator[object]:
        x, y, z = leaf(device), leaf(device), leaf(device)
        for inputs in ([x], [y], [x], [y]):
            (x * y * z).sum().backward(inputs=inputs)
            yield [x.grad, y.grad, z.grad]
            x.grad = y.grad = None

    assert compare(work) == Counts(2, 2)


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace the builtin:UserWarning")
def test_autograd_grad_and_retain_grad_of_a_nonleaf(device: torch.device) -> None:
    """`autograd.grad` of a non-leaf tensor returns its gradient, and `retain_grad` keeps it."""

    def work() -> Iterator[object]:
        x = leaf(device)
        middle = x.exp()
        yield torch.autograd.grad((middle * middle).sum(), middle)
        middle = x.exp()
        middle.retain_grad()
        (middle * middle).sum().backward()
        yield [middle.grad, x.grad]

    assert compare(work, backend="eager", fullgraph=False).captures == 2


def test_allow_unused_and_materialize_grads_for_an_unused_leaf(device: torch.device) -> None:
    """An unused leaf raises; `allow_unused` gives None, and `materialize_grads` zeros, as in the engine."""

    def work() -> Iterator[object]:
        x, y = leaf(device), leaf(device, 2)
        for inputs in ([x, y], [y, x]):
            yield torch.autograd.grad(x.sin().sum(), inputs, allow_unused=True)
            yield torch.autograd.grad(x.sin().sum(), inputs, materialize_grads=True)
            with pytest.raises(RuntimeError, match="not have been used in the graph"):
                torch.autograd.grad(x.sin().sum(), inputs)
            yield "refused"

    assert compare(work, backend="eager").captures >= 1
