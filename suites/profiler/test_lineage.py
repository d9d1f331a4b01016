"""Callers according to the Python tracer, compared with the tree."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from . import workloads
from .node import Kind, Node
from .trees import record
from .workloads import Work

TREE = "test_profiler_tree::TestProfilerTree::test_profiler_experimental_tree"


def recursion() -> Work:
    """Return a function that calls itself through a second one."""
    x = torch.rand(2)

    def descend(levels: int) -> torch.Tensor:
        return ascend(levels - 1) if levels else torch.sin(x)

    def ascend(levels: int) -> torch.Tensor:
        return descend(levels)

    def work() -> torch.Tensor:
        return descend(3)

    return work


def generators() -> Work:
    """Return a generator drained by another one, with operators around each yield, and an unfinished generator."""
    x = torch.rand(2)

    def produce() -> Iterator[torch.Tensor]:
        yield torch.sin(x)
        yield torch.cos(x)

    def relay() -> Iterator[torch.Tensor]:
        yield from produce()

    def work() -> None:
        for value in relay():
            value.neg()
        next(produce())

    return work


def sorting() -> Work:
    """Return a C function that calls back into Python: the sort keys run operators."""
    x = torch.rand(4)

    def key(index: int) -> float:
        return float(x[index])

    def work() -> list[int]:
        return sorted(range(4), key=key)

    return work


def python_backward() -> Work:
    """Return an autograd function in Python, whose backward the engine calls from C++."""

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 (torch's signature)
            return x + x

        @staticmethod
        def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
            return gradient + gradient

    leaf = torch.rand(2, requires_grad=True)

    def work() -> None:
        Double.apply(leaf).sum().backward()
        leaf.grad = None

    return work


@pytest.mark.parametrize(
    "workload",
    [
        pytest.param(workloads.plain_code, id="plain"),
        pytest.param(recursion, id="recursion"),
        pytest.param(generators, id="generators"),
        pytest.param(sorting, id="callback_from_c"),
        pytest.param(python_backward, id="python_backward"),
        pytest.param(workloads.scopes, id="scopes"),
        pytest.param(workloads.modules, id="modules", marks=pytest.mark.covers(f"{TREE}_with_stack_and_modules")),
        pytest.param(workloads.training_step, id="training_step"),
        pytest.param(
            workloads.on_function_tensor,
            id="torch_function",
            marks=pytest.mark.covers(f"{TREE}_with_stack_and_torch_function"),
        ),
        pytest.param(
            workloads.on_dispatch_tensor,
            id="torch_dispatch",
            marks=pytest.mark.covers(f"{TREE}_with_stack_and_torch_dispatch"),
        ),
    ],
)
def test_with_stack_caller_is_the_parent(workload: Callable[[], Work]) -> None:
    """For every frame and C call, the caller that the tracer recorded is the nearest Python frame above it.

    The tracer gets callers from Python, and the tree is built from times, so the sources are independent. Only frames
    that were on the stack when the profile started have no parent frame: each thread has one such root, including those
    of a thread pool that torch's compiler keeps, and without isolation that of pytest-xdist. The profiler's own calls
    at its end are not compared, because next to such a pool they are sometimes below no frame.
    """
    tree = record(workload(), with_stack=True)

    roots = [node for node in tree.children if node.kind is Kind.PYTHON]
    others = [
        root
        for root in roots
        if root.name.endswith((": _bootstrap", ": _perform_spawn"))
        or root.caller.startswith("torch/profiler/profiler.py: ")
    ]
    mine = [root for root in roots if root not in others]
    assert len(mine) == 1, str(tree)
    assert compared(mine[0]) > 5, str(tree)  # a pool's thread may start during the profile; its tree is not compared


def test_with_stack_caller_is_the_parent_on_another_thread() -> None:
    """A thread that was running when the profile started has its own stack of frames, from its first call on.

    Its calls are below their callers on that thread, and not below those of the waiting thread. Threads without calls
    in the profile, such as those of a pool, are not compared: torch cannot identify them and puts the frames of each
    below those of another.
    """
    start, done = threading.Semaphore(0), threading.Semaphore(0)
    ending = False
    x = torch.rand(2)

    def inner() -> None:
        torch.sin(x)

    def serve() -> None:
        start.acquire()
        while not ending:
            inner()
            done.release()
            start.acquire()

    def work() -> None:
        start.release()
        done.acquire()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        tree = record(work, with_stack=True)
    finally:
        ending = True
        start.release()
        thread.join()

    inner_frame = tree.one_frame("inner")
    (above,) = (parents for node, parents in tree.with_parents() if node is inner_frame)
    assert above[0].name.endswith(": serve"), str(tree)
    assert not tree.one_frame("work").frames("inner"), str(tree)
    served, asked = root_of(tree, "inner"), root_of(tree, "work")
    assert served is not asked, str(tree)
    assert served.name.endswith(": _bootstrap"), str(tree)
    assert compared(served) + compared(asked) > 5, str(tree)


def root_of(tree: Node, function: str) -> Node:
    """Return the root above the only frame of a function, or the frame itself."""
    frame = tree.one_frame(function)
    return next(root for root in tree.children if any(node is frame for node in (root, *root.walk())))


def compared(tree: Node) -> int:
    """Return the number of nodes with a parent frame; fail the case if one of them is not the recorded caller."""
    count = 0
    for node, above in tree.with_parents():
        parent = next((n for n in above if n.kind is Kind.PYTHON), None)
        if node.kind in (Kind.PYTHON, Kind.C_CALL) and parent is not None:
            count += 1
            assert node.caller == parent.frame, f"{node.name} was called by {node.caller}, not by {parent.frame}"
    return count
