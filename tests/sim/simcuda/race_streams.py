"""Programs (see `race_programs`) about the order of streams, the lifetime of tensors, and whole trainings."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.sim.simcuda.race_programs import (
    NOTHING,
    RACE,
    Memory,
    Program,
    add,
    is_ordered,
    races,
    reuses,
)

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
