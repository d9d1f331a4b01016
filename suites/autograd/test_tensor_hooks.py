"""Tensor hooks: their argument, the values that they may replace, and when they run."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from .engines import Engine

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"


def gradient_of(leaf: torch.Tensor) -> list[float]:
    """Return the `.grad` of a leaf, which must not be None."""
    assert leaf.grad is not None
    values: list[float] = leaf.grad.tolist()
    return values


@pytest.mark.covers(ROW)
def test_register_hook_chains_in_registration_order(engine: Engine, device: torch.device) -> None:
    """The hooks of a tensor run in registration order.

    A returned tensor replaces the gradient for the following hooks; None keeps it.
    """
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    seen: list[list[float]] = []

    def look(gradient: torch.Tensor) -> None:
        seen.append(gradient.tolist())

    x.register_hook(look)
    x.register_hook(lambda gradient: gradient + 1)
    x.register_hook(look)
    x.register_hook(lambda gradient: gradient * 10)
    (x * 3).sum().backward()

    assert seen == [[3.0, 3.0], [4.0, 4.0]]
    assert x.grad is not None
    assert x.grad.tolist() == [40.0, 40.0]


@pytest.mark.covers(ROW)
def test_register_hook_within_the_graph_sees_the_whole_gradient_once(engine: Engine, device: torch.device) -> None:
    """A hook on a tensor with several uses is called once per pass with the sum, and its result propagates."""
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    seen: list[list[float]] = []

    def double(gradient: torch.Tensor) -> torch.Tensor:
        seen.append(gradient.tolist())
        return gradient * 2

    y = x * 1
    y.register_hook(double)
    (y * 3 + y * y).sum().backward()

    assert seen == [[5.0, 7.0]]
    assert x.grad is not None
    assert x.grad.tolist() == [10.0, 14.0]


def test_register_hook_removed_is_not_called(engine: Engine, device: torch.device) -> None:
    """`remove` on a hook's handle removes only that hook, also between two passes over one graph."""
    x = torch.ones(2, device=device, requires_grad=True)
    calls: list[str] = []
    handles = [x.register_hook(lambda gradient, name=name: calls.append(name)) for name in ("a", "b", "c")]
    y = (x * 2).sum()

    y.backward(retain_graph=True)
    handles[1].remove()
    y.backward()

    assert calls == ["a", "b", "c", "a", "c"]


def test_register_hook_has_to_return_a_tensor_like_the_gradient(engine: Engine, device: torch.device) -> None:
    """A hook that returns a non-tensor raises with the type, and the gradient is not written."""
    x = torch.ones(2, device=device, requires_grad=True)

    x.register_hook(lambda gradient: "no tensor")  # type: ignore[arg-type, return-value]

    with pytest.raises((TypeError, RuntimeError), match=r"hook returned|Invoked with.*no tensor"):
        (x * 2).sum().backward()
    assert x.grad is None
    engine.still_works()


def test_register_hook_error_ends_the_pass_and_is_raised(engine: Engine, device: torch.device) -> None:
    """An exception from a hook propagates from `backward` with its type and message.

    No further gradients are written.
    """
    x = torch.ones(2, device=device, requires_grad=True)

    class OwnError(Exception):
        pass

    def refuse(gradient: torch.Tensor) -> None:
        raise OwnError("not this one")

    y = x * 2
    y.register_hook(refuse)

    with pytest.raises(OwnError, match="not this one"):
        y.sum().backward()
    assert x.grad is None
    engine.still_works()


def test_register_hook_needs_a_tensor_that_requires_grad(engine: Engine, device: torch.device) -> None:
    """Registering a hook on a tensor without `requires_grad` raises, as does a post-accumulate hook on a non-leaf."""
    x = torch.ones(2, device=device)
    y = torch.ones(2, device=device, requires_grad=True) * 2

    with pytest.raises(RuntimeError, match="doesn't require gradient"):
        x.register_hook(lambda gradient: None)
    with pytest.raises(RuntimeError, match="leaf tensor"):
        y.register_post_accumulate_grad_hook(lambda tensor: None)
    engine.still_works()


@pytest.mark.covers(ROW)
def test_register_hook_belongs_to_the_tensor_before_an_in_place_change(engine: Engine, device: torch.device) -> None:
    """A hook registered before an in-place change receives the gradient of the old value.

    A hook registered after it receives that of the new value.
    """
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    before: list[list[float]] = []
    after: list[list[float]] = []

    y = x * 1
    y.register_hook(lambda gradient: before.append(gradient.tolist()))
    y.mul_(10)
    y.register_hook(lambda gradient: after.append(gradient.tolist()))
    (y * 2).sum().backward()

    assert (before, after) == ([[20.0, 20.0]], [[2.0, 2.0]])


@pytest.mark.covers(ROW)
def test_autograd_grad_calls_the_hooks_of_its_inputs(engine: Engine, device: torch.device) -> None:
    """`autograd.grad` calls the tensor hooks of its inputs and returns the gradients that they produce.

    The call runs no post-accumulate hooks and writes no `.grad`.
    """
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    accumulated: list[torch.Tensor] = []
    x.register_hook(lambda gradient: gradient * 7)
    x.register_post_accumulate_grad_hook(accumulated.append)

    (gradient,) = torch.autograd.grad((x * x).sum(), x)

    assert gradient.tolist() == [14.0, 28.0]
    assert x.grad is None
    assert accumulated == []


@pytest.mark.covers(ROW)
def test_register_post_accumulate_grad_hook_sees_the_gradient_written(engine: Engine, device: torch.device) -> None:
    """A post-accumulate hook receives the leaf after `.grad` is written and after all other hooks of the leaf.

    The hook may consume the gradient, for example to run an optimizer step within the backward pass.
    """
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    seen: list[list[float]] = []

    def step(leaf: torch.Tensor) -> None:
        assert leaf.grad is not None
        seen.append(leaf.grad.tolist())
        with torch.no_grad():
            leaf.add_(leaf.grad, alpha=-0.5)
        leaf.grad = None

    x.register_hook(lambda gradient: gradient * 2)
    x.register_post_accumulate_grad_hook(step)
    for _ in range(2):
        (x * 3).sum().backward()

    assert seen == [[6.0, 6.0], [6.0, 6.0]]
    assert x.tolist() == [-5.0, -4.0]
    assert x.grad is None


def test_register_post_accumulate_grad_hook_sees_the_sum_of_passes(engine: Engine, device: torch.device) -> None:
    """A post-accumulate hook sees the accumulated gradient, including that of earlier passes.

    The hooks of one leaf run in registration order.
    """
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    x.grad = torch.tensor([100.0, 200.0], device=device)
    seen: list[tuple[str, list[float]]] = []
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(("first", gradient_of(leaf))))
    x.register_post_accumulate_grad_hook(lambda leaf: seen.append(("second", gradient_of(leaf))))

    (x * 3).sum().backward()

    assert seen == [("first", [103.0, 203.0]), ("second", [103.0, 203.0])]


MULTI = ("all", "any")


@pytest.mark.covers(ROW)
@pytest.mark.parametrize("mode", MULTI)
def test_register_multi_grad_hook_is_called_once_a_pass(mode: str, engine: Engine, device: torch.device) -> None:
    """A multi-grad hook is called once per pass.

    In mode `all`, it gets all gradients when they are complete, with None for unused tensors; in mode `any`, it gets
    the first one.
    """
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    y = torch.tensor([3.0, 4.0], device=device, requires_grad=True)
    unused = torch.ones(2, device=device, requires_grad=True)
    seen: list[list[list[float] | None]] = []

    def together(gradients: tuple[torch.Tensor | None, ...]) -> None:
        seen.append([None if one is None else one.tolist() for one in gradients])

    def one(gradient: torch.Tensor) -> None:
        seen.append([gradient.tolist()])

    hook: Callable[..., None] = together if mode == "all" else one
    handle = torch.autograd.graph.register_multi_grad_hook((x, y, unused), hook, mode=mode)  # type: ignore[arg-type]
    try:
        for _ in range(2):
            (x * 2 + y * y).sum().backward()
    finally:
        handle.remove()
    (x * 2 + y * y).sum().backward()

    if mode == "all":
        assert seen == [[[2.0, 2.0], [6.0, 8.0], None]] * 2
    else:
        assert len(seen) == 2
        assert all(call in ([[2.0, 2.0]], [[6.0, 8.0]]) for call in seen)


def test_register_hook_outside_of_backward_inputs_is_not_called(engine: Engine, device: torch.device) -> None:
    """With `inputs=`, only the graph between them and the result runs, so hooks elsewhere are not called."""
    x = torch.ones(2, device=device, requires_grad=True)
    y = torch.ones(2, device=device, requires_grad=True)
    calls: list[str] = []
    a, b = x * 2, y * 3
    a.register_hook(lambda gradient: calls.append("a"))
    b.register_hook(lambda gradient: calls.append("b"))
    y.register_hook(lambda gradient: calls.append("y"))

    (a * b).sum().backward(inputs=[x])

    assert calls == ["a"]
    assert y.grad is None
    assert x.grad is not None
