"""The profiler's event tree as plain values, without what differs between runs, machines and releases.

Folded: source lines (`file.py(12): f` is `file.py: f`), folders of installed packages, addresses of objects,
template arguments and parameter lists of kernels, the class under which pybind11 hides its functions.

Left out: the profiler at work on itself (starting, stopping), and calls into the CUDA runtime that started nothing
on the device. The latter (device queries, `cudaMalloc`, …) happen or not by what the process did before.

Kept beside the names, and compared: the size of each allocation. Kept and not compared: addresses, running totals,
times and callers.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from torch.profiler import ProfilerActivity, profile

from . import _torch_private as private


class Kind(StrEnum):
    """What a node stands for."""

    PROFILE = "profile"  # the root
    OP = "op"  # an operator, an autograd node or a record_function scope
    MEMORY = "memory"  # an allocation or a release
    OUT_OF_MEMORY = "out of memory"
    PYTHON = "python"  # a Python frame
    C_CALL = "c call"  # a function written in C, called from Python
    RUNTIME = "runtime"  # a call into the CUDA runtime or driver
    DEVICE = "device"  # a kernel, copy or fill, as the device ran it
    OTHER = "other"


_KINDS = {
    "TorchOp": Kind.OP,
    "Allocation": Kind.MEMORY,
    "OutOfMemory": Kind.OUT_OF_MEMORY,
    "PyCall": Kind.PYTHON,
    "PyCCall": Kind.C_CALL,
}


@dataclass(frozen=True)
class Block:
    """The memory that an allocation took (`size` > 0) or a release gave back (`size` < 0), in bytes."""

    size: int
    device: str
    address: int = field(compare=False)
    total: int = field(compare=False)  # in use on the device after this event, as the profiler counts it


@dataclass(frozen=True)
class Node:
    """One event and the events below it, in the order in which they began."""

    kind: Kind
    name: str
    children: tuple[Node, ...] = ()
    block: Block | None = None
    start_ns: int = field(default=0, compare=False)
    end_ns: int = field(default=0, compare=False)
    frame: str = field(default="", compare=False)  # Python frames: the frame itself, as "file: function"
    caller: str = field(default="", compare=False)  # Python frames and C calls: who called, by the tracer's record

    def walk(self) -> Iterator[Node]:
        """Every node below this one, a parent before its children."""
        for child in self.children:
            yield child
            yield from child.walk()

    def with_parents(self, parents: tuple[Node, ...] = ()) -> Iterator[tuple[Node, tuple[Node, ...]]]:
        """Every node below this one with its ancestors, the nearest first and this one last."""
        above = (self, *parents)
        for child in self.children:
            yield child, above
            yield from child.with_parents(above)

    def of_kind(self, *kinds: Kind) -> list[Node]:
        """The nodes below this one that are of one of these kinds."""
        return [node for node in self.walk() if node.kind in kinds]

    def all(self, name: str) -> list[Node]:
        """The nodes below this one with this name."""
        return [node for node in self.walk() if node.name == name]

    def one(self, name: str) -> Node:
        """The only node below this one with this name; fails the case if there is not exactly one."""
        return self._only(self.all(name), name)

    def frames(self, function: str) -> list[Node]:
        """The Python frames of functions with this name."""
        return [n for n in self.of_kind(Kind.PYTHON) if n.name.endswith(f": {function}")]

    def one_frame(self, function: str) -> Node:
        """The only Python frame of a function with this name; fails the case if there is not exactly one."""
        return self._only(self.frames(function), f"the frame of {function}()")

    def without(self, *kinds: Kind) -> Node:
        """The same tree with nodes of these kinds cut off, and all below them."""
        kept = tuple(child.without(*kinds) for child in self.children if child.kind not in kinds)
        return replace(self, children=kept)

    def _only(self, found: list[Node], wanted: str) -> Node:
        assert len(found) == 1, f"{len(found)} of {wanted!r}, expected one, in\n{self}"
        return found[0]

    def __str__(self) -> str:
        """The tree as indented text, for a message that a person reads."""
        size = f" {self.block.size:+d} B {self.block.device}" if self.block else ""
        lines = [f"{self.name} [{self.kind}]{size}"]
        lines += [f"  {line}" for child in self.children for line in str(child).splitlines()]
        return "\n".join(lines)


def names(nodes: Sequence[Node]) -> list[str]:
    """The names of some nodes, in order."""
    return [node.name for node in nodes]


HOST = (ProfilerActivity.CPU,)
HOST_AND_CUDA = (ProfilerActivity.CPU, ProfilerActivity.CUDA)


def record(work: Callable[[], object], *, activities: Sequence[ProfilerActivity] = HOST, **options: Any) -> Node:
    """Profile one call of `work` and return the tree; `options` are those of `torch.profiler.profile`.

    What `work` returns is kept alive until the profile has ended. With stacks, `work` is called twice before that.
    """
    if options.get("with_stack"):
        warm_up(work, activities=activities, **options)
    with quiet_collector(), profile(activities=activities, **options) as prof:
        result = work()
    del result
    return read(prof)


def warm_up(work: Callable[[], object], **options: Any) -> None:
    """Call `work` without a profile and with one that nobody reads.

    What torch does on first use only is then done, imports among it. The latter matter: torch keeps the names in
    Python frames by address, and those of code that died within the profile, as a module's does once imported, can
    read as garbage (https://github.com/pytorch/pytorch/issues/136040).
    """
    work()
    with quiet_collector(), profile(**options):
        work()


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Keep Python's garbage collector from running finalisers, and freeing tensors, in the middle of a profile."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def read(prof: profile) -> Node:
    """The tree of a profile that has ended, below a root node of kind `profile`."""
    return Node(Kind.PROFILE, "profile", _nodes(private.event_roots(prof)))


_SELF = re.compile(r"(^|/)torch/profiler/profiler\.py(\(\d+\))?: ")


def _nodes(events: Sequence[Any]) -> tuple[Node, ...]:
    nodes = (_node(event) for event in events if not _SELF.search(event.name))
    return tuple(node for node in nodes if node.kind is not Kind.RUNTIME or node.children)


def _node(event: Any) -> Node:
    tag = private.event_tag(event)
    kind = _activity_kind(event.name) if tag == "Kineto" else _KINDS.get(tag, Kind.OTHER)
    block, frame, caller = None, "", ""
    if kind is Kind.MEMORY:
        size, address, total = (private.extra(event, f) for f in ("alloc_size", "ptr", "total_allocated"))
        block = Block(size, str(private.extra(event, "device")), address or 0, total)
    if kind is Kind.PYTHON:
        frame = _frame(event, "callsite")
    if kind in (Kind.PYTHON, Kind.C_CALL):
        caller = _frame(event, "caller")
    name = fold_activity(event.name) if tag == "Kineto" else fold_name(event.name)
    below = _nodes(event.children)
    return Node(kind, name, below, block, event.start_time_ns, event.end_time_ns, frame=frame, caller=caller)


def _frame(event: Any, which: str) -> str:
    return f"{private.extra(event, f'{which}.file_name')}: {private.extra(event, f'{which}.function_name')}"


_RUNTIME_CALL = re.compile(r"^(cu|cuda|hip)[A-Z]\w*$")


def _activity_kind(name: str) -> Kind:
    return Kind.RUNTIME if _RUNTIME_CALL.match(name) else Kind.DEVICE


_SOURCE_LINE = re.compile(r"^(?P<file>.*)\(\d+\): (?P<function>[^:]*)$")
_ADDRESS = re.compile(r" object at 0x[0-9a-fA-F]+")
_PYBIND = re.compile(r"(pybind11_builtins\.)?pybind11_detail_function_record\w*|PyCapsule")


def fold_name(name: str) -> str:
    """The name of a host event without source line, installation folder and address."""
    frame = _SOURCE_LINE.match(name)
    if frame:
        file = frame["file"].replace("\\", "/").rpartition("site-packages/")[2]
        return f"{file.rpartition('/')[2] if file.startswith('/') else file}: {frame['function']}"
    return _PYBIND.sub("pybind11", _ADDRESS.sub("", name))


def fold_activity(name: str) -> str:
    """The name of a device event without its template arguments and parameter list: `void f<int>(int*)` is `void f`."""
    plain, depth = [], 0
    for letter in name:
        if letter == "<":
            depth += 1
        elif letter == ">" and depth:
            depth -= 1
        elif not depth:
            plain.append(letter)
    text = "".join(plain).strip()
    # Copies and fills are named in words, "Memcpy HtoD (Pinned -> Device)": those brackets say what was copied.
    if text.startswith(("Memcpy", "Memset")):
        return text
    return re.sub(r"(?<=\w)\(.*\)$", "", text)
