"""Profiles of a piece of work, read as trees of plain values.

The profiler's own work (start, stop) is omitted. CUDA runtime calls that started nothing on the device are omitted
unless requested: whether device queries, `cudaMalloc`, … occur depends on the earlier state of the process.

The device's copies of scopes (a span from the first to the last kernel of each) and the overhead of device tracing are
replaced by their children. They have no caller, so torch inserts them by their times, and host events then nest in
them.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch.profiler import ProfilerActivity, profile

from . import _torch_private as private
from .node import Block, Kind, Node
from .normal import fold_activity, fold_name

HOST = (ProfilerActivity.CPU,)
HOST_AND_CUDA = (ProfilerActivity.CPU, ProfilerActivity.CUDA)


def profiler(*, activities: Sequence[ProfilerActivity] = HOST, **options: Any) -> profile:
    """Return a profiler that has not started; `options` are those of `torch.profiler.profile`.

    It keeps the events of all cycles, which makes no difference for a single cycle. Without that, releases before 2.13
    warn at the first profile of a process, and a warning fails a case.
    """
    return profile(activities=activities, acc_events=True, **options)


def record(
    work: Callable[[], object],
    *,
    activities: Sequence[ProfilerActivity] = HOST,
    all_runtime_calls: bool = False,
    **options: Any,
) -> Node:
    """Profile one call of `work` and return the tree; `options` are those of `torch.profiler.profile`.

    The result of `work` is kept alive until the profile has ended. With stacks, `work` is called twice before that.
    """
    if options.get("with_stack"):
        warm_up(work, activities=activities, **options)
    with quiet_collector(), profiler(activities=activities, **options) as prof:
        result = work()
    del result
    return read(prof, all_runtime_calls=all_runtime_calls)


def warm_up(work: Callable[[], object], **options: Any) -> None:
    """Call `work` without a profile, and with one that is not read.

    This completes torch's first-use initialization, including imports. Imports matter because torch stores the names of
    Python frames by address, and those of code freed during the profile, such as a module's after its import, can read
    as garbage (https://github.com/pytorch/pytorch/issues/136040).
    """
    work()
    with quiet_collector(), profiler(**options):
        work()


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Prevent Python's garbage collector from running finalizers, and freeing tensors, during a profile."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def read(prof: profile, *, all_runtime_calls: bool = False) -> Node:
    """Return the tree of a finished profile, below a root node of kind `profile`."""
    roots = private.event_roots(prof)
    uncalled = _OVERHEAD | frozenset(_host_names(roots))
    return Node(Kind.PROFILE, "profile", _nodes(roots, uncalled, all_runtime_calls))


_SELF = re.compile(r"(^|/)torch/profiler/profiler\.py(\(\d+\))?: ")
_OVERHEAD = frozenset(
    {
        "Activity Buffer Request",
        "Buffer Flush",
        "Command Buffer Full",
        "Driver Compiler",
        "Instrumentation",
        "Lazy Function Loading",
        "Resource",
        "Runtime Triggered Module Loading",
        "Unknown",
    }
)


def _host_names(events: Sequence[Any]) -> Iterator[str]:
    """Yield the names of operators and scopes in these trees. A device event with such a name is a copy of it."""
    for event in events:
        if private.event_tag(event) == "TorchOp":
            yield event.name
        yield from _host_names(event.children)


def _nodes(events: Sequence[Any], uncalled: frozenset[str], all_runtime_calls: bool) -> tuple[Node, ...]:
    nodes: list[Node] = []
    for event in events:
        if _SELF.search(event.name):
            continue
        below = _nodes(event.children, uncalled, all_runtime_calls)
        node = _node(event, below)
        if private.event_tag(event) == "Kineto" and event.name in uncalled:
            nodes += below
        elif all_runtime_calls or below or node.kind is not Kind.RUNTIME:
            nodes.append(node)
    return tuple(nodes)


_KINDS = {
    "TorchOp": Kind.OP,
    "Allocation": Kind.MEMORY,
    "OutOfMemory": Kind.OUT_OF_MEMORY,
    "PyCall": Kind.PYTHON,
    "PyCCall": Kind.C_CALL,
}


def _node(event: Any, below: tuple[Node, ...]) -> Node:
    tag = private.event_tag(event)
    kind = _activity_kind(event.name) if tag == "Kineto" else _KINDS.get(tag, Kind.OTHER)
    block, frame, caller, sequence = None, "", "", -1
    if kind is Kind.OP:
        sequence = private.extra(event, "sequence_number")
    if kind is Kind.MEMORY:
        size, address, total = (private.extra(event, f) for f in ("alloc_size", "ptr", "total_allocated"))
        block = Block(size, str(private.extra(event, "device")), address or 0, total)
    if kind is Kind.PYTHON:
        frame = _frame(event, "callsite")
    if kind in (Kind.PYTHON, Kind.C_CALL):
        caller = _frame(event, "caller")
    name = fold_activity(event.name) if tag == "Kineto" else fold_name(event.name)
    return Node(kind, name, below, block, sequence, event.start_time_ns, event.end_time_ns, frame=frame, caller=caller)


def _frame(event: Any, which: str) -> str:
    return f"{private.extra(event, f'{which}.file_name')}: {private.extra(event, f'{which}.function_name')}"


_RUNTIME_CALL = re.compile(r"^(cu|cuda|hip)[A-Z]\w*$")


def _activity_kind(name: str) -> Kind:
    return Kind.RUNTIME if _RUNTIME_CALL.match(name) else Kind.DEVICE
