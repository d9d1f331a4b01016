"""Small programs with and without an order between streams, for the check for races.

``python -m tests.sim.simcuda.race_programs`` runs them all in one process with ``SIMCUDA_CHECK=races``, and prints a
JSON object: by program, the kinds of the findings that it has caused. No program depends on the time that work takes.
"""

from __future__ import annotations

import ctypes
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

Program = Callable[[], object]

#: Programs by name, with the kind of the finding that each causes; "" for none.
PROGRAMS: dict[str, tuple[str, Program]] = {}
RACE, REUSED, NOTHING = "race", "used after it was freed", ""


def add(name: str, kind: str, program: Program) -> None:
    assert name not in PROGRAMS
    PROGRAMS[name] = kind, program


def races(program: Program, kind: str = RACE) -> Program:
    add(program.__name__, kind, program)  # type: ignore[attr-defined]
    return program


def reuses(program: Program) -> Program:
    return races(program, REUSED)


def is_ordered(program: Program) -> Program:
    return races(program, NOTHING)


class Memory:
    """Tensors that the work of a program uses. Nothing is pending on them."""

    def __init__(self) -> None:
        self.x = torch.ones(32, 32, device="cuda")
        self.y = torch.ones(32, 32, device="cuda")
        self.rows = torch.arange(0, 32, 2, device="cuda")
        self.pinned = torch.ones(32, 32).pin_memory()
        self.side = torch.cuda.Stream()
        torch.cuda.synchronize()


WRITERS: dict[str, Callable[[Memory], object]] = {
    "add_": lambda m: m.x.add_(1),
    "fill_": lambda m: m.x.fill_(3),
    "zero_": lambda m: m.x.zero_(),
    "copy_ from a device": lambda m: m.x.copy_(m.y),
    "copy_ from pinned memory": lambda m: m.x.copy_(m.pinned, non_blocking=True),
    "copy_ of other strides": lambda m: m.x.copy_(m.y.t()),
    "copy_ of another type": lambda m: m.x.copy_(m.rows[:, None].expand(16, 32).repeat(2, 1)),
    "out=": lambda m: torch.add(m.y, 1, out=m.x),
    "mm out=": lambda m: torch.mm(m.y, m.y, out=m.x),
    "uniform_": lambda m: m.x.uniform_(),
    "index_fill_": lambda m: m.x.index_fill_(0, m.rows, 7.0),
    "assignment to a slice": lambda m: m.x.__setitem__(slice(4, 8), 1.0),
    "one column": lambda m: m.x[:, 3].add_(1),
    "foreach": lambda m: torch._foreach_add_([m.y, m.x], 1.0),
    "masked_fill_": lambda m: m.x.masked_fill_(m.y > 0, 2.0),
}
READERS: dict[str, Callable[[Memory], object]] = {
    "mul": lambda m: m.x * 2,
    "sum": lambda m: m.x.sum(),
    "clone": lambda m: m.x.clone(),
    "mm": lambda m: m.x @ m.y,
    "softmax": lambda m: torch.softmax(m.x, 0),
    "index": lambda m: m.x[m.rows],
    "double": lambda m: m.x.double(),
    "cat": lambda m: torch.cat([m.y, m.x]),
    "where": lambda m: torch.where(m.y > 0, m.x, m.y),
    "to pinned memory": lambda m: m.pinned.copy_(m.x, non_blocking=True),
    "transposed": lambda m: m.x.t() + 1,
    "sort": lambda m: m.x.sort(),
}


def _without_order(first: Callable[[Memory], object], second: Callable[[Memory], object]) -> Program:
    def program() -> object:
        m = Memory()
        with torch.cuda.stream(m.side):
            kept = first(m)
        return kept, second(m), m

    return program


for _name, _writer in WRITERS.items():
    add(f"write by {_name}, then a read", RACE, _without_order(_writer, READERS["mul"]))
    add(f"a read, then a write by {_name}", RACE, _without_order(READERS["mul"], _writer))
for _name, _reader in READERS.items():
    if _name != "mul":
        add(f"a write, then a read by {_name}", RACE, _without_order(WRITERS["add_"], _reader))
for _name in ("add_", "fill_", "out="):
    add(f"a write, then a write by {_name}", RACE, _without_order(WRITERS["add_"], WRITERS[_name]))


# Ways to order two pieces of work: between the first one, on the side stream, and the second one.


def _by_event(m: Memory) -> None:
    m.side.record_event().wait()


def _by_host_and_event(m: Memory) -> None:
    m.side.record_event().synchronize()


def _by_query(m: Memory) -> None:
    event = m.side.record_event()
    while not event.query():
        pass


def _by_stream_query(m: Memory) -> None:
    while not m.side.query():
        pass


def _by_third_stream(m: Memory) -> None:
    third = torch.cuda.Stream()
    third.wait_stream(m.side)
    torch.cuda.current_stream().wait_stream(third)


def _by_item(m: Memory) -> None:
    with torch.cuda.stream(m.side):
        m.y.sum().item()


def _by_blocking_copy(m: Memory) -> None:
    with torch.cuda.stream(m.side):
        m.y.cpu()


ORDERS: dict[str, Callable[[Memory], object]] = {
    "an event": _by_event,
    "wait_stream": lambda m: torch.cuda.current_stream().wait_stream(m.side),
    "synchronize of the stream": lambda m: m.side.synchronize(),
    "synchronize of the device": lambda _: torch.cuda.synchronize(),
    "synchronize of an event": _by_host_and_event,
    "queries of an event": _by_query,
    "queries of the stream": _by_stream_query,
    "a third stream": _by_third_stream,
    "a number read back": _by_item,
    "a copy that blocks": _by_blocking_copy,
}


def _with_order(
    first: Callable[[Memory], object], order: Callable[[Memory], object], second: Callable[[Memory], object]
) -> Program:
    def program() -> object:
        m = Memory()
        with torch.cuda.stream(m.side):
            kept = first(m)
        order(m)
        return kept, second(m), m

    return program


for _name, _order in ORDERS.items():
    add(f"a read after a write, ordered by {_name}", NOTHING, _with_order(WRITERS["add_"], _order, READERS["mul"]))
    add(f"a write after a read, ordered by {_name}", NOTHING, _with_order(READERS["mul"], _order, WRITERS["add_"]))
for _name, _writer in WRITERS.items():
    add(f"a read after a write by {_name}", NOTHING, _with_order(_writer, ORDERS["an event"], READERS["mul"]))
for _name, _reader in READERS.items():
    add(f"a read by {_name} after a write", NOTHING, _with_order(WRITERS["add_"], ORDERS["an event"], _reader))


# An order that is there, and orders nothing.


@races
def event_recorded_before_the_write() -> object:
    m = Memory()
    event = m.side.record_event()
    with torch.cuda.stream(m.side):
        m.x.add_(1)
    event.wait()
    return m.x * 2, m


@races
def event_of_another_stream() -> object:
    m, other = Memory(), torch.cuda.Stream()
    with torch.cuda.stream(m.side):
        m.x.add_(1)
    other.record_event().wait()
    return m.x * 2, m


@races
def wait_of_another_stream() -> object:
    m, other = Memory(), torch.cuda.Stream()
    with torch.cuda.stream(m.side):
        m.x.add_(1)
    other.wait_stream(m.side)
    return m.x * 2, m


@races
def wait_in_the_wrong_direction() -> object:
    m = Memory()
    with torch.cuda.stream(m.side):
        m.x.add_(1)
    m.side.wait_stream(torch.cuda.current_stream())
    return m.x * 2, m


@races
def wait_after_the_read() -> object:
    m = Memory()
    with torch.cuda.stream(m.side):
        m.x.add_(1)
    result = m.x * 2
    torch.cuda.current_stream().wait_stream(m.side)
    return result, m


@races
def synchronize_of_another_stream() -> object:
    m, other = Memory(), torch.cuda.Stream()
    with torch.cuda.stream(m.side):
        m.x.add_(1)
    other.synchronize()
    return m.x * 2, m


@races
def input_changed_before_the_side_stream_has_read_it() -> object:
    m = Memory()
    m.side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(m.side):
        result = m.x * 2
    m.x.zero_()
    torch.cuda.current_stream().wait_stream(m.side)
    return result, m


@races
def pinned_buffer_filled_again() -> object:
    m, other = Memory(), torch.cuda.Stream()
    with torch.cuda.stream(m.side):
        m.pinned.copy_(m.x, non_blocking=True)
    with torch.cuda.stream(other):
        m.pinned.copy_(m.y, non_blocking=True)
    return m


@races
def pinned_buffer_passed_on() -> object:
    m = Memory()
    with torch.cuda.stream(m.side):
        m.pinned.copy_(m.x, non_blocking=True)
    m.y.copy_(m.pinned, non_blocking=True)
    return m


@races
def optimizer_on_a_side_stream() -> object:
    layer, side = torch.nn.Linear(8, 8, device="cuda"), torch.cuda.Stream()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.ones(4, 8, device="cuda")).sum().backward()
    with torch.cuda.stream(side):
        optimizer.step()
    return layer, optimizer


@races
def copy_between_devices() -> object:
    m = Memory()
    there = torch.zeros(32, 32, device="cuda:1")
    torch.cuda.synchronize(1)
    with torch.cuda.stream(m.side):
        m.x.add_(1)
    there.copy_(m.x)
    return there, m


# Lifetimes: the caching allocator knows one stream of each block.


@reuses
def no_record_stream() -> object:
    m = Memory()
    temporary = torch.ones(1 << 20, device="cuda")
    m.side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(m.side):
        result = temporary * 2
    del temporary
    return torch.zeros(1 << 20, device="cuda"), result, m


@reuses
def no_record_stream_of_a_result() -> object:
    m = Memory()
    with torch.cuda.stream(m.side):
        made = torch.ones(1 << 20, device="cuda")
    torch.cuda.current_stream().wait_stream(m.side)
    result = made * 2
    del made
    with torch.cuda.stream(m.side):
        again = torch.zeros(1 << 20, device="cuda")
    return again, result, m


@is_ordered
def with_record_stream() -> object:
    m = Memory()
    temporary = torch.ones(1 << 20, device="cuda")
    m.side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(m.side):
        result = temporary * 2
    temporary.record_stream(m.side)
    del temporary
    return torch.zeros(1 << 20, device="cuda"), result, m


@is_ordered
def wait_before_the_tensor_is_freed() -> object:
    m = Memory()
    temporary = torch.ones(1 << 20, device="cuda")
    m.side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(m.side):
        result = temporary * 2
    torch.cuda.current_stream().wait_stream(m.side)
    del temporary
    return torch.zeros(1 << 20, device="cuda"), result, m


@is_ordered
def memory_used_again_on_its_stream() -> object:
    m = Memory()
    for _ in range(3):
        m.y = (torch.ones(1 << 20, device="cuda") * 2)[: 32 * 32].view(32, 32)
    return m


# Parts of a tensor.


@is_ordered
def halves() -> object:
    m = Memory()
    with torch.cuda.stream(m.side):
        m.x[:16].add_(1)
    m.x[16:].add_(1)
    return m


@is_ordered
def columns() -> object:
    m = Memory()
    with torch.cuda.stream(m.side):
        m.x[:, ::2].add_(1)
    m.x[:, 1::2].add_(1)
    return m


@is_ordered
def two_readers() -> object:
    m = Memory()
    with torch.cuda.stream(m.side):
        other = m.x.sum()
    return m.x.sum(), other, m


@races
def overlapping_rows() -> object:
    m = Memory()
    with torch.cuda.stream(m.side):
        m.x[:17].add_(1)
    m.x[16:].add_(1)
    return m


@races
def column_and_row() -> object:
    m = Memory()
    with torch.cuda.stream(m.side):
        m.x[:, 5].add_(1)
    m.x[7].add_(1)
    return m


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


# Programs as they are.


@is_ordered
def training() -> object:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    scaler = torch.amp.GradScaler()
    for _ in range(3):
        batch = torch.randn(4, 8).pin_memory().cuda(non_blocking=True)
        with torch.autocast("cuda"):
            loss = model(batch).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return loss.item()


@is_ordered
def prefetching() -> object:
    """A side stream copies the next batch while the current one is used."""
    side, current = torch.cuda.Stream(), torch.cuda.current_stream()
    layer = torch.nn.Linear(64, 64, device="cuda")
    total = torch.zeros((), device="cuda")
    ahead: torch.Tensor | None = None
    for _ in range(4):
        host = torch.randn(16, 64).pin_memory()
        with torch.cuda.stream(side):
            following = host.to("cuda", non_blocking=True)
        if ahead is not None:
            total += layer(ahead).sum().detach()
        current.wait_stream(side)
        following.record_stream(current)
        ahead = following
    return total.item()


@is_ordered
def backward_on_the_streams_of_forward() -> object:
    m = Memory()
    x = m.x.clone().requires_grad_()
    m.side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(m.side):
        y = (x * 2).sum()
    torch.cuda.current_stream().wait_stream(m.side)
    y.backward()
    assert x.grad is not None
    return x.grad.sum().item(), m


def main() -> None:
    """Run all programs, each from an idle device, and print the kinds of their findings."""
    file = Path(os.environ["SIMCUDA_FINDINGS"]) / f"{os.getpid()}.ndjson"
    torch.ones(1, device="cuda").item()
    dist.init_process_group("nccl", store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1)
    found: dict[str, list[str]] = {}
    for name, (_, program) in PROGRAMS.items():
        before = file.read_text().count("\n") if file.exists() else 0
        kept = program()
        torch.cuda.synchronize()
        lines = file.read_text().splitlines()[before:] if file.exists() else []
        found[name] = sorted({json.loads(line)["kind"] for line in lines})
        del kept
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
    dist.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
