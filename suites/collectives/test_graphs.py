"""Collectives in CUDA graphs: captured once, replayed with other contents, and mixed with eager collectives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from . import groups
from ._torch_private import coalescing_manager
from .checking import Checks, expect_all_right
from .groups import connect, grouped, total, worlds

pytestmark = [groups.NCCL, pytest.mark.timeout(60)]

SIZE = 1000


@grouped
def one_captured(rank: Any) -> Checks:
    """Capture one collective between other work, and change its input between replays."""
    checks = Checks(rank.number)
    connect(rank)
    given = torch.zeros(SIZE, device=rank.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        sent = given * (rank.number + 1)
        dist.all_reduce(sent)
        result = sent + 1
    for turn in range(4):
        given.fill_(turn + 1.0)
        graph.replay()
        torch.cuda.synchronize()
        checks.same(f"replay {turn}", result, torch.full((SIZE,), total(rank) * (turn + 1) + 1))
    return checks


@worlds(2, 3)
def test_all_reduce_is_replayed_with_what_its_input_holds(ranks: Any, world: int) -> None:
    """Each replay reduces the current inputs of all ranks; the capture alone does nothing."""
    expect_all_right(ranks.run(one_captured, world=world))


@grouped
def many_captured(rank: Any) -> Checks:
    """Capture every kind of collective in one graph."""
    checks = Checks(rank.number)
    connect(rank)
    world, number = rank.world, rank.number
    given = torch.zeros(SIZE, device=rank.device)
    whole = torch.zeros(SIZE * world, device=rank.device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        summed = given + number
        dist.all_reduce(summed)
        sent = given * (number + 1)
        dist.broadcast(sent, world - 1)
        gathered = torch.zeros(SIZE * world, device=rank.device)
        groups.all_gather_single(gathered, given + 10 * number)
        scattered = torch.zeros(SIZE, device=rank.device)
        groups.reduce_scatter_single(scattered, whole + number)
        exchanged = torch.zeros(SIZE * world, device=rank.device)
        dist.all_to_all_single(exchanged, whole + 100 * number)
        reduced = given + number
        dist.reduce(reduced, 0)
    for turn in range(3):
        given.fill_(turn)
        whole.copy_(torch.arange(SIZE * world, device=rank.device) // SIZE + turn)
        graph.replay()
        torch.cuda.synchronize()
        ranks, ones = range(world), torch.ones(SIZE)
        checks.same(f"all_reduce, replay {turn}", summed, ones * (turn * world + sum(ranks)))
        checks.same(f"broadcast, replay {turn}", sent, ones * (turn * world))
        checks.same(f"all_gather, replay {turn}", gathered, torch.cat([ones * (turn + 10 * other) for other in ranks]))
        checks.same(f"reduce_scatter, replay {turn}", scattered, ones * ((number + turn) * world + sum(ranks)))
        expected = torch.cat([ones * (number + turn + 100 * other) for other in ranks])
        checks.same(f"all_to_all, replay {turn}", exchanged, expected)
        if number == 0:
            checks.same(f"reduce, replay {turn}", reduced, ones * (turn * world + sum(ranks)))
    return checks


@worlds(2, 3)
def test_broadcast_and_others_are_replayed_in_one_graph(ranks: Any, world: int) -> None:
    """A graph with several collectives of one communicator gives all their results at each replay."""
    expect_all_right(ranks.run(many_captured, world=world))


@grouped
def on_side_streams(rank: Any) -> Checks:
    """Fork a capture to other streams with a collective each, and join them."""
    checks = Checks(rank.number)
    other = dist.new_group(list(range(rank.world)))
    connect(rank)
    connect(rank, other)
    given = torch.zeros(SIZE, device=rank.device)
    sides = [torch.cuda.Stream() for _ in range(2)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first, second = given + 1, given + 2
        current = torch.cuda.current_stream()
        for side, each, group in zip(sides, (first, second), (None, other), strict=True):
            side.wait_stream(current)
            with torch.cuda.stream(side):
                dist.all_reduce(each, group=group)
        work = dist.all_reduce(third := given + 3, async_op=True)
        beside = given * 5
        work.wait()
        for side in sides:
            current.wait_stream(side)
        result = first + second + third + beside
    for turn in range(3):
        given.fill_(turn)
        graph.replay()
        torch.cuda.synchronize()
        checks.same(f"replay {turn}", result, torch.full((SIZE,), rank.world * (3.0 * turn + 6) + 5 * turn))
    return checks


@worlds(2, 3)
def test_async_op_and_side_streams_are_captured(ranks: Any, world: int) -> None:
    """Collectives on forked streams, and asynchronous ones, of two groups are part of the graph, in their order."""
    expect_all_right(ranks.run(on_side_streams, world=world))


@grouped
def beside_eager_ones(rank: Any) -> Checks:
    """Replay two graphs of one communicator in turn, with eager collectives between their replays."""
    checks = Checks(rank.number)
    connect(rank)
    given = torch.zeros(SIZE, device=rank.device)
    graphs, results = [torch.cuda.CUDAGraph() for _ in range(2)], []
    for place, graph in enumerate(graphs):
        with torch.cuda.graph(graph):
            results.append(given + place)
            dist.all_reduce(results[-1])
    for turn in range(4):
        given.fill_(turn)
        graphs[turn % 2].replay()
        dist.all_reduce(eager := given * 10)
        graphs[(turn + 1) % 2].replay()
        torch.cuda.synchronize()
        checks.same(f"eager all_reduce, turn {turn}", eager, torch.full((SIZE,), 10.0 * turn * rank.world))
        for place, result in enumerate(results):
            expected = torch.full((SIZE,), float((turn + place) * rank.world))
            checks.same(f"all_reduce of graph {place}, turn {turn}", result, expected)
    return checks


@worlds(2, 3)
def test_all_reduce_runs_between_replays_of_two_graphs(ranks: Any, world: int) -> None:
    """Replays and eager collectives of one communicator keep the order of the stream."""
    expect_all_right(ranks.run(beside_eager_ones, world=world))


@grouped
def messages_captured(rank: Any) -> Checks:
    """Capture a ring of messages, and coalesced collectives."""
    checks = Checks(rank.number)
    connect(rank)
    after, before = (rank.number + 1) % rank.world, (rank.number - 1) % rank.world
    sent, got = (torch.zeros(SIZE, device=rank.device) for _ in range(2))

    def ring() -> None:
        operations = [dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, got, before)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    ring()
    torch.cuda.synchronize()
    parts = [torch.zeros(size, device=rank.device) for size in (1, SIZE)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ring()
        result = got * 2
        with coalescing_manager()(device=rank.device):
            for part in parts:
                dist.all_reduce(part)
    for turn in range(3):
        sent.fill_(rank.number + 10.0 * turn)
        for part in parts:
            part.fill_(turn + 1.0)
        graph.replay()
        torch.cuda.synchronize()
        checks.same(f"ring, replay {turn}", result, torch.full((SIZE,), 2.0 * before + 20 * turn))
        for part in parts:
            expected = torch.full((len(part),), (turn + 1.0) * rank.world)
            checks.same(f"coalesced all_reduce of {len(part)}, replay {turn}", part, expected)
    return checks


@worlds(2, 3)
def test_batch_isend_irecv_and_coalescing_are_captured(ranks: Any, world: int) -> None:
    """Messages in both directions, and several collectives in one call, are replayed."""
    expect_all_right(ranks.run(messages_captured, world=world))


@grouped
def trained(rank: Any) -> Checks:
    """Capture a whole step of data-parallel training, and compare it with the same steps in one process."""
    checks = Checks(rank.number)
    connect(rank)

    def model(device: torch.device) -> torch.nn.Linear:
        made = torch.nn.Linear(4, 2, dtype=torch.float64, device=device)
        with torch.no_grad():
            for place, each in enumerate(made.parameters()):
                each.copy_((torch.arange(each.numel()).view(each.shape) % 5 - 2) / (place + 2))
        return made

    def batch(number: int, turn: int) -> torch.Tensor:
        return ((torch.arange(12).view(3, 4) * (number + 1) + turn) % 7).double()

    own, given = model(rank.device), torch.zeros(3, 4, dtype=torch.float64, device=rank.device)
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        own(given).square().sum().backward()
        own.zero_grad()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        own(given).square().sum().backward()
        for each in own.parameters():
            assert each.grad is not None
            dist.all_reduce(each.grad)
            with torch.no_grad():
                each.sub_(each.grad, alpha=0.001)
            each.grad.zero_()
    alone = model(torch.device("cpu"))
    for turn in range(3):
        given.copy_(batch(rank.number, turn))
        graph.replay()
        sum(alone(batch(number, turn)).square().sum() for number in range(rank.world)).backward()  # type: ignore[union-attr]
        with torch.no_grad():
            for each in alone.parameters():
                assert each.grad is not None
                each.sub_(each.grad, alpha=0.001)
                each.grad = None
    torch.cuda.synchronize()
    for name, each in own.named_parameters():
        close = torch.allclose(each.detach().cpu(), alone.get_parameter(name).detach(), rtol=1e-12, atol=1e-12)
        checks.true(f"{name} after three replays", close)
    return checks


@worlds(2, 3)
def test_all_reduce_of_gradients_is_captured_with_the_step(ranks: Any, world: int) -> None:
    """Forward, backward, reduction and update in one graph train like one process with all batches."""
    expect_all_right(ranks.run(trained, world=world))
