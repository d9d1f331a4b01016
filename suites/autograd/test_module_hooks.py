"""Backward hooks of modules: their arguments, the values that they may replace, and their order."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from .engines import Engine, Known, waived

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"

COMPILED_MODULES = "https://docs.pytorch.org/docs/stable/torch.compiler_nn_module.html"

Gradients = tuple[torch.Tensor | None, ...]


class Scale(nn.Module):
    """Multiplication by a parameter with the value 3."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(3.0, device=device))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def listed(gradients: Gradients | torch.Tensor) -> list[list[float] | None]:
    every = gradients if isinstance(gradients, tuple) else (gradients,)
    return [None if one is None else one.tolist() for one in every]


@pytest.mark.covers(ROW)
def test_register_full_backward_hook_sees_gradients_of_inputs_and_outputs(engine: Engine, device: torch.device) -> None:
    """A full backward hook receives the gradients of the module's inputs and outputs.

    Its result replaces the gradients of the inputs. Parameters get their gradients as usual.
    """
    module = Scale(device)
    seen: list[Any] = []

    def hook(_: nn.Module, of_inputs: Gradients, of_outputs: Gradients) -> tuple[torch.Tensor]:
        seen.append((listed(of_inputs), listed(of_outputs)))
        assert of_inputs[0] is not None
        return (of_inputs[0] * 10,)

    module.register_full_backward_hook(hook)
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    (module(x) * 2).sum().backward()

    assert seen == [([[6.0, 6.0]], [[2.0, 2.0]])]
    assert x.grad is not None
    assert x.grad.tolist() == [60.0, 60.0]
    assert module.factor.grad is not None
    assert module.factor.grad.item() == 6.0


@pytest.mark.covers(ROW)
def test_register_full_backward_pre_hook_replaces_output_gradients(engine: Engine, device: torch.device) -> None:
    """A full backward pre-hook receives the gradients of the outputs before the module's own backward.

    Its result replaces them for inputs and parameters.
    """
    module = Scale(device)
    module.register_full_backward_pre_hook(lambda _, of_outputs: (of_outputs[0] * 5,))
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)

    module(x).sum().backward()

    assert x.grad is not None
    assert module.factor.grad is not None
    assert x.grad.tolist() == [15.0, 15.0]
    assert module.factor.grad.item() == 15.0


def test_register_full_backward_hook_runs_from_the_last_module_to_the_first(
    engine: Engine, device: torch.device
) -> None:
    """The backward pass runs the hooks of modules from last to first, each pre-hook before its hook.

    A container's pre-hook runs first and its hook last.
    """
    first, last = Scale(device), Scale(device)
    both = nn.Sequential(first, last)
    order: list[str] = []
    for name, module in (("both", both), ("first", first), ("last", last)):
        module.register_full_backward_pre_hook(lambda _, __, name=name: order.append(f"into {name}"))
        module.register_full_backward_hook(lambda _, __, ___, name=name: order.append(f"out of {name}"))
    x = torch.ones(2, device=device, requires_grad=True)

    both(x).sum().backward()

    assert order == ["into both", "into last", "out of last", "into first", "out of first", "out of both"]


def test_register_full_backward_hook_where_no_input_requires_grad(engine: Engine, device: torch.device) -> None:
    """A full backward hook is called, with None per input, even if no input of the module requires grad.

    A warning reports this.
    """
    module = Scale(device)
    seen: list[Any] = []
    module.register_full_backward_hook(lambda _, made, given: seen.append((listed(made), listed(given))))

    with pytest.warns(UserWarning, match="no inputs require gradients"):
        (module(torch.tensor([1.0, 2.0], device=device)) * 2).sum().backward()

    assert seen == [([None], [[2.0, 2.0]])]
    assert module.factor.grad is not None
    assert module.factor.grad.item() == 6.0


def test_register_full_backward_hook_removed_is_not_called(engine: Engine, device: torch.device) -> None:
    """After `remove`, a module's hook is no longer called, and its other hooks still are."""
    module = Scale(device)
    calls: list[str] = []
    removed = module.register_full_backward_hook(lambda _, made, given: calls.append("removed"))
    module.register_full_backward_hook(lambda _, made, given: calls.append("stays"))
    x = torch.ones(2, device=device, requires_grad=True)

    module(x).sum().backward()
    removed.remove()
    module(x).sum().backward()

    assert calls == ["removed", "stays", "stays"]


@waived(Known("global module hooks are also called for the modules of captured graphs", COMPILED_MODULES, UserWarning))
def test_register_module_full_backward_hook_is_called_for_all_modules(engine: Engine, device: torch.device) -> None:
    """A global module backward hook is called for each module in the pass, before the module's own hook."""
    first, last = Scale(device), Scale(device)
    calls: list[str] = []
    first.register_full_backward_hook(lambda module, made, given: calls.append("own"))
    x = torch.ones(2, device=device, requires_grad=True)

    every = nn.modules.module.register_module_full_backward_hook(lambda module, made, given: calls.append("every"))
    try:
        last(first(x)).sum().backward()
    finally:
        every.remove()
    last(first(x)).sum().backward()

    assert calls == ["every", "every", "own", "own"]


def test_register_full_backward_hook_forbids_in_place_change_of_results(engine: Engine, device: torch.device) -> None:
    """With a full backward hook, inputs and outputs of the module are views, and changing them in place raises.

    Out-of-place operations work as usual.
    """
    module = Scale(device)
    module.register_full_backward_hook(lambda _, made, given: None)
    x = torch.ones(2, device=device, requires_grad=True)

    with pytest.raises(RuntimeError, match=r"BackwardHookFunction(Backward)? is a view and is being modified inplace"):
        module(x).add_(1)

    class InPlace(nn.Module):
        def forward(self, given: torch.Tensor) -> torch.Tensor:
            return given.mul_(2)

    changing = InPlace()
    changing.register_full_backward_hook(lambda _, made, given: None)
    with pytest.raises(RuntimeError, match=r"BackwardHookFunction(Backward)? is a view and is being modified inplace"):
        changing(x * 1)
    (module(x) + 1).sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 3.0]
