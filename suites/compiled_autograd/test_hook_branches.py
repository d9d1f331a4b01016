"""Hooks in a captured pass whose gradients branch: two branches, two roots, layers that are compiled as one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from suites import _torch_private_compiled as private
from suites.compiled import compare, compiled_backward

from .models import gradients, rows
from .test_hook_order import Diary, compare_diaries, kind, three


def accumulator(leaf: torch.Tensor) -> Any:
    """Return the node that accumulates a leaf's gradient."""
    return leaf.view_as(leaf).grad_fn.next_functions[0][0]  # type: ignore[union-attr]


def hooked(name: str, out: torch.Tensor, diary: Diary) -> torch.Tensor:
    """Record the hooks of a result, and those before and after its function."""
    assert out.grad_fn is not None
    out.grad_fn.register_prehook(diary.pre(f"before {name}"))
    out.grad_fn.register_hook(diary.post(f"after {name}"))
    return out


#: The hooks of one function, in order. Hooks of tensors are captured earlier than the engine calls them.
ORDER = ("before", "after")


def test_hooks_of_two_branches_run_branch_by_branch(device: torch.device) -> None:
    """All hooks of the last computed branch run before those of the other one, although both gradients are available.

    The result of one function is used twice, so that its hooks wait for the sum of two gradients.
    """

    def work(diary: Diary) -> Iterator[object]:
        x = torch.randn(4).to(device).requires_grad_()
        first = hooked("first", x.sin(), diary)
        second = hooked("second", x.exp(), diary)
        third = hooked("third", second.tanh(), diary)
        (first + third + second).sum().backward()
        yield x.grad

    assert compare_diaries(work) == [f"{when} {name}" for name in ("third", "second", "first") for when in ORDER]


def test_hooks_of_two_roots_run_when_their_functions_do(device: torch.device) -> None:
    """A gradient that is passed to the backward pass does not call hooks before the engine reaches their function."""

    def work(diary: Diary) -> Iterator[object]:
        x = torch.randn(4).to(device).requires_grad_()
        early = hooked("early", x.sin(), diary)
        inner = hooked("inner", x.exp(), diary)
        late = hooked("late", inner.tanh(), diary)
        torch.autograd.backward([early, late], [torch.full_like(x, 2.0), torch.full_like(x, 3.0)])
        yield x.grad

    assert compare_diaries(work) == [f"{when} {name}" for name in ("late", "inner", "early") for when in ORDER]


@pytest.mark.parametrize("hook", ["tensor", "pre", "post", "accumulated", "accumulated_post"])
def test_hooks_of_layers_compiled_as_one_run_layer_by_layer(device: torch.device, hook: str) -> None:
    """The captured graph calls the hooks of a layer's parameters before it processes the previous layer.

    The backward pass of a compiled model is one function, so all hooks would run after it unless they are moved up.
    """
    model, x = three(device), rows(2, device).requires_grad_()
    nodes = [accumulator(each) for each in model.parameters()]  # their hooks end with them
    for parameter, node in zip(model.parameters(), nodes, strict=True):
        if hook == "tensor":
            parameter.register_hook(lambda gradient: gradient * 2)
        elif hook == "pre":
            node.register_prehook(lambda inputs: (inputs[0] * 2,))
        if hook.endswith("post"):
            node.register_hook(lambda *_: None)
        if hook.startswith("accumulated"):
            parameter.register_post_accumulate_grad_hook(lambda _: None)
    with compiled_backward(backend="eager") as recording:
        torch.compile(model, backend="aot_eager", fullgraph=True)(x).sum().backward()

    (graph,) = recording.graphs
    order = "".join("H" if private.is_hook(node) else kind(node) for node in graph.graph.nodes)
    each = {"tensor": "HA", "pre": "HA", "accumulated_post": "AHH"}.get(hook, "AH")
    assert order.count("H") == len(list(gradients(model))) * each.count("H")
    assert re.fullmatch(f"P+({each}){{2}}P+({each}){{2}}[PAH]*", order), order


@pytest.mark.parametrize("hook", ["tensor", "pre", "post"])
def test_hooks_that_change_a_gradient_change_it_for_one_branch(device: torch.device, hook: str) -> None:
    """A sum passes one gradient to both of its terms, and a hook of one term changes the gradient of that term only."""
    assert compare(lambda: _changed(device, hook), backend="eager", fullgraph=False).captures == 1


def _changed(device: torch.device, hook: str) -> Iterator[object]:
    a, b = (torch.tensor([number, 1.0], device=device, requires_grad=True) for number in (2.0, 3.0))
    first, second = a.neg(), b.neg()
    out = first + second
    for factor, term in ((10, first), (100, second)):
        assert term.grad_fn is not None
        if hook == "tensor":
            term.register_hook(lambda gradient, factor=factor: gradient * factor)
        elif hook == "pre":
            term.grad_fn.register_prehook(lambda gradients, factor=factor: (gradients[0] * factor,))
    if hook == "post":
        assert out.grad_fn is not None
        out.grad_fn.register_hook(lambda inputs, _: (inputs[0] * 10, inputs[1] * 100))
    out.sum().backward()
    assert a.grad is not None
    assert b.grad is not None
    yield [a.grad, b.grad]
    yield [a.grad.tolist(), b.grad.tolist()] == [[-10.0, -10.0], [-100.0, -100.0]]


def test_hook_after_accumulation_gets_the_new_gradient(device: torch.device) -> None:
    """A hook that changes an accumulated gradient does so once per pass, and does not affect other leaves."""

    def work() -> Iterator[object]:
        a, b = (torch.ones(2, device=device, requires_grad=True) for _ in range(2))

        def double(leaf: torch.Tensor) -> None:
            assert leaf.grad is not None
            leaf.grad = leaf.grad * 2

        a.register_post_accumulate_grad_hook(double)
        for _ in range(2):
            (a + b).sum().backward()
        assert a.grad is not None
        assert b.grad is not None
        yield [a.grad, b.grad]

    compare(work, backend="eager", fullgraph=False)


@pytest.mark.parametrize("where", ["hook", "function"])
def test_error_of_a_captured_pass_leaves_captures_on(device: torch.device, where: str) -> None:
    """After a pass that raised while its graph ran, later passes in the block are still captured."""

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
            return x.clone()

        @staticmethod
        @torch.compiler.disable
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override] # noqa: ARG004
            raise ValueError("in the pass")

    @torch.compiler.disable
    def fails(_: torch.Tensor) -> None:
        raise ValueError("in the pass")

    x = torch.ones(3, device=device, requires_grad=True)
    with compiled_backward(backend="eager", fullgraph=False) as recording:
        if where == "hook":
            bad = x.exp()
            bad.register_hook(fails)
        else:
            bad = Fails.apply(x.exp())  # type: ignore[no-untyped-call]
        with pytest.raises(ValueError, match="in the pass"):
            bad.sum().backward()
        captures = recording.captures
        assert private.enabled()
        x.grad = None
        x.sin().sum().backward()
        assert (recording.captures, private.enabled()) == (captures + 1, True)
    assert x.grad is not None
    assert torch.equal(x.grad, x.detach().cos())
    assert not private.enabled()


def test_disabled_captures_are_what_they_were_afterwards() -> None:
    """A block without captures disables them, and afterwards the previous state is restored, also after an error."""
    with private.disable():
        assert not private.enabled()
    assert not private.enabled()
    with compiled_backward(backend="eager"):
        with pytest.raises(ValueError, match="in the block"), private.disable():
            raise ValueError("in the block")
        assert private.enabled()
        with private.disable():
            assert not private.enabled()
        assert private.enabled()
