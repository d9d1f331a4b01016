"""Functional collectives, which return new tensors: values, gradients, and compiled code that contains them."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.nn import functional as differentiable

from ._torch_private import functional_collectives, functional_single
from .checking import Checks, expect_all_right
from .groups import GATE, grouped, worlds

pytestmark = [GATE, pytest.mark.timeout(60)]

#: The seconds by which a rank is late.
LATE = 0.1


def own(rank: Any, number: int | None = None, size: int = 6) -> torch.Tensor:
    """Return the input of a rank, on its device."""
    number = rank.number if number is None else number
    return (torch.arange(float(size)) + 10 * number).to(rank.device)


@grouped
def values(rank: Any) -> Checks:
    """Call each functional collective, and check that the input is unchanged."""
    checks = Checks(rank.number)
    functional = functional_collectives()
    group = dist.group.WORLD
    everything = [own(rank, number, 2 * rank.world) for number in range(rank.world)]
    given = everything[rank.number].clone()
    all_gather, reduce_scatter = functional_single("all_gather"), functional_single("reduce_scatter")
    total, whole = torch.stack(everything).sum(0), torch.cat(everything)
    for what, found, wanted in (
        ("all_reduce sum", functional.all_reduce(given, "sum", group), total),
        ("all_reduce max", functional.all_reduce(given, "max", group), torch.stack(everything).amax(0)),
        ("all_gather", all_gather(given, 0, group), whole),
        (
            "reduce_scatter",
            reduce_scatter(given, "sum", 0, group),
            total[2 * rank.number : 2 * rank.number + 2],
        ),
        ("broadcast", functional.broadcast(given, 1, group), everything[1]),
        (
            "all_to_all_single",
            functional.all_to_all_single(given, None, None, group),
            torch.cat([each[2 * rank.number : 2 * rank.number + 2] for each in everything]),
        ),
    ):
        checks.same(what, functional.wait_tensor(found) + 0, wanted)
        checks.same(f"{what}: its input", given, everything[rank.number])
    rows = torch.stack([given, given + 1])
    wanted = torch.cat([torch.stack([each, each + 1]) for each in everything], 1)
    checks.same("all_gather along dimension 1", all_gather(rows, 1, group) + 0, wanted)
    pairs = functional.all_reduce_coalesced([given, given * 2], "sum", group)
    checks.same("all_reduce_coalesced: first", pairs[0] + 0, total)
    checks.same("all_reduce_coalesced: second", pairs[1] + 0, total * 2)
    waiting = functional.all_reduce(given, "sum", group)
    checks.same("used without wait_tensor", waiting * 2, total * 2)
    if rank.number == 0:
        time.sleep(LATE)
    checks.same("used at once, with a late rank", functional.all_reduce(given, "sum", group) + 1, total + 1)
    return checks


@worlds(2, 3)
def test_functional_collectives_return_new_tensors(ranks: Any, world: int) -> None:
    """The result is a new tensor, which waits for its collective at its first use, and the input is unchanged."""
    expect_all_right(ranks.run(values, world=world))


@grouped
def derivatives(rank: Any) -> Checks:
    """Compare gradients through collectives with those of one process that has the inputs of all ranks."""
    checks = Checks(rank.number)
    weights = [torch.arange(6.0) % 3 + number + 1 for number in range(rank.world)]
    for name in ("all_reduce", "all_gather", "broadcast", "reduce_scatter"):
        inputs = [own(rank, number).cpu().requires_grad_() for number in range(rank.world)]
        given = own(rank).requires_grad_()
        weight = weights[rank.number].to(rank.device)
        if name == "all_reduce":
            found = differentiable.all_reduce(given)
            outputs = [torch.stack(inputs).sum(0)] * rank.world
        elif name == "all_gather":
            found = torch.stack(differentiable.all_gather(given)).sum(0).square()
            outputs = [torch.stack(inputs).sum(0).square()] * rank.world
        elif name == "broadcast":
            found = differentiable.broadcast(given, 1)
            outputs = [inputs[1] * 1.0] * rank.world
        else:
            parts = [given * (number + 1) for number in range(rank.world)]
            found = differentiable.reduce_scatter(torch.empty_like(given), parts)
            outputs = [torch.stack(inputs).sum(0) * (number + 1) for number in range(rank.world)]
        checks.same(name, found, outputs[rank.number])
        (found * weight).sum().backward()
        sum((output * each).sum() for output, each in zip(outputs, weights, strict=True)).backward()
        wanted = inputs[rank.number].grad
        wanted = torch.zeros(6) if wanted is None else wanted
        checks.true(f"{name}: gradient {given.grad}, expected {wanted}", torch.allclose(given.grad.cpu(), wanted))
    return checks


@pytest.mark.filterwarnings("ignore:torch.distributed.nn.functional:FutureWarning")
@worlds(2, 3)
def test_nn_functional_collectives_have_gradients(ranks: Any, world: int) -> None:
    """A sum's gradient goes to all ranks; gradients of gathered and broadcast tensors add up at their source."""
    expect_all_right(ranks.run(derivatives, world=world))


@grouped
def functional_derivatives(rank: Any) -> Checks:
    """Check gradients through functional collectives that only move or add."""
    checks = Checks(rank.number)
    group = dist.group.WORLD
    size = 2 * rank.world
    everything = [own(rank, number, size).cpu() for number in range(rank.world)]
    weights = [torch.arange(float(size)) % 3 + number + 1 for number in range(rank.world)]
    wholes = [torch.arange(float(size * rank.world)) % 5 + number for number in range(rank.world)]
    mine = slice(size * rank.number, size * (rank.number + 1))
    for what, call, given_weights, wanted in (
        ("all_gather", lambda given: functional_single("all_gather", "_autograd")(given, 0, group), wholes, None),
        (
            "reduce_scatter",
            lambda given: functional_single("reduce_scatter", "_autograd")(given, "sum", 0, group),
            [weight[:2] for weight in weights],
            torch.cat([weight[:2] for weight in weights]),
        ),
        (
            "all_to_all_single",
            lambda given: functional_collectives().all_to_all_single_autograd(given, None, None, group),
            weights,
            torch.cat([weight[2 * rank.number : 2 * rank.number + 2] for weight in weights]),
        ),
    ):
        if wanted is None:
            wanted = sum(whole[mine] for whole in wholes)
        given = everything[rank.number].clone().to(rank.device).requires_grad_()
        (call(given) * given_weights[rank.number].to(rank.device)).sum().backward()
        checks.true(f"{what}: gradient {given.grad}, expected {wanted}", torch.equal(given.grad.cpu(), wanted))
    return checks


@worlds(2, 3)
def test_all_gather_single_autograd_and_others_return_gradients_to_their_ranks(ranks: Any, world: int) -> None:
    """Gradients of a tensor that all ranks gathered add up, and those of sent tensors return to their ranks."""
    expect_all_right(ranks.run(functional_derivatives, world=world))


@grouped
def compiled(rank: Any, compiler: str) -> Checks:
    """Compile a function with collectives between operators, one of them in place, as one graph.

    A single function is compiled, since Inductor takes seconds for each kernel.
    """
    checks = Checks(rank.number)
    functional = functional_collectives()
    group = dist.group.WORLD
    all_gather = functional_single("all_gather")

    def calculation(given: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(given.sin(), "sum", group)
        product = total * (given + 1)
        dist.all_reduce(product)
        gathered = all_gather(product - given, 0, group)
        return gathered.cos()

    given = own(rank).double()
    graph = torch.compile(calculation, backend=compiler, fullgraph=True)
    for turn in range(2):
        expected, found = calculation(given + turn) + 0, graph(given + turn) + 0
        if compiler == "aot_eager":
            checks.same(f"compiled, call {turn}", found, expected)
        else:  # Inductor has its own sine and cosine
            checks.true(f"compiled, call {turn}", torch.allclose(found, expected, rtol=1e-12, atol=1e-12))
    everything = [own(rank, number).double() for number in range(rank.world)]
    total = sum(each.sin() for each in everything)
    product = sum(total * (each + 1) for each in everything)
    whole = torch.cat([product - each for each in everything]).cos()
    checks.true("the value", torch.allclose(graph(given) + 0, whole, rtol=1e-12, atol=1e-12))
    return checks


@worlds(2)
def test_torch_compile_keeps_collectives_in_the_graph(ranks: Any, world: int) -> None:
    """One graph, without a break, contains the collectives, and gives the same bits as calls outside the graph."""
    expect_all_right(ranks.run(compiled, "aot_eager", world=world))


@pytest.mark.extended
@pytest.mark.timeout(300)  # each rank compiles
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # Inductor's import
@worlds(2)
def test_torch_compile_with_inductor_keeps_collectives_in_the_graph(ranks: Any, world: int) -> None:
    """Code that Inductor generates around collectives gives the results of calls outside it."""
    expect_all_right(ranks.run(compiled, "inductor", world=world))
