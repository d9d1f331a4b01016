"""Hooks in a captured pass: they run, their results are used, and they are part of the cache key."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
import torch
from torch import nn

from suites.compiled import Counts, compare

from .models import gradients, network, rows, smooth

ROW = "test_compiled_autograd::TestCompiledAutograd::"

Hook: TypeAlias = Callable[[torch.Tensor], torch.Tensor]


def twice(gradient: torch.Tensor) -> torch.Tensor:
    return gradient * 2


def one_more(gradients: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (gradients[0] + 1, *gradients[1:])


def sine_of_inputs(inputs: tuple[Any, ...], outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    return (torch.sin(inputs[0]) + outputs[0], *inputs[1:])


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.covers(f"{ROW}test_tensor_grad_hook1")
def test_register_hook_on_a_leaf_changes_its_gradient(device: torch.device, backend: str) -> None:
    """The result of a hook on a parameter is its gradient.

    A second model with the same hook function needs no capture.
    """

    def work() -> Iterator[object]:
        for _ in range(3):
            model = network(device)
            model[0].weight.register_hook(twice)
            model(rows(2, device)).sum().backward()
            yield list(gradients(model))

    assert compare(work, backend=backend) == Counts(1, 1)


@pytest.mark.parametrize(
    ("method", "hook"),
    [
        pytest.param(
            "register_prehook", one_more, marks=pytest.mark.covers(f"{ROW}test_tensor_grad_hook2"), id="before"
        ),
        pytest.param(
            "register_hook", sine_of_inputs, marks=pytest.mark.covers(f"{ROW}test_tensor_grad_hook3"), id="after"
        ),
    ],
)
def test_node_register_prehook_and_register_hook_change_what_goes_through(
    device: torch.device, method: str, hook: Any
) -> None:
    """A node's pre-hook replaces the gradients that the node receives, and its hook those that it returns."""

    def work() -> Iterator[object]:
        for _ in range(3):
            model = smooth(device)
            result = model(rows(1, device)).sum()
            getattr(result.grad_fn, method)(hook)
            result.backward()
            yield list(gradients(model))

    assert compare(work, backend="eager") == Counts(1, 1)


def test_register_hook_in_the_middle_and_its_removal(device: torch.device) -> None:
    """A hook on an intermediate tensor affects all earlier gradients; its removal makes a different pass."""

    def work() -> Iterator[object]:
        model = smooth(device)
        for hooked in (True, False, True):
            model.zero_grad()
            middle = model[0](rows(2, device))
            handle = middle.register_hook(twice)
            if not hooked:
                handle.remove()
            model[1](middle).sum().backward()
            yield list(gradients(model))

    assert compare(work, backend="eager").captures == 2


@pytest.mark.parametrize("hooked", [(0,), (1,), (2,), (0, 2)], ids=str)
def test_register_hook_on_outputs_of_one_operator_changes_their_gradients(
    device: torch.device, hooked: tuple[int, ...]
) -> None:
    """A hook on one output of an operator changes the gradient of that output only."""

    def work() -> Iterator[object]:
        x = rows(3, device).requires_grad_()
        outputs = x.sin().unbind(0)
        for place in hooked:
            outputs[place].register_hook(twice)
        sum((place + 2) * output.sum() for place, output in enumerate(outputs)).backward()
        expected = torch.stack([(place + 2) * (1 + (place in hooked)) * row.cos() for place, row in enumerate(x)])
        torch.testing.assert_close(x.grad, expected)
        yield x.grad

    assert compare(work, backend="eager") == Counts(1, 1)


def test_register_post_accumulate_grad_hook_finds_the_gradient(device: torch.device) -> None:
    """A post-accumulate hook finds the accumulated gradient in `.grad` and may remove it.

    This is how an optimizer steps within the pass.
    """

    def step(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        with torch.no_grad():
            parameter.sub_(parameter.grad, alpha=0.5)
        parameter.grad = None

    def work() -> Iterator[object]:
        model = smooth(device)
        handles = [parameter.register_post_accumulate_grad_hook(step) for parameter in model.parameters()]
        for number in range(3):
            if number == 1:
                for parameter in model.parameters():
                    parameter.grad = torch.full_like(parameter, 0.25)
            model(rows(2, device)).sum().backward()
            yield [parameter.detach() for parameter in model.parameters()]
            yield [parameter.grad for parameter in model.parameters()]
        for handle in handles:
            handle.remove()

    assert compare(work, backend="eager", fullgraph=False).captures >= 1


def test_register_full_backward_hook_and_pre_hook_of_modules(device: torch.device) -> None:
    """Full backward hooks and pre-hooks of a module replace its gradients."""

    def work() -> Iterator[object]:
        model = smooth(device)
        handles = [
            model.register_full_backward_pre_hook(lambda _, outputs: (outputs[0] * 3,)),
            model[0].register_full_backward_hook(lambda _, inputs, outputs: (inputs[0] + outputs[0].sum(),)),
        ]
        x = rows(2, device).requires_grad_()
        model(x).sum().backward()
        yield [x.grad, *gradients(model)]
        for handle in handles:
            handle.remove()

    assert compare(work, backend="eager", fullgraph=False).captures == 1


def by_default(factor: float) -> Hook:
    return lambda gradient, factor=factor: gradient * factor


def by_closure(factor: float) -> Hook:
    return lambda gradient: gradient * factor


DEFAULTS_UNSEEN = pytest.mark.xfail(
    torch.__version__ < (2, 12),
    raises=AssertionError,
    reason="up to torch 2.11 Dynamo does not distinguish functions that differ only in their defaults "
    "(https://github.com/pytorch/pytorch/issues/178365)",
)


@pytest.mark.parametrize("scaling", [pytest.param(by_default, marks=DEFAULTS_UNSEEN), by_closure])
def test_register_hook_distinguishes_two_lambdas(scaling: Callable[[float], Hook], device: torch.device) -> None:
    """Hooks with the same code are distinguished by the values in their defaults or closures."""

    def work() -> Iterator[object]:
        for factor in (2.0, 5.0, 2.0):
            x = torch.ones(3, device=device, requires_grad=True)
            x.register_hook(scaling(factor))
            x.exp().sum().backward()
            yield x.grad

    assert compare(work, backend="eager", fullgraph=False).captures >= 1


def test_register_hook_that_returns_none_changes_nothing(device: torch.device) -> None:
    """A hook that returns None is called once per pass with the gradient and changes nothing."""
    seen: list[float] = []

    def look(gradient: torch.Tensor) -> None:
        seen.append(float(gradient.sum()))

    def work() -> Iterator[object]:
        seen.clear()
        x = torch.ones(3, device=device, requires_grad=True)
        x.register_hook(look)
        (x * 4).sum().backward()
        yield x.grad
        yield list(seen)

    assert compare(work, backend="eager", fullgraph=False).captures == 1
    assert seen == [12.0]


@pytest.mark.covers(f"{ROW}test_checkpointing_simple")
@pytest.mark.parametrize(
    "reentrant",
    [
        pytest.param(False, id="not_reentrant"),
        # The captured pass asks `torch.soft` whether the device is initialised, which is a function in C++: Dynamo
        # traces none that it does not know.
        pytest.param(True, id="reentrant", marks=pytest.mark.requires(not_={"device": "soft"})),
    ],
)
def test_checkpoint_is_computed_again_in_a_captured_pass(device: torch.device, reentrant: bool) -> None:
    """A checkpoint is recomputed in the captured pass with the same random numbers.

    The gradients match the engine's. A reentrant checkpoint runs an engine pass within the pass.
    """

    def work() -> Iterator[object]:
        model = nn.Sequential(smooth(device), nn.Dropout(0.5), smooth(device))
        x = rows(3, device).requires_grad_()
        ran: list[str] = []

        def part(x: torch.Tensor) -> torch.Tensor:
            ran.append("part")
            out: torch.Tensor = model(x)
            return out

        checkpointed = torch.utils.checkpoint.checkpoint(part, x, use_reentrant=reentrant)
        assert isinstance(checkpointed, torch.Tensor)
        assert ran == ["part"]
        checkpointed.sum().backward()
        yield [x.grad, *gradients(model)]
        assert ran == ["part"] * 2

    assert compare(work, backend="eager", fullgraph=False).captures >= 1


@pytest.mark.covers(f"{ROW}test_checkpointing_sac")
def test_checkpoint_selective_keeps_chosen_operators(device: torch.device) -> None:
    """With selective checkpointing, the captured pass has the engine's gradients."""
    from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

    def policy(_: Any, op: Any, *__: Any, **___: Any) -> CheckpointPolicy:
        kept = op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
        return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE

    def work() -> Iterator[object]:
        model = nn.Sequential(smooth(device), smooth(device))
        x = rows(3, device).requires_grad_()
        contexts = lambda: create_selective_checkpoint_contexts(policy)  # noqa: E731
        checkpoint(model, x, use_reentrant=False, context_fn=contexts).sum().backward()
        yield [x.grad, *gradients(model)]

    assert compare(work, backend="eager", fullgraph=False).captures == 1
