"""Extraction of gradients: from autograd operators, module calls and optimizer steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch

from suites.host_kernels import MSE_LOSS_WARNS

from .models import perceptron
from .recordings import Recording, record
from .values import Finder

pytestmark = MSE_LOSS_WARNS

CLASS = "test_memory_profiler::TestIdentifyGradients"
FROM_OPERATORS = pytest.mark.covers(f"{CLASS}::test_extract_gradients_low_level")
FROM_MODULE = pytest.mark.covers(f"{CLASS}::test_extract_gradients_from_module")
FROM_MODULE_AND_OPTIMIZER = pytest.mark.covers(f"{CLASS}::test_extract_gradients_from_module_and_optimizer")

# Whether `.grad` exists before the run. If not, the run creates it; otherwise it accumulates into it.
START = pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])

CLEARED = pytest.mark.parametrize(
    "set_to_none",
    [
        pytest.param(False, id="zeroed", marks=pytest.mark.covers(f"{CLASS}::test_extract_gradients_from_optimizer")),
        pytest.param(
            True,
            id="set_to_none",
            marks=pytest.mark.covers(f"{CLASS}::test_extract_gradients_from_optimizer_set_to_none"),
        ),
    ],
)

OPTIMIZERS = pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda leaves: torch.optim.SGD(leaves, lr=0.1, momentum=0.9), id="sgd"),
        pytest.param(lambda leaves: torch.optim.Adam(leaves, lr=0.1), id="adam"),
    ],
)

Pair = tuple[int | None, int]


def address(tensor: torch.Tensor | None) -> int:
    """Return the address of a tensor's memory. The tensor must not be None."""
    assert tensor is not None
    return tensor.untyped_storage().data_ptr()


def found(recording: Recording, by: Finder) -> set[Pair]:
    """Return the addresses of each parameter (None if the finder does not know it) and its gradient."""
    return {
        (None if each.parameter is None else each.parameter.address, each.gradient.address)
        for each in recording.gradients
        if each.by is by
    }


def pairs(parameters: Iterable[torch.Tensor]) -> set[Pair]:
    """Return the expected pairs from a finder that knows the parameters."""
    return {(address(p), address(p.grad)) for p in parameters}


def unpaired(gradients: Iterable[torch.Tensor | None]) -> set[Pair]:
    """Return the expected pairs from a finder that does not know the parameters."""
    return {(None, address(gradient)) for gradient in gradients}


def grads(parameters: Iterable[torch.Tensor]) -> list[torch.Tensor | None]:
    return [p.grad for p in parameters]


def leaves(device: torch.device) -> list[torch.Tensor]:
    """Return two tensors that require grad and belong to no module."""
    return [torch.full((3,), value, device=device, requires_grad=True) for value in (0.5, 2.0)]


def backward(a: torch.Tensor, b: torch.Tensor) -> None:
    """Run a pass in which one leaf is used through a view, and both leaves contribute to one scalar."""
    ((a.expand(4, 3) * b).cos() + b).sum().backward()


@FROM_OPERATORS
@START
def test_extract_gradients_of_autograd_gives_the_gradient_of_each_leaf(device: torch.device, warm: bool) -> None:
    """Without module and optimizer, the operators that write or accumulate a gradient identify it, without its leaf.

    No other tensor is identified as a gradient.
    """
    both = leaves(device)
    if warm:
        backward(*both)
    assert [gradient is not None for gradient in grads(both)] == [warm, warm]

    recording = record(lambda: backward(*both), device)

    assert found(recording, Finder.OPERATOR) == unpaired(grads(both))
    assert found(recording, Finder.PYTHON) == set()


@FROM_OPERATORS
def test_extract_gradients_of_a_leaf_without_requires_grad_is_none(device: torch.device) -> None:
    """A leaf that autograd does not reach yields no gradient, even if it has one from before."""
    used, idle = leaves(device)
    backward(used, idle)

    recording = record(lambda: (used * idle.detach()).sum().backward(), device)

    assert found(recording, Finder.OPERATOR) == unpaired([used.grad])
    assert found(recording, Finder.PYTHON) == set()


@FROM_MODULE
@START
def test_extract_gradients_of_a_module_at_its_call(device: torch.device, warm: bool) -> None:
    """A module call yields each parameter with its gradient if it exists at that time.

    In the first pass, only autograd yields gradients. Custom layers are treated like torch's.
    """
    model = perceptron(device)
    x = torch.ones((2, 3), device=device)
    if warm:
        model(x).sum().backward()

    recording = record(lambda: model(x).sum().backward(), device)

    assert len(list(model.parameters())) == 5
    assert found(recording, Finder.PYTHON) == (pairs(model.parameters()) if warm else set())
    assert found(recording, Finder.OPERATOR) == unpaired(grads(model.parameters()))


@FROM_MODULE
def test_extract_gradients_of_a_module_without_a_backward_in_the_run(device: torch.device) -> None:
    """Gradients of an earlier pass are found in a run that only calls the module, by the call alone."""
    model = perceptron(device)
    x = torch.ones((2, 3), device=device)
    model(x).sum().backward()

    recording = record(lambda: model(x), device)

    assert found(recording, Finder.PYTHON) == pairs(model.parameters())
    assert found(recording, Finder.OPERATOR) == set()


@FROM_MODULE
def test_extract_gradients_of_a_module_without_gradients_is_none(device: torch.device) -> None:
    """A model without gradients yields none."""
    model = perceptron(device)
    x = torch.ones((2, 3), device=device)
    model(x).sum().backward()
    model.zero_grad(set_to_none=True)

    recording = record(lambda: model(x), device)

    assert recording.gradients == []


@FROM_MODULE
@START
def test_extract_gradients_ignores_tensors_of_hooks(device: torch.device, warm: bool) -> None:
    """Tensors created by module hooks are not gradients.

    If a hook replaces a gradient, the one in `.grad` is found and the replaced one is not.
    """
    model = perceptron(device)
    x = torch.ones((2, 3), device=device)
    made: list[torch.Tensor] = []
    replaced: list[torch.Tensor] = []

    def double(gradient: torch.Tensor) -> torch.Tensor:
        replaced.append(gradient)
        return gradient * 2

    def keep(_module: object, _arguments: object, output: torch.Tensor) -> None:
        made.append(output * 3)

    if warm:
        model(x).sum().backward()
    weight = next(iter(model.parameters()))
    handles = [weight.register_hook(double), model.register_forward_hook(keep)]

    recording = record(lambda: model(x).sum().backward(), device)
    for handle in handles:
        handle.remove()

    assert len(made) == len(replaced) == 1
    everything = {gradient for by in Finder for _, gradient in found(recording, by)}
    assert everything == {address(gradient) for gradient in grads(model.parameters())}
    assert everything.isdisjoint({address(tensor) for tensor in made + replaced})


@CLEARED
@OPTIMIZERS
@START
def test_extract_gradients_of_an_optimizer_gives_those_of_its_step(
    device: torch.device, make: Callable[[list[torch.Tensor]], torch.optim.Optimizer], set_to_none: bool, warm: bool
) -> None:
    """An optimizer step yields each parameter with the gradient that it uses, however that was created or cleared.

    Autograd yields the same gradients, and there are no others.
    """
    both = leaves(device)
    optimizer = make(both)

    def step() -> None:
        optimizer.zero_grad(set_to_none=set_to_none)
        backward(*both)
        optimizer.step()

    if warm:
        step()

    recording = record(step, device)

    assert found(recording, Finder.PYTHON) == pairs(both)
    assert found(recording, Finder.OPERATOR) == unpaired(grads(both))


@CLEARED
@OPTIMIZERS
@START
def test_extract_gradients_inspects_an_optimizer_once_per_run(
    device: torch.device, make: Callable[[list[torch.Tensor]], torch.optim.Optimizer], set_to_none: bool, warm: bool
) -> None:
    """Only an optimizer's first step is inspected in a run.

    Gradients cleared in place are the same tensors in each step. If gradients are replaced, autograd yields the later
    ones. The replaced gradients are kept alive, so that no other tensor has their address.
    """
    both = leaves(device)
    optimizer = make(both)

    def step() -> list[torch.Tensor | None]:
        optimizer.zero_grad(set_to_none=set_to_none)
        backward(*both)
        optimizer.step()
        return grads(both)

    if warm:
        step()

    recording = record(lambda: [step() for _ in range(3)], device)

    first, second, last = recording.result
    assert found(recording, Finder.PYTHON) == {(address(p), address(g)) for p, g in zip(both, first, strict=True)}
    assert found(recording, Finder.OPERATOR) == unpaired([*first, *second, *last])
    assert len(found(recording, Finder.OPERATOR)) == (6 if set_to_none else 2)


@FROM_MODULE_AND_OPTIMIZER
@START
def test_extract_gradients_of_module_and_optimizer_agree(device: torch.device, warm: bool) -> None:
    """Module call, optimizer step and autograd agree on the gradient of each parameter."""
    model = perceptron(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.ones((2, 3), device=device)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()

    if warm:
        step()

    recording = record(step, device)

    assert found(recording, Finder.PYTHON) == pairs(model.parameters())
    assert found(recording, Finder.OPERATOR) == unpaired(grads(model.parameters()))
    shown = [each for each in recording.gradients if each.by is Finder.PYTHON]
    assert len(shown) > len(pairs(model.parameters())) if warm else shown
