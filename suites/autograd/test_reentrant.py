"""Reentrant backward passes, and callbacks at the end of a pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import Function

from . import _torch_private as private
from .engines import Engine, as_one_graph
from .functions import apply

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"


def nesting(work: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> type[Function]:
    """Return a function that keeps its input as a separate leaf and whose backward is `work(leaf, gradient)`."""

    class Nesting(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.leaf = x.detach().requires_grad_()
            return x * 1

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            return work(ctx.leaf, gradients[0])

    return Nesting


@pytest.mark.covers(ROW)
def test_reentrant_backward_gives_both_gradients(engine: Engine, device: torch.device) -> None:
    """A backward may run another pass; the gradients of both passes are correct."""

    def of_square(leaf: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            (leaf * leaf).sum().backward()
        assert leaf.grad is not None
        return gradient * leaf.grad

    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    (apply(nesting(of_square), x * 3) * 2).sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [36.0, 72.0]


@pytest.mark.covers(ROW)
def test_is_grad_enabled_in_a_backward_only_with_create_graph(engine: Engine, device: torch.device) -> None:
    """A backward runs with grad mode off unless `create_graph` is set.

    Grad mode that the backward enables itself does not leak out.
    """
    seen: list[bool] = []

    def look(leaf: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        seen.append(torch.is_grad_enabled())
        with torch.enable_grad():
            seen.append((leaf * 2).requires_grad)
        seen.append(torch.is_grad_enabled())
        return gradient

    x = torch.ones(2, device=device, requires_grad=True)
    apply(nesting(look), x).sum().backward()

    assert seen == [False, True, False]
    assert torch.is_grad_enabled()

    seen.clear()
    torch.autograd.grad(apply(nesting(look), x).sum(), x, create_graph=True)
    assert seen == [True, True, True]


class OwnError(Exception):
    """Raised in the inner pass."""


@pytest.mark.covers(ROW)
def test_reentrant_backward_error_ends_both_passes(engine: Engine, device: torch.device) -> None:
    """An exception in an inner pass propagates unchanged from the outer one."""

    def refuse(leaf: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        raise OwnError("in the inner pass")

    def run_another(leaf: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        with torch.enable_grad():
            apply(nesting(refuse), leaf).sum().backward()
        return gradient

    x = torch.ones(2, device=device, requires_grad=True)

    with pytest.raises(OwnError, match="in the inner pass"):
        apply(nesting(run_another), x).sum().backward()
    assert x.grad is None
    engine.still_works()


DEPTH = 20


def test_reentrant_backward_many_deep(engine: Engine, device: torch.device) -> None:
    """Passes nest to large depths, each with the gradients of its own graph."""

    class Deep(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, left: int) -> torch.Tensor:
            ctx.left = left
            ctx.x = x.detach()
            return x * 2

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
            if not ctx.left:
                return gradients[0] * 2, None
            with torch.enable_grad():
                leaf = ctx.x.requires_grad_()
                apply(Deep, leaf, ctx.left - 1).sum().backward()
            return leaf.grad + 1, None

    x = torch.ones(1, device=device, requires_grad=True)
    apply(Deep, x, DEPTH).sum().backward()

    assert x.grad is not None
    assert x.grad.item() == 2.0 + DEPTH


@as_one_graph
def test_queue_callback_runs_when_the_pass_has_ended(engine: Engine, device: torch.device) -> None:
    """A queued callback runs once, after the pass has written all gradients and before `backward` returns.

    The next pass does not run it.
    """
    x = torch.ones(2, device=device, requires_grad=True)
    y = x * 2
    seen: list[torch.Tensor | None] = []

    def at_the_end() -> None:
        seen.append(None if x.grad is None else x.grad.clone())

    handle = y.register_hook(lambda gradient: private.queue_callback(at_the_end))
    (y * 3).sum().backward(retain_graph=True)
    assert [None if one is None else one.tolist() for one in seen] == [[6.0, 6.0]]

    handle.remove()
    (x * 2).sum().backward()
    assert len(seen) == 1


def test_queue_callback_outside_of_a_pass_is_an_error(engine: Engine) -> None:
    """Queueing a callback outside of a backward pass raises."""
    with pytest.raises(RuntimeError, match="Final callbacks can only be installed during backward pass"):
        private.queue_callback(lambda: None)
    engine.still_works()
