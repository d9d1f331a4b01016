"""Allocations and releases in the tree of a pass on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch.profiler import record_function

from .node import Block, Kind, Node, names
from .trees import record

pytestmark = pytest.mark.covers("test_profiler_tree::TestProfilerTree::test_profiler_experimental_tree_with_memory")


def forward_and_backward() -> Callable[[], None]:
    """Return a pass with temporaries, in which tensors are both allocated and released."""
    leaf = torch.rand(16, requires_grad=True)

    def work() -> None:
        (leaf * 2).exp().sum().backward()
        leaf.grad = None

    return work


def blocks(tree: Node) -> list[Block]:
    """Return the allocations and releases in a tree, in chronological order."""
    events = sorted(tree.of_kind(Kind.MEMORY), key=lambda node: node.start_ns)
    return [node.block for node in events if node.block]


def test_profile_memory_events_are_leaves_with_a_size() -> None:
    """Allocations and releases are leaves with a nonzero size, and both occur."""
    tree = record(forward_and_backward(), profile_memory=True)

    events = tree.of_kind(Kind.MEMORY)
    assert all(not node.children for node in events)
    sizes = [node.block.size for node in events if node.block]
    assert len(sizes) == len(events)
    assert min(sizes) < 0 < max(sizes)
    assert 0 not in sizes


@pytest.mark.parametrize(
    ("dtype", "shape", "size"),
    [(torch.float32, (16, 16), 1024), (torch.float64, (3,), 24), (torch.uint8, (5, 7), 35)],
    ids=["float32", "float64", "uint8"],
)
def test_profile_memory_allocation_is_below_its_operator(dtype: torch.dtype, shape: tuple[int, ...], size: int) -> None:
    """A new tensor is one allocation of its size, directly below the allocating operator."""
    tree = record(lambda: torch.zeros(shape, dtype=dtype), profile_memory=True)

    assert [node.block.size for node in tree.of_kind(Kind.MEMORY) if node.block] == [size]
    (memory,) = tree.one("aten::zeros").one("aten::empty").children
    assert memory.kind is Kind.MEMORY
    assert memory.block is not None
    assert memory.block.device == "cpu"


def test_profile_memory_release_is_where_the_tensor_dies() -> None:
    """A release has the address and size of its allocation, and is in the scope that dropped the tensor."""

    def work() -> None:
        with record_function("make"):
            tensor = torch.empty(64)
        with record_function("keep"):
            torch.neg(torch.ones(1))
        with record_function("drop"):
            del tensor

    tree = record(work, profile_memory=True)

    (made,) = blocks(tree.one("make"))
    (dropped,) = blocks(tree.one("drop"))
    assert (dropped.size, dropped.address, dropped.device) == (-made.size, made.address, made.device)
    assert made.address not in {block.address for block in blocks(tree.one("keep"))}


def test_profile_memory_sizes_add_up_to_live_tensors() -> None:
    """The sizes in a profile add up to the bytes of the tensors created in it that are still alive."""

    def work() -> torch.Tensor:
        temporary = torch.rand(100)
        return torch.cat([temporary.exp(), temporary.neg()])

    tree = record(work, profile_memory=True)

    assert sum(block.size for block in blocks(tree)) == 200 * 4
    assert any(block.size < 0 for block in blocks(tree))


def test_profile_memory_total_changes_by_each_size() -> None:
    """The total of each event is the previous one plus the event's size."""
    events = blocks(record(forward_and_backward(), profile_memory=True))

    assert len(events) > 2
    steps = [after.total - before.total for before, after in pairwise(events)]
    assert steps == [event.size for event in events[1:]]


def test_profile_memory_outofmemory_is_a_leaf_below_its_operator() -> None:
    """A failed allocation is an out-of-memory event below its operator, and the profile continues."""

    def work() -> None:
        with pytest.raises(RuntimeError, match="allocate memory"):
            torch.empty(1 << 60)
        torch.neg(torch.ones(1))

    tree = record(work, profile_memory=True)

    failed, *rest = tree.children
    assert [(child.kind, child.children) for child in failed.children] == [(Kind.OUT_OF_MEMORY, ())]
    assert names(rest)[:2] == ["aten::ones", "aten::neg"]


def test_profile_memory_is_needed_for_memory_events() -> None:
    """Without `profile_memory` there are no memory events; the operators are the same."""
    work = forward_and_backward()
    work()

    plain = record(work)
    with_memory = record(work, profile_memory=True)

    assert not plain.of_kind(Kind.MEMORY)
    assert with_memory.of_kind(Kind.MEMORY)
    assert with_memory.without(Kind.MEMORY) == plain
