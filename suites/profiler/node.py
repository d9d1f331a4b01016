"""The event tree of a profile as plain values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Kind(StrEnum):
    """The kind of a node."""

    PROFILE = "profile"  # the root
    OP = "op"  # an operator, an autograd node or a record_function scope
    MEMORY = "memory"  # an allocation or a release
    OUT_OF_MEMORY = "out of memory"
    PYTHON = "python"  # a Python frame
    C_CALL = "c call"  # a C function called from Python
    RUNTIME = "runtime"  # a call of the CUDA runtime or driver
    DEVICE = "device"  # a kernel, copy or fill that the device ran
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Block:
    """The memory of an allocation (`size` > 0) or a release (`size` < 0), in bytes."""

    size: int
    device: str
    address: int = field(compare=False)
    total: int = field(compare=False)  # the profiler's count of memory in use on the device after this event


@dataclass(frozen=True, slots=True)
class Node:
    """One event and the events below it, in the order of their start.

    Two nodes are equal if their trees are: kinds, names, block sizes and children. Times, addresses, sequence numbers
    and callers are not compared, because they differ between profiles of the same work.
    """

    kind: Kind
    name: str
    children: tuple[Node, ...] = ()
    block: Block | None = None
    # operators: the sequence number of the forward operator, also for its backward
    sequence: int = field(default=-1, compare=False)
    start_ns: int = field(default=0, compare=False)
    end_ns: int = field(default=0, compare=False)
    frame: str = field(default="", compare=False)  # Python frames: the frame itself, as "file: function"
    caller: str = field(default="", compare=False)  # Python frames and C calls: the caller according to the tracer

    def walk(self) -> Iterator[Node]:
        """Yield all nodes below this one, parents before children."""
        for child in self.children:
            yield child
            yield from child.walk()

    def with_parents(self, parents: tuple[Node, ...] = ()) -> Iterator[tuple[Node, tuple[Node, ...]]]:
        """Yield all nodes below this one with their ancestors, nearest first and this one last."""
        above = (self, *parents)
        for child in self.children:
            yield child, above
            yield from child.with_parents(above)

    def of_kind(self, *kinds: Kind) -> list[Node]:
        """Return the nodes below this one of the given kinds."""
        return [node for node in self.walk() if node.kind in kinds]

    def all(self, name: str) -> list[Node]:
        """Return the nodes below this one with this name."""
        return [node for node in self.walk() if node.name == name]

    def one(self, name: str) -> Node:
        """Return the only node below this one with this name; fail the case if there is not exactly one."""
        return self._only(self.all(name), name)

    def frames(self, function: str) -> list[Node]:
        """Return the Python frames of functions with this name."""
        return [n for n in self.of_kind(Kind.PYTHON) if n.name.endswith(f": {function}")]

    def one_frame(self, function: str) -> Node:
        """Return the only Python frame of a function with this name; fail the case if there is not exactly one."""
        return self._only(self.frames(function), f"the frame of {function}()")

    def without(self, *kinds: Kind) -> Node:
        """Return the same tree without nodes of these kinds and everything below them."""
        kept = tuple(child.without(*kinds) for child in self.children if child.kind not in kinds)
        return replace(self, children=kept)

    def _only(self, found: list[Node], wanted: str) -> Node:
        assert len(found) == 1, f"{len(found)} of {wanted!r}, expected one, in\n{self}"
        return found[0]

    def __str__(self) -> str:
        """Return the tree as text: one node per line, two spaces per level, with the size of each allocation."""
        size = f" {self.block.size:+d} B {self.block.device}" if self.block else ""
        lines = [f"{self.name}{size}"]
        lines += [f"  {line}" for child in self.children for line in str(child).splitlines()]
        return "\n".join(lines)


def names(nodes: Sequence[Node]) -> list[str]:
    """Return the names of the nodes, in order."""
    return [node.name for node in nodes]
