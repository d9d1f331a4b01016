"""Programs (see `race_programs`) about the host's own use of memory, graphs, compiled kernels and collectives."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tests.sim.simcuda.race_programs import (
    Memory,
    Program,
    is_ordered,
    races,
    reuses,
)

# The host's own use of pinned memory.


def _copied(m: Memory) -> torch.Tensor:
    """Return pinned memory into which a copy is under way."""
    with torch.cuda.stream(m.side):
        m.x.add_(1)
        return m.x.to("cpu", non_blocking=True)


@races
def result_read_before_the_copy_is_done() -> object:
    m = Memory()
    return _copied(m).sum(), m


@races
def result_read_by_numpy() -> object:
    m = Memory()
    return _copied(m).numpy().sum(), m


@races
def result_changed_before_the_copy_is_done() -> object:
    m = Memory()
    _copied(m).zero_()
    return m


@races
def result_read_after_a_wait_of_another_stream() -> object:
    m = Memory()
    result = _copied(m)
    torch.cuda.current_stream().synchronize()
    return result.tolist(), m


@races
def result_read_in_another_thread() -> object:
    m = Memory()
    result = _copied(m)
    thread = threading.Thread(target=result.sum)
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    return m


@races
def input_filled_again_before_the_copy_is_done() -> object:
    m = Memory()
    m.x.copy_(m.pinned, non_blocking=True)
    m.pinned.fill_(7)
    return m


@races
def result_of_a_graph_read_too_early() -> object:
    m = Memory()
    graph = _captured(lambda: m.pinned.copy_(m.x, non_blocking=True))
    graph.replay()
    return m.pinned.sum(), graph, m


@is_ordered
def result_read_after_a_synchronisation() -> object:
    m = Memory()
    result = _copied(m)
    m.side.synchronize()
    return result.sum(), m


@is_ordered
def result_read_after_an_event() -> object:
    m = Memory()
    result = _copied(m)
    m.side.record_event().synchronize()
    return result.sum(), m


@is_ordered
def result_of_a_copy_that_blocks() -> object:
    m = Memory()
    return m.x.add_(1).cpu().sum(), m.pinned.copy_(m.x).sum(), m


@is_ordered
def input_read_while_it_is_copied() -> object:
    m = Memory()
    m.x.copy_(m.pinned, non_blocking=True)
    return m.pinned.sum(), m


@is_ordered
def other_half_of_a_pinned_buffer() -> object:
    m = Memory()
    m.pinned[:16].copy_(m.x[:16], non_blocking=True)
    return m.pinned[16:].sum(), m


@is_ordered
def pinned_buffers_in_turn() -> object:
    m = Memory()
    for value in range(8):
        batch = torch.full((32, 32), float(value)).pin_memory()
        m.x.copy_(batch, non_blocking=True)
        m.x.add_(1)
    return m


@is_ordered
def result_of_a_graph_read_after_a_wait() -> object:
    m = Memory()
    graph = _captured(lambda: m.pinned.copy_(m.x, non_blocking=True))
    graph.replay()
    torch.cuda.synchronize()
    return m.pinned.sum(), graph, m


@is_ordered
def pinned_memory_used_by_a_function_of_the_stream() -> object:
    m = Memory()
    result, seen = _copied(m), []
    address = ctypes.cast(result.data_ptr(), ctypes.POINTER(ctypes.c_float))
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: seen.append(address[0]))
    assert ctypes.CDLL(None).cudaLaunchHostFunc(ctypes.c_void_p(m.side.cuda_stream), function, None) == 0
    m.side.synchronize()
    assert seen == [2.0]
    return result, m


# Graphs.


def _captured(work: Program, **more: object) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, **more):  # type: ignore[arg-type]
        work()
    return graph


@races
def branches_of_a_graph() -> object:
    m, other = Memory(), torch.cuda.Stream()

    def work() -> None:
        current = torch.cuda.current_stream()
        other.wait_stream(current)
        with torch.cuda.stream(other):
            m.x.add_(1)
        m.x.mul_(2)
        current.wait_stream(other)

    graph = _captured(work)
    graph.replay()
    return graph, m


@is_ordered
def branches_of_a_graph_on_other_memory() -> object:
    m, other = Memory(), torch.cuda.Stream()

    def work() -> None:
        current = torch.cuda.current_stream()
        other.wait_stream(current)
        with torch.cuda.stream(other):
            m.y.add_(1)
        m.x.mul_(2)
        current.wait_stream(other)
        m.x.add_(m.y)

    graph = _captured(work)
    graph.replay()
    graph.replay()
    return graph, m


@races
def read_beside_a_replay() -> object:
    m = Memory()
    graph = _captured(lambda: m.x.add_(1))
    with torch.cuda.stream(m.side):
        graph.replay()
    return m.x * 2, graph, m


@races
def input_changed_beside_a_replay() -> object:
    m = Memory()
    graph = _captured(lambda: m.y.copy_(m.x))
    with torch.cuda.stream(m.side):
        graph.replay()
    m.x.fill_(2)
    return graph, m


@races
def graphs_of_one_pool_at_once() -> object:
    m = Memory()
    pool = torch.cuda.graph_pool_handle()
    graphs = [_captured(lambda: (m.y * 2 + 1).sum(), pool=pool) for _ in range(2)]
    graphs[0].replay()
    with torch.cuda.stream(m.side):
        graphs[1].replay()
    return graphs, m


@is_ordered
def graphs_of_one_pool_in_turn() -> object:
    m = Memory()
    pool = torch.cuda.graph_pool_handle()
    graphs = [_captured(lambda: (m.y * 2 + 1).sum(), pool=pool) for _ in range(2)]
    for graph in graphs * 2:
        graph.replay()
    return graphs, m


@is_ordered
def replays_on_two_streams_in_turn() -> object:
    """CUDA orders the launches of one graph."""
    m = Memory()
    graph = _captured(lambda: m.x.add_(1))
    graph.replay()
    with torch.cuda.stream(m.side):
        graph.replay()
    torch.cuda.current_stream().wait_stream(m.side)
    return m.x * 2, graph, m


@is_ordered
def graphed_callable() -> object:
    layer = torch.nn.Linear(8, 8, device="cuda")
    sample = torch.ones(4, 8, device="cuda")
    graphed: Any = torch.cuda.make_graphed_callables(layer, (sample,))
    for _ in range(2):
        graphed(sample).sum().backward()
    return graphed


def _graph_of_a_freed_input() -> tuple[torch.cuda.CUDAGraph, Memory]:
    m, given = Memory(), [torch.ones(1 << 20, device="cuda")]
    graph = _captured(lambda: m.x.add_(given[0][0]))
    given.clear()
    return graph, m


@reuses
def input_freed_before_a_replay() -> object:
    graph, m = _graph_of_a_freed_input()
    graph.replay()
    return graph, m


@reuses
def input_given_to_another_tensor_before_a_replay() -> object:
    graph, m = _graph_of_a_freed_input()
    other = torch.zeros(1 << 20, device="cuda")
    graph.replay()
    return other, graph, m


@reuses
def output_freed_before_a_replay() -> object:
    m, result = Memory(), [torch.zeros(32, 32, device="cuda")]
    graph = _captured(lambda: torch.mul(m.x, 2, out=result[0]))
    graph.replay()
    result.clear()
    graph.replay()
    return graph, m


@is_ordered
def output_of_a_graph_freed_before_a_replay() -> object:
    """It is in the graph's own pool, which keeps the memory."""
    m, result = Memory(), []
    graph = _captured(lambda: result.append(m.x * 2))
    graph.replay()
    result.clear()
    graph.replay()
    return graph, m


@is_ordered
def input_filled_between_replays() -> object:
    m = Memory()
    given = torch.ones(1 << 20, device="cuda")
    graph = _captured(lambda: m.x.add_(given[0]))
    for value in range(3):
        given.fill_(value)
        graph.replay()
    return graph, given, m


# Kernels that torch's compiler generates.


def _beside_a_write(function: Callable[[torch.Tensor], object], *, rows: int = 32, waits: bool = False) -> object:
    """Run a compiled function on `x` while a side stream changes the last rows of `x`."""
    m = Memory()
    compiled = torch.compile(function)
    compiled(m.y)  # compiles it
    torch.cuda.synchronize()
    with torch.cuda.stream(m.side):
        m.x[-rows:].add_(1)
    if waits:
        torch.cuda.current_stream().wait_stream(m.side)
    return compiled(m.x), m


@races
def read_by_a_compiled_function() -> object:
    return _beside_a_write(lambda x: x.sin() + 1)


@races
def write_by_a_compiled_function() -> object:
    return _beside_a_write(lambda x: x.mul_(2).add_(1))


@races
def reduction_by_a_compiled_function() -> object:
    return _beside_a_write(lambda x: (x * 2).sum(1), rows=1)


@races
def indices_of_a_compiled_function() -> object:
    """Which rows it reads is known on the device only: it may be any."""
    rows = torch.arange(0, 32, 3, device="cuda")
    return _beside_a_write(lambda x: x[rows] * 2 + 1)


@is_ordered
def compiled_function_after_a_wait() -> object:
    return _beside_a_write(lambda x: x.sin() + 2, waits=True)


@is_ordered
def compiled_function_of_other_rows() -> object:
    return _beside_a_write(lambda x: x[:16].sin() + 3, rows=16)


@is_ordered
def compiled_function_of_other_columns() -> object:
    m = Memory()
    compiled = torch.compile(lambda x: x[:, ::2].sin() + 4)
    compiled(m.y)
    torch.cuda.synchronize()
    with torch.cuda.stream(m.side):
        m.x[:, 1::2].add_(1)
    return compiled(m.x), m


@is_ordered
def training_of_a_compiled_model() -> object:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.Linear(16, 1)).cuda()
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        compiled(torch.randn(4, 8).pin_memory().cuda(non_blocking=True)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


# Collectives, which run on streams of their own.


def _all_reduced(*, waits: bool) -> object:
    m = Memory()
    work = dist.all_reduce(m.x, async_op=True)
    assert work is not None
    if waits:
        work.wait()
    return m.x * 2, work, m


@races
def collective_without_a_wait() -> object:
    return _all_reduced(waits=False)


@is_ordered
def collective_with_a_wait() -> object:
    return _all_reduced(waits=True)


@races
def input_of_a_collective_changed() -> object:
    m = Memory()
    gathered = torch.zeros(32, 32, device="cuda")
    work = dist.all_gather_into_tensor(gathered, m.x, async_op=True)
    m.x.zero_()
    return gathered, work, m


@is_ordered
def distributed_data_parallel() -> object:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 8).cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        model(torch.ones(4, 8, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return model
