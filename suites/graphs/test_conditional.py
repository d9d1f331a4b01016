"""Conditional nodes: parts of a graph that a replay runs only if a value on the device is true."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from suites import children

from .capturing import on_cuda

ROW = "test_cuda::TestCuda::test_cuda_graph_many_if_nodes_"

pytestmark = [on_cuda, pytest.mark.requires(torch=">=2.12", cuda=">=12.4", cuda_driver=">=12.4")]

POOL_KEPT = "torch takes a reference to the pool for each conditional node, and never drops it"
#: A change to how conditional captures end. No public issue names the reference.
ISSUE = "https://github.com/pytorch/pytorch/pull/195513"


@contextmanager
def only_if(condition: torch.Tensor) -> Iterator[None]:
    """Make the block within a capture the body of a conditional node."""
    graph = torch.cuda.CUDAGraph.get_currently_capturing_graph()
    graph.begin_capture_to_if_node(condition)
    try:
        yield
    finally:
        graph.end_capture_to_conditional_node()


def capture(device: torch.device, conditions: list[torch.Tensor], x: torch.Tensor) -> torch.cuda.CUDAGraph:
    """Capture a graph that adds 2^n for each true condition n, in order, within unconditional work."""
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        x.zero_()
        for number, condition in enumerate(conditions):
            with only_if(condition):
                x.add_(1 << number)
        x.mul_(3)
    return graph


def falses(count: int, device: torch.device) -> list[torch.Tensor]:
    return [torch.zeros((), dtype=torch.bool, device=device) for _ in range(count)]


@pytest.mark.covers(f"{ROW}in_one_graph")
def test_conditional_nodes_in_one_graph_run_by_their_conditions(device: torch.device) -> None:
    """Each conditional node runs according to its own condition, read in the replay; unconditional work always runs."""
    conditions, x = falses(20, device), torch.zeros(64, dtype=torch.int64, device=device)
    graph = capture(device, conditions, x)
    for choice in (0, 1, (1 << 20) - 1, 0b1010_1010_1010_1010_1010, 1 << 19, 0):
        for number, condition in enumerate(conditions):
            condition.fill_(bool(choice >> number & 1))
        graph.replay()
        assert (x == 3 * choice).all(), f"conditions {choice:b}"


@pytest.mark.covers(f"{ROW}across_graphs")
def test_conditional_nodes_of_several_graphs(device: torch.device) -> None:
    """Graphs have separate conditional nodes.

    Replays in any order, and the deletion of one graph, do not affect the others.
    """
    made = []
    for _ in range(10):
        conditions, x = falses(4, device), torch.zeros(64, dtype=torch.int64, device=device)
        made.append((capture(device, conditions, x), conditions, x))
    del made[4]
    for round_ in range(3):
        for index, (graph, conditions, x) in enumerate(reversed(made)):
            choice = (index + round_) % 16
            for number, condition in enumerate(conditions):
                condition.fill_(bool(choice >> number & 1))
            graph.replay()
            assert (x == 3 * choice).all()


@pytest.mark.leaks(POOL_KEPT, link=ISSUE)
def test_conditional_node_whose_condition_the_graph_computes(device: torch.device) -> None:
    """The graph itself may compute a condition before the node, from values of the replay."""
    x, limit = torch.zeros(64, device=device), torch.tensor(5.0, device=device)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
    (x.sum() > limit).item()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        condition = x.sum() > limit
        with only_if(condition):
            x.zero_()
        with only_if(~condition):
            x.add_(1)
    for start, expected in ((0.0, 1.0), (1.0, 0.0), (-3.0, -2.0)):
        x.fill_(start)
        graph.replay()
        assert (x == expected).all()


def test_conditional_node_within_a_conditional_node(device: torch.device) -> None:
    """A conditional body may contain another one: the inner body runs if both conditions are true."""
    outer, inner = falses(2, device)
    x = torch.zeros(8, dtype=torch.int64, device=device)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(device)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        x.zero_()
        with only_if(outer):
            x.add_(1)
            with only_if(inner):
                x.add_(10)
    for one in (False, True):
        for other in (False, True):
            outer.fill_(one)
            inner.fill_(other)
            graph.replay()
            assert (x == (1 + 10 * other if one else 0)).all()


LOSES_ITS_POOL = """
import torch
x, condition = torch.zeros(64, dtype=torch.int64, device=DEVICE), torch.zeros((), dtype=torch.bool, device=DEVICE)
torch.cuda.synchronize()
torch.cuda.empty_cache()
before = torch.cuda.memory_reserved()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph, capture_error_mode="thread_local"):
    doubled = x * 2
    graph.begin_capture_to_if_node(condition)
    x.add_(doubled)
    graph.end_capture_to_conditional_node()
captured = torch.cuda.memory_reserved()
del graph, doubled
torch.cuda.synchronize()
torch.cuda.empty_cache()
print(captured > before, torch.cuda.memory_reserved() - before)
"""


@pytest.mark.xfail(raises=AssertionError, strict=True, reason=f"{POOL_KEPT}: {ISSUE}")
@pytest.mark.own_process
def test_conditional_node_graph_that_is_deleted_frees_its_pool(device: torch.device) -> None:
    """After a graph with a conditional node is deleted, `empty_cache` releases its pool's memory.

    A child process captures it, since the pool stays for the rest of the process.
    """
    ((captured_more, kept),) = (line.split() for line in children.fork(LOSES_ITS_POOL, device).lines())
    assert captured_more == "True", "the graph has no memory of its own"
    assert kept == "0", f"{kept} bytes stay reserved"


def test_get_currently_capturing_graph_needs_a_capture() -> None:
    """Outside of a capture, `get_currently_capturing_graph` raises."""
    with pytest.raises(RuntimeError, match=r"(?i)captur"):
        torch.cuda.CUDAGraph.get_currently_capturing_graph()
