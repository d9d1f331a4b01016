"""`record_function` scopes in the tree of a pass on the CPU, without stacks."""

from __future__ import annotations

import pytest
import torch
from torch.profiler import record_function

from .node import names
from .trees import record

pytestmark = pytest.mark.covers(
    "test_profiler_tree::TestProfilerTree::test_profiler_experimental_tree_with_record_function"
)


def test_record_function_scopes_nest_as_the_blocks_do() -> None:
    """A scope contains the operators and scopes of its block, and no others."""
    x = torch.rand(3)

    def work() -> None:
        with record_function("outer"):
            with record_function("first"):
                torch.sin(x)
            torch.cos(x)
            with record_function("second"):
                torch.tan(x)
        torch.neg(x)

    tree = record(work)

    assert names(tree.children) == ["outer", "aten::neg"]
    assert names(tree.one("outer").children) == ["first", "aten::cos", "second"]
    assert names(tree.one("first").children) == ["aten::sin"]
    assert names(tree.one("second").children) == ["aten::tan"]


def test_record_function_entered_twice_has_two_scopes() -> None:
    """Scopes with the same name are not merged; each contains the operators of its own block."""
    x = torch.rand(3)

    def work() -> None:
        for step in (torch.sin, torch.cos):
            with record_function("step"):
                step(x)

    tree = record(work)

    assert [names(scope.children) for scope in tree.children] == [["aten::sin"], ["aten::cos"]]
    assert names(tree.children) == ["step", "step"]


def test_record_function_holds_the_backward_called_in_it() -> None:
    """On the CPU the engine runs in the calling thread, so the backward pass is below the caller's scope."""
    leaf = torch.rand(3, requires_grad=True)

    def work() -> None:
        with record_function("forward"):
            loss = leaf.exp().sum()
        with record_function("backward"):
            loss.backward()

    tree = record(work)

    assert names(tree.children) == ["forward", "backward"]
    autograd = [n for n in names(list(tree.walk())) if "Backward0" in n or "AccumulateGrad" in n]
    assert autograd == [
        n for n in names(list(tree.one("backward").walk())) if "Backward0" in n or "AccumulateGrad" in n
    ]
    assert {"SumBackward0", "ExpBackward0", "torch::autograd::AccumulateGrad"} <= set(autograd)


def test_record_function_never_closed_ends_with_the_scope_around_it() -> None:
    """A scope that is never closed contains the rest of its enclosing scope, and nothing after it."""
    x = torch.rand(3)

    def work() -> object:
        with record_function("enclosing"):
            torch.sin(x)
            never_left = record_function("open")
            never_left.__enter__()
            torch.cos(x)
            with record_function("inner"):
                torch.tan(x)
        torch.neg(x)
        return never_left

    tree = record(work)

    assert names(tree.children) == ["enclosing", "aten::neg"]
    assert names(tree.one("enclosing").children) == ["aten::sin", "open"]
    assert names(tree.one("open").children) == ["aten::cos", "inner"]
    assert names(tree.one("inner").children) == ["aten::tan"]


def test_record_function_never_closed_holds_the_backward_pass() -> None:
    """A scope that is never closed contains closed scopes, the engine's work in them, and operators."""
    leaf = torch.rand(3, requires_grad=True)

    def work() -> object:
        with record_function("enclosing"):
            never_left = record_function("open")
            never_left.__enter__()
            loss = leaf.exp().sum()
            with record_function("backward"):
                loss.backward()
        return never_left

    tree = record(work)

    (open_scope,) = tree.one("enclosing").children
    assert open_scope.name == "open"
    assert names(open_scope.children) == ["aten::exp", "aten::sum", "backward"]
    engine = "autograd::engine::evaluate_function: "
    assert [name for name in names(open_scope.children[-1].children) if name.startswith(engine)] == [
        f"{engine}{node}" for node in ("SumBackward0", "ExpBackward0", "torch::autograd::AccumulateGrad")
    ]


def test_record_function_never_closed_ends_with_the_profile() -> None:
    """A scope that is open at the end of the profile contains the rest of it.

    It does not extend into the next profile.
    """
    x = torch.rand(3)

    def work() -> object:
        torch.sin(x)
        never_left = record_function("open")
        never_left.__enter__()
        torch.cos(x)
        return never_left

    first = record(work)
    second = record(lambda: torch.tan(x))

    assert names(first.children) == ["aten::sin", "open"]
    assert names(first.one("open").children) == ["aten::cos"]
    assert names(second.children) == ["aten::tan"]


def test_record_function_left_by_an_exception_ends_there() -> None:
    """An exception closes the scopes that it passes through, so later operators are not below them."""
    x = torch.rand(3)

    def fail() -> None:
        with record_function("outer"), record_function("inner"):
            torch.sin(x)
            raise LookupError

    def work() -> None:
        with pytest.raises(LookupError):
            fail()
        torch.cos(x)

    tree = record(work)

    assert names(tree.children) == ["outer", "aten::cos"]
    assert names(tree.one("outer").children) == ["inner"]
    assert names(tree.one("inner").children) == ["aten::sin"]
