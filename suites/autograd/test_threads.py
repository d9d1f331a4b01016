"""Backward passes in several threads."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch.autograd import Function

from ..threads import together
from .engines import Engine, Known, waived
from .functions import apply, square

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"

THREADS = 4

ONE_AT_A_TIME = Known(
    "only one pass is captured at a time, and a concurrent one raises instead of waiting",
    "https://github.com/pytorch/pytorch/pull/103822",
    NotImplementedError,
    always=False,
)


@pytest.mark.covers(ROW)
@waived(ONE_AT_A_TIME)
def test_backward_in_threads_over_graphs_of_their_own(engine: Engine, device: torch.device) -> None:
    """Threads run backward passes over separate graphs concurrently, and each gets its own gradients."""
    found: list[list[float] | None] = [None] * THREADS

    def work(number: int) -> None:
        x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
        (square(x) * (number + 1)).sum().backward()
        found[number] = None if x.grad is None else x.grad.tolist()

    together.run(THREADS, work)

    assert found == [[2.0 * n, 4.0 * n] for n in range(1, THREADS + 1)]
    engine.still_works()


def test_backward_in_a_thread_over_a_graph_made_elsewhere(engine: Engine, device: torch.device) -> None:
    """A graph recorded in one thread can be traversed in another, whatever the grad mode of either.

    Grad modes are per thread, and a new thread starts with recording enabled.
    """
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    modes: list[bool] = []
    graphs: list[torch.Tensor] = []

    def work(number: int) -> None:
        modes.append(torch.is_grad_enabled())
        if number == 0:
            graphs.append((x * x).sum())

    with torch.no_grad():
        together.run(THREADS, work)
        graphs[0].backward()

    assert modes == [True] * THREADS
    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 4.0]


@waived(ONE_AT_A_TIME)
def test_autograd_grad_of_one_graph_in_several_threads(engine: Engine, device: torch.device) -> None:
    """Concurrent `autograd.grad` calls on one retained graph all return the same gradients."""
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    y = (x.exp() * x).sum()
    found: list[torch.Tensor | None] = [None] * THREADS

    def work(number: int) -> None:
        (found[number],) = torch.autograd.grad(y, x, retain_graph=True)

    together.run(THREADS, work)

    (expected,) = torch.autograd.grad(y, x)
    for one in found:
        assert one is not None
        assert torch.equal(one, expected)
    engine.still_works()


class OwnError(Exception):
    """Raised by one thread's backward."""


@pytest.mark.covers(ROW)
@waived(ONE_AT_A_TIME)
def test_backward_error_stays_in_its_thread(engine: Engine, device: torch.device) -> None:
    """An exception in one thread's pass is raised in that thread, and the other passes complete."""
    good: list[int] = []

    class Refuse(Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 1

        @staticmethod
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            raise OwnError("in one thread")

    def work(number: int) -> None:
        x = torch.ones(2, device=device, requires_grad=True)
        if number == 1:
            apply(Refuse, x).sum().backward()
        else:
            (x * 2).sum().backward()
            good.append(number)

    with pytest.raises(OwnError, match="in one thread"):
        together.run(THREADS, work)

    assert sorted(good) == [0, 2, 3]
    engine.still_works()


@waived(ONE_AT_A_TIME)
def test_backward_hooks_run_in_the_calling_thread(engine: Engine) -> None:
    """On the CPU, a pass runs in the thread that called `backward`, and so do its hooks."""
    called: dict[int, int] = {}

    def work(number: int) -> None:
        x = torch.ones(2, requires_grad=True)
        y = x * 2
        y.register_hook(lambda gradient: called.__setitem__(number, threading.get_ident()))
        y.sum().backward()
        assert called[number] == threading.get_ident()

    together.run(THREADS, work)

    assert len(called) == THREADS
    engine.still_works()
