"""Custom autograd functions in C++ in a captured pass: traceable or not, with saved values of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from suites.compiled import compare

from . import cpp_nodes

ROW = "test_compiled_autograd::TestCompiledAutograd::"
SIZES = (10, 100, 10, 20, 10)

#: The first case to run on a machine builds the functions, which takes 20 s on two idle cores, and longer under load.
pytestmark = [pytest.mark.requires(cpp_extensions=True), pytest.mark.timeout(600), pytest.mark.extended]


@pytest.fixture(scope="module")
def nodes() -> Any:
    return cpp_nodes.load()


@pytest.mark.covers(
    f"{ROW}test_autograd_cpp_node", f"{ROW}test_autograd_cpp_node_basic", f"{ROW}test_autograd_cpp_node_id"
)
def test_cpp_functions_are_distinguished_and_cached(device: torch.device, nodes: Any) -> None:
    """A traceable C++ function is captured once for all its uses, and separately from another one with equal code.

    Both captures stay cached.
    """

    def work(*operators: Any) -> Iterator[object]:
        for operator in operators:
            x = torch.ones(10, 10, device=device, requires_grad=True)
            operator(x).sum().backward()
            assert x.grad is not None
            assert torch.equal(x.grad, torch.full_like(x, 2))
            yield x.grad

    assert compare(lambda: work(*[nodes.twice] * 4), backend="eager").captures == 1
    both = compare(lambda: work(nodes.twice, nodes.twice_too, nodes.twice, nodes.twice_too), backend="eager")
    assert both.captures == 2


@pytest.mark.covers(f"{ROW}test_autograd_cpp_node_non_traceable")
def test_cpp_function_that_is_not_traceable_runs_as_it_is(device: torch.device, nodes: Any) -> None:
    """A function that is not traceable runs outside of the compiled graph in each pass, with that pass's values."""

    def work() -> Iterator[object]:
        for sign in (1.0, -1.0, 1.0):
            x = torch.ones(10, device=device, requires_grad=True)
            (nodes.not_traceable(x * 2) * sign).sum().backward()
            assert x.grad is not None
            assert x.grad[0].item() == (6 if sign > 0 else -8)
            yield x.grad

    assert compare(work, backend="eager", fullgraph=False).captures == 1


@pytest.mark.covers(f"{ROW}test_autograd_cpp_node_saved", f"{ROW}test_autograd_cpp_node_saved_basic")
def test_cpp_function_saved_values_of_every_kind_are_restored(device: torch.device, nodes: Any) -> None:
    """Saved tensors and plain values of every kind are available in the captured pass, at every size.

    The tensors are those of the current pass.
    """

    def work() -> Iterator[object]:
        for number, size in enumerate(SIZES):
            x = torch.ones(size, size, device=device, requires_grad=True)
            y = torch.randn(size, size).to(device)
            fixed = torch.full((2, 2), float(number), device=device)
            nodes.saved_of_every_kind(x, y, fixed).sum().backward()
            yield x.grad
            assert x.grad is not None
            torch.testing.assert_close(x.grad, 1 + y + 4 * number + 5.5)

    counts = compare(work, backend="eager", dynamic=True, fullgraph=False)

    assert 1 <= counts.captures <= 2


@pytest.mark.covers(f"{ROW}test_autograd_cpp_node_saved_dynamic")
def test_cpp_function_saved_view_has_the_size_of_this_pass(device: torch.device, nodes: Any) -> None:
    """A saved view, whose size follows the input's, is correct at every size.

    A known size is not captured again.
    """

    def work() -> Iterator[object]:
        for size in SIZES:
            x = torch.ones(size, size, device=device, requires_grad=True)
            nodes.saved_view(x).sum().backward()
            assert x.grad is not None
            assert torch.equal(x.grad, torch.full_like(x, 1 + size * size))
            yield x.grad

    counts = compare(work, backend="eager", dynamic=True, fullgraph=False)

    assert 1 <= counts.captures <= len(set(SIZES))


@pytest.mark.parametrize(
    ("operator", "numbers"),
    [
        pytest.param(
            "saved_integer",
            (1, 2, 3, 2, 7),
            marks=pytest.mark.covers(f"{ROW}test_autograd_cpp_node_saved_int"),
            id="int",
        ),
        pytest.param(
            "saved_float",
            (1.5, 2.5, -0.25, 2.5, 0.0),
            marks=pytest.mark.covers(f"{ROW}test_autograd_cpp_node_saved_float"),
            id="float",
        ),
    ],
)
def test_cpp_function_saved_number_is_that_of_the_current_pass(
    device: torch.device, nodes: Any, operator: str, numbers: tuple[float, ...]
) -> None:
    """A number that a function saved is not a constant of the compiled pass: each pass uses its own number.

    Not every number needs a capture.
    """

    def work() -> Iterator[object]:
        for number in numbers:
            x = torch.ones(4, device=device, requires_grad=True)
            getattr(nodes, operator)(x, number).sum().backward()
            assert x.grad is not None
            assert x.grad.tolist() == [number] * 4
            yield x.grad

    counts = compare(work, backend="eager", dynamic=True, fullgraph=False)

    assert 1 <= counts.captures <= 2


@pytest.mark.covers(f"{ROW}test_autograd_cpp_node_data_dependent")
def test_cpp_function_that_saves_varying_values(device: torch.device, nodes: Any) -> None:
    """A function that saves an additional value, or disables materialized gradients, is captured separately.

    The first form stays cached.
    """

    def work() -> Iterator[object]:
        for kind in (0, 1, 2, 0, 1, 2):
            x = torch.ones(5, device=device, requires_grad=True)
            y = torch.randn(5).to(device)
            first, _ = nodes.data_dependent(x, y, kind)
            first.sum().backward()
            assert x.grad is not None
            torch.testing.assert_close(x.grad, x.detach() + y + 1 + {0: 0, 1: 100, 2: 1000}[kind])
            yield x.grad

    assert compare(work, backend="eager", fullgraph=False).captures == 3


def test_cpp_function_saved_number_on_the_cpu(device: torch.device, nodes: Any) -> None:
    """A scalar CPU tensor that a function saved is correct for inputs on any device."""

    def work() -> Iterator[object]:
        x = torch.ones(2, 2, device=device, requires_grad=True)
        nodes.host_scalar(x).sum().backward()
        assert x.grad is not None
        assert torch.equal(x.grad, torch.full_like(x, 6))
        yield x.grad

    assert compare(work, backend="eager", fullgraph=False).captures == 1
