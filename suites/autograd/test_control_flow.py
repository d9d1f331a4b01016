"""Higher-order operators (branches, loops, regions), which stay one node in the graph, and their gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from suites import _torch_private_compiled as private
from suites.compiled import KEEPS, KEPT, WRAPPED_SUITES

from .engines import LIST, Engine, Known, waived

#: Applies under both engines, because these operators always compile their functions.
pytestmark = pytest.mark.keeps(KEEPS, **KEPT)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Reset the compiler before and after the case, because these operators compile their functions."""
    with private.fresh_compiler():
        yield


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return torch.tensor([0.5, 1.5, -2.0], device=device, requires_grad=True)


@pytest.mark.covers(WRAPPED_SUITES)
@pytest.mark.parametrize("taken", [True, False])
def test_cond_has_the_gradient_of_the_branch_taken(taken: bool, x: Tensor, engine: Engine) -> None:
    """`torch.cond` returns the value and gradient of the branch taken, for operands and for captured tensors."""
    factor = torch.tensor(3.0, device=x.device, requires_grad=True)

    def heads(at: Tensor) -> Tensor:
        return at.sin() * factor

    def tails(at: Tensor) -> Tensor:
        return at.cos() + factor

    result = torch.cond(torch.tensor(taken, device=x.device), heads, tails, (x,))
    result.sum().backward()

    at = x.detach()
    wanted = (at.sin() * 3, 3 * at.cos(), at.sin().sum()) if taken else (at.cos() + 3, -at.sin(), torch.tensor(3.0))
    for found, expected in zip((result, x.grad, factor.grad), wanted, strict=True):
        assert found is not None
        torch.testing.assert_close(found.detach(), expected.to(x.device))


@pytest.mark.covers(WRAPPED_SUITES)
def test_cond_within_cond(x: Tensor, engine: Engine) -> None:
    """Nested `cond` gives the gradient of the path taken, for each of four paths."""

    def inner(at: Tensor, second: Tensor, scale: float) -> Tensor:
        return torch.cond(second, lambda given: given * scale, lambda given: given * given * scale, (at,))

    for first in (True, False):
        for second in (True, False):
            flags = [torch.tensor(flag, device=x.device) for flag in (first, second)]
            result = torch.cond(
                flags[0], lambda at, flag: inner(at, flag, 2.0), lambda at, flag: inner(at, flag, 5.0), (x, flags[1])
            )
            (found,) = torch.autograd.grad(result.sum(), x)
            scale = 2.0 if first else 5.0
            expected = torch.full_like(x, scale) if second else 2 * scale * x.detach()
            torch.testing.assert_close(found, expected)


@pytest.mark.covers(WRAPPED_SUITES)
def test_map_over_rows_has_the_gradient_of_each_row(engine: Engine, device: torch.device) -> None:
    """`map` over rows gives each row its gradient, and a shared operand the sum over rows."""
    over_rows = private.higher_order("map")
    rows = torch.arange(6.0, device=device).reshape(3, 2).requires_grad_()
    shared = torch.tensor([2.0, -1.0], device=device, requires_grad=True)

    result = over_rows(lambda row, other: row.square() * other, rows, shared)
    result.sum().backward()

    torch.testing.assert_close(result.detach(), (rows.detach().square() * shared.detach()))
    assert rows.grad is not None
    assert shared.grad is not None
    torch.testing.assert_close(rows.grad, 2 * rows.detach() * shared.detach())
    torch.testing.assert_close(shared.grad, rows.detach().square().sum(0))


@pytest.mark.covers(WRAPPED_SUITES)
@waived(
    Known("`scan` traces its gradient when it is called, and compiled autograd captures that trace", LIST, RuntimeError)
)
def test_scan_of_a_recurrence_has_its_gradient(engine: Engine, device: torch.device) -> None:
    """`scan` returns every state of a recurrence, and its gradient equals that of the equivalent loop."""
    scan = private.higher_order("scan")
    steps = torch.linspace(0.5, 1.5, 5, device=device).unsqueeze(1).requires_grad_()
    start = torch.tensor([0.25], device=device, requires_grad=True)

    def step(state: Tensor, given: Tensor) -> tuple[Tensor, Tensor]:
        new = (state * given).tanh()
        return new, new * 2

    def loop() -> tuple[Tensor, Tensor]:
        state, seen = start, []
        for given in steps:
            state, output = step(state, given)
            seen.append(output)
        return state, torch.stack(seen)

    wanted = loop()
    expected = torch.autograd.grad(wanted[0].sum() + wanted[1].sum(), [steps, start])
    found = scan(step, start, steps, dim=0)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
    gradients = torch.autograd.grad(found[0].sum() + found[1].sum(), [steps, start])
    for one, other in zip(gradients, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.covers(WRAPPED_SUITES)
def test_associative_scan_of_running_products_has_its_gradient(engine: Engine, device: torch.device) -> None:
    """`associative_scan` with multiplication equals `cumprod` in value and gradient."""
    associative_scan = private.higher_order("associative_scan")
    x = torch.tensor([[0.5, 2.0], [1.5, -1.0], [3.0, 0.25]], device=device, requires_grad=True)

    result = associative_scan(torch.mul, x, 0, combine_mode="generic")
    torch.testing.assert_close(result, x.cumprod(0))
    (found,) = torch.autograd.grad(result.sum(), x)
    torch.testing.assert_close(found, torch.autograd.grad(x.cumprod(0).sum(), x)[0])


@pytest.mark.covers(WRAPPED_SUITES)
def test_nested_compile_region_has_its_gradient_at_each_call(x: Tensor, engine: Engine) -> None:
    """A nested compile region has the correct gradient at each place it is called from."""

    @torch.compiler.nested_compile_region
    def region(at: Tensor) -> Tensor:
        return at.sin() * 2

    def twice(at: Tensor) -> Tensor:
        return region(region(at).exp())

    compiled: Any = torch.compile(twice, backend="aot_eager", fullgraph=True)
    result = compiled(x)
    result.sum().backward()

    at = x.detach()
    inner = (at.sin() * 2).exp()
    torch.testing.assert_close(result.detach(), inner.sin() * 2)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 * inner.cos() * inner * 2 * at.cos())
