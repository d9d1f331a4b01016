"""`torch.autograd.graph`: edges, versions, hooks for several gradients, and contexts for saved tensors.

All backward passes here run in the eager engine.
"""

from __future__ import annotations

import gc
import logging
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.autograd.graph import (
    Node,
    allow_mutation_on_saved_tensors,
    disable_saved_tensors_hooks,
    get_gradient_edge,
    increment_version,
    register_multi_grad_hook,
    save_on_cpu,
    saved_tensors_hooks,
)

from . import _torch_private as private
from .functions import square

LOGGER = "torch.autograd.graph"


@pytest.fixture
def x(device: torch.device) -> torch.Tensor:
    return torch.tensor([1.0, 2.0], device=device, requires_grad=True)


def test_get_gradient_edge_is_there_under_no_grad_too(x: torch.Tensor) -> None:
    """The edge of a tensor that requires grad does not depend on the grad mode; a constant has no edge."""
    y = square(x)
    edge, outer = get_gradient_edge(x), get_gradient_edge(y)
    with torch.no_grad():
        assert get_gradient_edge(x).node is edge.node
        assert get_gradient_edge(y).node is outer.node
        assert get_gradient_edge(y).ownership_token is not None
    assert edge.ownership_token is get_gradient_edge(x * 2).ownership_token is None  # C++ owns these nodes
    assert edge.node is y.grad_fn.next_functions[0][0]  # type: ignore[union-attr]
    with pytest.raises(RuntimeError, match="does not require gradients"):
        get_gradient_edge(y.detach())


def test_node_is_the_class_of_all_graph_nodes(x: torch.Tensor) -> None:
    """The nodes of built-in and custom functions are instances of `Node`; tensors and other classes are not."""
    for each in (x * 2, square(x)):
        assert isinstance(each.grad_fn, Node)
        assert issubclass(type(each.grad_fn), Node)
    assert isinstance(get_gradient_edge(x).node, Node)
    assert not isinstance(x, Node)
    assert not issubclass(int, Node)


def test_increment_version_counts_as_a_change_in_place(x: torch.Tensor, device: torch.device) -> None:
    """Each tensor of a list, or the only tensor, counts one more change; a pass that saved it then raises."""
    first, second = torch.ones(2, device=device), torch.ones(2, device=device)
    before = [private.version(each) for each in (first, second)]
    result = x * first
    increment_version([first, second])
    increment_version(second)
    assert [private.version(each) for each in (first, second)] == [before[0] + 1, before[1] + 2]
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


@pytest.mark.requires(not_={"accelerator": True})
@pytest.mark.xfail(
    raises=AssertionError,
    strict=True,
    reason="the copy to the host of a tensor of the host is the tensor itself, with its graph: "
    "https://github.com/pytorch/pytorch/pull/189025",
)
def test_save_on_cpu_frees_a_result_without_a_backward_pass() -> None:
    """`save_on_cpu` keeps no result alive whose graph is dropped without a backward pass.

    A pack hook must not keep a result with its graph, which would hold itself (torch, autograd mechanics).
    """
    x = torch.ones(2, requires_grad=True)
    with save_on_cpu():
        y = x.exp()
    result = weakref.ref(y)
    del y
    gc.collect()
    kept = result()
    if kept is not None:
        torch.autograd.grad(kept.sum(), x)  # frees what the graph saved
    assert kept is None


@pytest.mark.parametrize("pinned", [False, True])
def test_save_on_cpu_copies_a_host_tensor_only_to_pin_it(pinned: bool) -> None:
    """A host tensor is saved as it is, and with `pin_memory=True` as a copy; the gradient is the same.

    Sparse tensors, which cannot be pinned, are handled in the same way. The copy is in pinned memory if there is CUDA.
    """
    x = torch.tensor([0.1, 0.2], dtype=torch.float64, requires_grad=True)
    with save_on_cpu(pin_memory=True) if pinned else save_on_cpu():
        y = x * x
    saved = private.saved(y.grad_fn, "self")
    assert (saved.data_ptr() != x.data_ptr()) == pinned
    assert saved.is_pinned() == (pinned and torch.cuda.is_available())
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.2, 0.4]

    sparse = torch.tensor([[0.0, 3.0], [5.0, 0.0]]).to_sparse()
    dense = torch.ones(2, 2, requires_grad=True)
    with save_on_cpu(pin_memory=pinned):
        product = torch.sparse.mm(sparse, dense)
    product.sum().backward()
    assert dense.grad is not None
    assert dense.grad.tolist() == [[5.0, 5.0], [3.0, 3.0]]


def test_disable_saved_tensors_hooks_nests(x: torch.Tensor) -> None:
    """The innermost block's message applies; the end of a block restores the previous one, also after an exception."""

    def refused(message: str) -> None:
        with pytest.raises(RuntimeError, match=message), saved_tensors_hooks(lambda each: each, lambda each: each):
            pass

    with disable_saved_tensors_hooks("the outer one"):
        with disable_saved_tensors_hooks("the inner one"):
            refused("the inner one")
        refused("the outer one")
        with pytest.raises(KeyError), disable_saved_tensors_hooks("the inner one"):
            raise KeyError
        refused("the outer one")
    with saved_tensors_hooks(lambda each: each.detach() * 10, lambda each: each):
        y = x.pow(2)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [20.0, 40.0]


def test_register_multi_grad_hook_any_is_called_with_the_first_gradient(x: torch.Tensor) -> None:
    """In mode `any`, the hook gets the first complete gradient, once per pass; other modes are refused."""
    y = x * 2
    z = y * 3
    seen: list[list[float]] = []
    handle = register_multi_grad_hook((x, y, z), lambda gradient: seen.append(gradient.tolist()), mode="any")
    for factor in (5.0, 7.0):
        (z * factor).sum().backward(retain_graph=True)
    assert seen == [[5.0, 5.0], [7.0, 7.0]]
    handle.remove()
    (z * 9).sum().backward()
    assert len(seen) == 2
    with pytest.raises(ValueError, match="mode to be one of"):
        register_multi_grad_hook((x,), lambda gradient: None, mode="first")  # type: ignore[call-overload]


def test_register_multi_grad_hook_all_waits_for_what_the_pass_computes(x: torch.Tensor) -> None:
    """In mode `all`, the hook gets None for tensors outside the pass, and keeps no gradient after the pass."""
    other = torch.ones_like(x, requires_grad=True)
    first, second = x * other, x * other * 2
    seen: list[list[bool]] = []
    alive: list[weakref.ref[torch.Tensor]] = []

    def note(gradients: Any) -> None:
        seen.append([each is not None for each in gradients])
        alive.extend(weakref.ref(each) for each in gradients if each is not None)

    handle = register_multi_grad_hook((x, other, first, second), note)
    (first * 3).sum().backward(retain_graph=True)
    (first * 3).sum().backward(inputs=[x])
    x.grad = other.grad = None
    gc.collect()
    assert seen == [[True, True, True, False], [True, False, True, False]]
    assert [each() for each in alive] == [None] * 5
    handle.remove()


@contextmanager
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Record the log of `torch.autograd.graph` down to its debug messages in the block."""
    caplog.clear()
    with caplog.at_level(logging.DEBUG, LOGGER):
        yield


def test_backward_logs_each_node_at_the_debug_level(x: torch.Tensor, caplog: pytest.LogCaptureFixture) -> None:
    """At the debug level, a pass logs each node once before it runs, with the types and shapes of its gradients.

    The roots of a pass may be tensors or edges. Nodes of a pass that raised, and passes without the level, log nothing
    later.
    """
    y = (x * 2).cos()
    fails = [True]

    def fail(gradient: torch.Tensor) -> None:
        if fails:
            fails.pop()
            raise KeyError

    x.register_hook(fail)

    def names() -> list[str]:
        lines = [record.getMessage() for record in caplog.records if record.name == LOGGER]
        assert all(line.endswith("with grad_outputs: [f32[2]]") for line in lines)
        return [line.split()[1].lstrip("<") for line in lines]

    nodes = ["CosBackward0", "MulBackward0", "AccumulateGrad"]
    with logged(caplog), pytest.raises(KeyError):
        y.backward(torch.ones_like(y), retain_graph=True)
    assert names()[:2] == nodes[:2]
    with logged(caplog):
        torch.autograd.backward(y, torch.ones_like(y), retain_graph=True)
    assert names() == nodes
    with logged(caplog):
        torch.autograd.backward([get_gradient_edge(y)], [torch.ones_like(y)], retain_graph=True)
    assert names() == nodes
    caplog.clear()
    y.backward(torch.ones_like(y))
    assert names() == []


def test_backward_logs_each_node_once_however_it_is_reached(x: torch.Tensor, caplog: pytest.LogCaptureFixture) -> None:
    """A node that several others lead to is logged once, and a gradient that a node does not get is logged as None."""
    first, second = x * 2, x.exp()
    part, _ = torch.stack([first, first, second]).cos().split(2)
    with logged(caplog):
        part.sum().backward()
    lines = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    nodes = [line.split()[1].lstrip("<") for line in lines]
    assert sorted(nodes) == sorted(
        [
            "SumBackward0",
            "SplitBackward0",
            "CosBackward0",
            "StackBackward0",
            "MulBackward0",
            "ExpBackward0",
            "AccumulateGrad",
        ]
    )
    (split,) = [line for line in lines if "SplitBackward0" in line]
    assert split.endswith("with grad_outputs: [f32[2, 2],None]")

    inner = x * 2
    outer = inner.exp()
    with logged(caplog):
        torch.autograd.backward([outer, inner], [torch.ones_like(x)] * 2)
    lines = [record.getMessage() for record in caplog.records if record.name == LOGGER]
    assert [line.split()[1].lstrip("<") for line in lines] == ["ExpBackward0", "MulBackward0", "AccumulateGrad"]


def test_allow_mutation_on_saved_tensors_keeps_each_tensor_apart(x: torch.Tensor, device: torch.device) -> None:
    """If a saved tensor changes, directly or through a view, a list or `out=`, the pass uses the saved values."""
    constant = torch.tensor([3.0, 5.0], device=device)
    with allow_mutation_on_saved_tensors():
        p, q, r = x * 1, x * 2, x * 3
        used = (x.detach() + 1) * 1  # its graph is freed when it changes
        number = x.sum() * 2
        (x * used).sum().backward()
        x.grad = None
        result = (p * q).sum() + (q * q).sum() + r.exp().sum() + (x * constant).sum() + (r.view(2) ** 2).sum()
        result = result + number * number
        number.add_(1)
        torch._foreach_mul_([p, q, q.view(2)], 10.0)
        r.view(2)[:1].zero_()
        r.add_(1)
        torch.add(constant, 1, out=constant)
        used.zero_()
        result.backward()
        found, at = x.grad, x.detach()
    assert found is not None
    wanted = 4 * at + 8 * at + 3 * (3 * at).exp() + torch.tensor([3.0, 5.0], device=device) + 18 * at + 8 * at.sum()
    torch.testing.assert_close(found, wanted)
    assert constant.tolist() == [4.0, 6.0]
    assert q.tolist() == [200.0, 400.0]


def test_allow_mutation_on_saved_tensors_of_views_that_are_partly_gone(x: torch.Tensor) -> None:
    """If graphs saved several views, those of freed graphs are ignored when the memory of the views changes."""
    with allow_mutation_on_saved_tensors():
        base = x.detach() * 3
        views = [base.view(2) for _ in range(12)]
        results = [(x * view).sum() for view in views]
        torch.stack(results[::2]).sum().backward()
        base.mul_(0)
        torch.stack(results[1::2]).sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 12 * 3 * x.detach())


def test_allow_mutation_on_saved_tensors_clones_what_changes_alone(x: torch.Tensor) -> None:
    """Only a tensor that changes is cloned, and its original is not kept; the end of the block frees all clones."""

    def saved(change: bool) -> tuple[torch.Tensor, weakref.ref[torch.Tensor]]:
        tensor = x * 2
        result = tensor * tensor
        if change:
            tensor.mul_(2)
        return result, weakref.ref(tensor)

    with allow_mutation_on_saved_tensors() as state:
        kept, kept_tensor = saved(False)
        changed, changed_tensor = saved(True)
        gc.collect()
        assert kept_tensor() is not None
        assert changed_tensor() is None
        assert all(vars(state).values())
    gc.collect()
    assert kept_tensor() is None
    assert not any(vars(state).values())
    del kept, changed


def test_allow_mutation_on_saved_tensors_covers_both_passes(x: torch.Tensor) -> None:
    """A graph of the block cannot be used after it or in another block; blocks do not nest.

    After a block, also after an exception, a changed saved tensor makes a pass raise again.
    """

    def changed() -> torch.Tensor:
        tensor = x * 2
        result = (tensor * tensor).sum()
        tensor.mul_(2)
        return result

    def fails() -> None:
        with allow_mutation_on_saved_tensors():
            raise KeyError

    with allow_mutation_on_saved_tensors():
        first, second = changed(), changed()
    with pytest.raises(AssertionError, match="outside of the 'allow_mutation_on_saved_tensors' context"):
        first.backward()
    with allow_mutation_on_saved_tensors(), pytest.raises(AssertionError, match="outside of the"):
        second.backward()
    with pytest.raises(KeyError):
        fails()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        changed().backward()
    with (
        allow_mutation_on_saved_tensors(),
        pytest.raises(RuntimeError, match="cannot be nested"),
        allow_mutation_on_saved_tensors(),
    ):
        pass
    with allow_mutation_on_saved_tensors():
        changed().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [8.0, 16.0]
