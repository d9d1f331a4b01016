"""Python frames in the tree: plain code, and tensor subclasses with torch's override hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
import torch

from .node import Kind, Node, names
from .subclasses import DispatchTensor
from .trees import record
from .workloads import on_dispatch_tensor, on_function_tensor, plain_code

TREE = "test_profiler_tree::TestProfilerTree::test_profiler_experimental_tree"
WITH_FUNCTION = pytest.mark.covers(f"{TREE}_with_stack_and_torch_function")
WITH_DISPATCH = pytest.mark.covers(f"{TREE}_with_stack_and_torch_dispatch")


def recorded(work: Callable[[], object]) -> Node:
    """Return the tree below the frame of `work` in a profile of it."""
    return record(work, with_stack=True).one_frame("work")


def operators(tree: Node) -> list[str]:
    """Return the names of the operators in a tree."""
    return names(tree.of_kind(Kind.OP))


def frames_above(tree: Node, operator: str) -> list[str]:
    """Return the functions whose frames are above an operator that occurs once, outermost first."""
    (parents,) = (above for node, above in tree.with_parents() if node.name == operator)
    return [n.name.rpartition(": ")[2] for n in reversed(parents) if n.kind is Kind.PYTHON]


def test_with_stack_operators_are_below_the_frames_that_called_them() -> None:
    """Above each operator are the frames of Python's stack at its call, in order."""
    tree = recorded(plain_code())

    assert frames_above(tree, "aten::cos") == ["work", "returning"]
    assert frames_above(tree, "aten::sin") == ["work", "raising"]


def test_with_stack_frame_left_by_an_exception_ends_there() -> None:
    """Operators that run after a caught exception are below the function that caught it, not the one that raised."""
    tree = recorded(plain_code())

    assert frames_above(tree, "aten::tan") == ["work"]
    assert operators(tree) == ["aten::sin", "aten::tan", "aten::cos"]


def test_with_stack_recursion_is_as_deep_in_the_tree_as_on_the_stack() -> None:
    """Each activation of a recursive function is a separate frame below its caller."""
    x = torch.rand(2)

    def descend(levels: int) -> torch.Tensor:
        return descend(levels - 1) if levels else torch.sin(x)

    def work() -> torch.Tensor:
        return descend(3)

    assert frames_above(recorded(work), "aten::sin") == ["work"] + ["descend"] * 4


def test_with_stack_generator_holds_only_its_own_operators() -> None:
    """A generator's frame ends at each yield, so the consumer's operators are siblings of it."""
    x = torch.rand(2)

    def produce() -> Iterator[torch.Tensor]:
        yield torch.sin(x)
        yield torch.sin(x)

    def work() -> None:
        for value in produce():
            torch.cos(value)

    tree = recorded(work)

    assert [operators(frame) for frame in tree.frames("produce")] == [["aten::sin"], ["aten::sin"], []]
    assert [n for n in operators(tree) if n in ("aten::sin", "aten::cos")] == ["aten::sin", "aten::cos"] * 2


def test_with_stack_is_needed_for_frames() -> None:
    """Without `with_stack`, the tree has no Python frames and no C calls."""
    tree = record(plain_code())

    assert not tree.of_kind(Kind.PYTHON, Kind.C_CALL)
    assert names(tree.children) == ["aten::sin", "aten::tan", "aten::cos"]


@WITH_FUNCTION
def test_torch_function_override_is_between_the_call_and_the_operator() -> None:
    """The operator runs once, below the subclass's __torch_function__, which is below the call from Python.

    The public function occurs twice: the caller's call, and the override's.
    """
    tree = recorded(on_function_tensor())

    (above,) = (parents for node, parents in tree.with_parents() if node.name == "aten::add")
    call = "<built-in method add of type>"
    steps = [n.name for n in reversed(above) if n.name == call or n.name.endswith(": __torch_function__")]
    assert [step.rpartition("/")[2] for step in steps] == [
        call,
        "subclasses.py: __torch_function__",
        "_tensor.py: __torch_function__",
        call,
    ]
    assert not tree.one("aten::add").of_kind(Kind.PYTHON)


@WITH_FUNCTION
def test_torch_function_result_becomes_the_subclass_after_the_operator() -> None:
    """The conversion of the result to the subclass is below the override too, once, after the operator."""
    tree = recorded(on_function_tensor())

    override = next(
        n for n in tree.frames("__torch_function__") if n.name.endswith("subclasses.py: __torch_function__")
    )
    conversion = "<built-in method as_subclass of Tensor>"
    assert [n.name for n in override.walk() if n.name in ("aten::add", conversion)] == ["aten::add", conversion]
    assert len(tree.all(conversion)) == 1


@WITH_DISPATCH
def test_torch_dispatch_override_is_between_outer_and_inner_operator() -> None:
    """The operator on the subclass contains __torch_dispatch__, which contains the operator on the plain tensors.

    Both operators have the same name.
    """
    tree = recorded(on_dispatch_tensor())

    outer, inner = tree.all("aten::add")
    (frame,) = outer.frames("__torch_dispatch__")
    assert frame.name.endswith("subclasses.py: __torch_dispatch__")
    assert frame.all("aten::add") == [inner]
    assert not inner.of_kind(Kind.PYTHON)
    assert len(tree.frames("__torch_dispatch__")) == 1


@WITH_DISPATCH
def test_torch_dispatch_override_is_not_called_for_plain_tensors() -> None:
    """For plain tensors, the operator has one event without frames below it, even if a subclass exists."""
    x = torch.rand(2)
    DispatchTensor(x)

    def work() -> torch.Tensor:
        return torch.add(x, x)

    tree = recorded(work)

    assert operators(tree) == ["aten::add"]
    assert not tree.frames("__torch_dispatch__")
    assert not tree.one("aten::add").of_kind(Kind.PYTHON)


@pytest.mark.covers(f"{TREE}_with_memory", f"{TREE}_with_memory_and_stack")
def test_with_stack_memory_events_stay_below_their_operators() -> None:
    """With frames in the tree, an allocation is still directly below its operator."""

    def work() -> torch.Tensor:
        return torch.ones(8)

    tree = record(work, with_stack=True, profile_memory=True).one_frame("work")

    (memory,) = tree.of_kind(Kind.MEMORY)
    assert memory.block is not None
    assert memory.block.size == 32
    assert tree.one("aten::ones").one("aten::empty").children == (memory,)


@pytest.mark.covers(f"{TREE}_with_memory_and_stack")
def test_with_stack_release_is_below_the_frame_that_dropped_the_tensor() -> None:
    """A tensor that dies in a function is released below its frame, and a returned one below the caller."""

    def dies() -> None:
        torch.empty(64)

    def returned() -> torch.Tensor:
        return torch.empty(32)

    def work() -> None:
        dies()
        returned()

    tree = record(work, with_stack=True, profile_memory=True).one_frame("work")

    assert sizes(tree.one_frame("dies")) == [256, -256]
    assert sizes(tree.one_frame("returned")) == [128]
    assert [child.block.size for child in tree.children if child.block] == [-128]


def sizes(tree: Node) -> list[int]:
    """Return the sizes of allocations and releases in a tree, in its order."""
    return [node.block.size for node in tree.of_kind(Kind.MEMORY) if node.block]


def test_with_stack_calls_of_a_custom_operator_end_before_the_next_begins() -> None:
    """Consecutive calls of Python and C do not overlap, and end before their caller does.

    The operator is from `torch.library.custom_op`, with two results and a gradient.
    """
    from . import parts  # registers the operator

    assert parts.parts is not None
    x = torch.rand(4, requires_grad=True)

    def work() -> None:
        for _ in range(4):
            sine, cosine = torch.ops.suites_profiler.parts(x)
            (sine * cosine).sum().backward()

    tree = recorded(work)
    assert sum(name.startswith("suites_profiler::parts") for name in operators(tree)) >= 4
    calls = 0
    for node, _ in tree.with_parents():
        below = [each for each in node.children if each.kind in (Kind.PYTHON, Kind.C_CALL)]
        calls += sum(each.kind is Kind.C_CALL for each in below)
        for one, following in pairwise(below):
            assert one.end_ns <= following.start_ns, f"{one.name} ends after the start of {following.name}"
        for each in below:
            assert each.end_ns <= node.end_ns, f"{each.name} ends after its caller {node.name}"
    assert calls >= 8
