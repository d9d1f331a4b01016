"""The category of each tensor: parameter, gradient, input, activation, temporary, optimizer state."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from suites.host_kernels import MSE_LOSS_WARNS

from . import scenes
from .models import LateLinear, linear, perceptron, train
from .recordings import Recording, record
from .scenes import Scene
from .values import Category

CLASS = "test_memory_profiler::TestMemoryProfilerE2E"

# Operators of the software device call other operators than those of torch's own devices, which changes the tensors
# from which categories are derived.
pytestmark = [pytest.mark.requires(not_={"device": "soft"}), MSE_LOSS_WARNS]


def covers(test: str) -> pytest.MarkDecorator:
    """Return the mark for an inventory row."""
    return pytest.mark.covers(f"{CLASS}::{test}")


def check_parameters(recording: Recording, model: nn.Module, with_gradients: bool) -> None:
    """Check that each parameter is a PARAMETER in all its versions, and its gradient, if it exists, a GRADIENT."""
    for name, parameter in model.named_parameters():
        assert recording.category(parameter) is Category.PARAMETER, name
        assert (parameter.grad is not None) == with_gradients
        if parameter.grad is not None:
            assert recording.category(parameter.grad) is Category.GRADIENT, name


# Parameters and gradients


@covers("test_parameters_and_gradients")
@pytest.mark.parametrize("before", [0, 1, 2], ids=["first", "second", "third"])
def test_categories_of_a_training_step_show_parameters_and_gradients(device: torch.device, before: int) -> None:
    """Parameters and gradients are recognized in every step, also in the first, which creates the gradients."""
    model = perceptron(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, target = torch.ones((2, 3), device=device), torch.zeros((2, 1), device=device)
    for _ in range(before):
        train(model, optimizer, x, target)

    recording = record(lambda: train(model, optimizer, x, target), device)

    check_parameters(recording, model, with_gradients=True)


@covers("test_parameters_and_gradients")
@pytest.mark.parametrize("trained", [False, True], ids=["untrained", "trained"])
def test_categories_of_a_call_show_parameters_and_gradients_from_before(device: torch.device, trained: bool) -> None:
    """A run that only calls the model recognizes its parameters and existing gradients, and reports no others."""
    model = perceptron(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, target = torch.ones((2, 3), device=device), torch.zeros((2, 1), device=device)
    if trained:
        train(model, optimizer, x, target)

    recording = record(lambda: model(x), device)

    check_parameters(recording, model, with_gradients=trained)
    if not trained:
        assert Category.GRADIENT not in recording.categories.values()


@covers("test_parameters_and_gradients_set_to_none")
@pytest.mark.parametrize("cleared", [False, True], ids=["gradients_there", "gradients_gone"])
def test_categories_gradients_replaced_at_each_step_are_recognized(device: torch.device, cleared: bool) -> None:
    """Over several steps with cleared gradients, every gradient is recognized.

    This includes the first gradients and those that Python's tracer did not see; parameters remain parameters.
    """
    model = perceptron(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, target = torch.ones((2, 3), device=device), torch.zeros((2, 1), device=device)
    train(model, optimizer, x, target)
    if cleared:
        optimizer.zero_grad(set_to_none=True)
    assert all((parameter.grad is None) == cleared for parameter in model.parameters())

    def work() -> list[torch.Tensor]:
        gradients = []
        for _ in range(3):
            train(model, optimizer, x, target)
            gradients += [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        return gradients

    recording = record(work, device)

    check_parameters(recording, model, with_gradients=True)
    assert len({recording.key(gradient) for gradient in recording.result}) == 15
    assert {recording.category(gradient) for gradient in recording.result} == {Category.GRADIENT}


@covers("test_lazily_initialized")
@pytest.mark.parametrize(
    ("late", "there"),
    [
        pytest.param(lambda device: LateLinear(4, 2, device), 4, id="own"),
        pytest.param(lambda device: nn.LazyLinear(2, device=device), 6, id="torch"),
    ],
)
def test_categories_parameters_made_in_the_run_are_parameters(
    device: torch.device, late: Callable[[torch.device], nn.Module], there: int
) -> None:
    """Parameters that a layer creates or allocates at its first call are recognized, and so are their gradients."""
    model = nn.Sequential(linear(3, 4, device), nn.Tanh(), late(device), nn.Tanh(), linear(2, 1, device))
    x, target = torch.ones((2, 3), device=device), torch.zeros((2, 1), device=device)
    assert len(list(model.parameters())) == there

    def work() -> None:
        y = model(x)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.zero_grad()
        nn.functional.mse_loss(y, target).backward()
        optimizer.step()

    recording = record(work, device)

    assert len(list(model.parameters())) == 6
    check_parameters(recording, model, with_gradients=True)


@covers("test_manual_optimizer_step")
def test_categories_parameters_of_an_update_by_hand(device: torch.device) -> None:
    """Parameters are recognized without an optimizer, by an in-place update; the updated version is a parameter too."""
    model = nn.Sequential(linear(3, 2, device), linear(2, 1, device))
    x = torch.ones((2, 3), device=device)

    def work() -> None:
        model(x).square().sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.sub_(parameter.grad, alpha=0.1)

    recording = record(work, device)

    check_parameters(recording, model, with_gradients=True)
    assert all(set(recording.versions(parameter)) == {0, 1} for parameter in model.parameters())


@covers("test_manual_optimizer_step")
def test_categories_parameters_by_the_data_flow_alone(device: torch.device) -> None:
    """Without module and optimizer, a tensor that is updated from its gradient is a parameter in all versions.

    The other operand of the first layer is an input.
    """
    scene = scenes.stacked(device)
    recording = record(scene.work, device)

    left = recording.result
    assert {name: recording.category(tensor) for name, tensor in left.items()} == {
        "w0": Category.PARAMETER,
        "w1": Category.PARAMETER,
        "w0_grad": Category.GRADIENT,
        "w1_grad": Category.GRADIENT,
    }
    assert recording.category(scene.given["x"]) is Category.INPUT


# Inputs


@covers("test_inputs_fwd")
def test_categories_input_of_a_model_call(device: torch.device) -> None:
    """The arguments of a model with known parameters are inputs, whether created before or in the run."""
    model = nn.Sequential(linear(3, 2, device), linear(2, 1, device))
    before = [torch.ones((2, 3), device=device) for _ in range(2)]

    def work() -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        inputs = [*before, *(torch.ones((2, 3), device=device) for _ in range(2))]
        results = [model(x) for x in inputs]
        torch.cat(results)
        return inputs, results

    recording = record(work, device)

    inputs, results = recording.result
    assert [recording.category(x) for x in inputs] == [Category.INPUT] * 4
    assert [recording.category(y) for y in results] == [Category.ACTIVATION] * 4
    assert list(recording.categories.values()).count(Category.INPUT) == 4


@covers("test_inputs_fwd_lazy")
@pytest.mark.parametrize(
    "late",
    [
        pytest.param(lambda device: nn.Sequential(LateLinear(3, 2, device), LateLinear(2, 1, device)), id="own"),
        pytest.param(
            lambda device: nn.Sequential(nn.LazyLinear(2, device=device), nn.LazyLinear(1, device=device)), id="torch"
        ),
    ],
)
def test_categories_of_a_model_with_unknown_parameters_are_none(
    device: torch.device, late: Callable[[torch.device], nn.Module]
) -> None:
    """A forward of a model that creates its parameters in the run gives no categories.

    In particular, its parameters are not inputs.
    """
    model = late(device)
    before = [torch.ones((2, 3), device=device) for _ in range(2)]

    def work() -> list[torch.Tensor]:
        inputs = [*before, *(torch.ones((2, 3), device=device) for _ in range(2))]
        for x in inputs:
            model(x)
        return inputs

    recording = record(work, device)

    assert {recording.category(x) for x in recording.result} == {None}
    assert {recording.category(parameter) for parameter in model.parameters()} == {None}
    assert set(recording.categories.values()) <= {None, Category.TEMPORARY}


@covers("test_inputs_fwd_bwd")
@pytest.mark.parametrize("optimized", [True, False], ids=["step", "no_step"])
def test_categories_inputs_and_targets_stay_input_through_backward(device: torch.device, optimized: bool) -> None:
    """Model inputs and loss targets are inputs, although gradients are computed from them, with or without a step."""
    model = nn.Sequential(linear(3, 2, device), linear(2, 1, device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones((2, 3), device=device), torch.full((2, 1), 0.5, device=device)

    before = [batch(), batch()]

    def work() -> list[torch.Tensor]:
        batches = [*before, batch(), batch()]
        for x, target in batches:
            nn.functional.mse_loss(model(x), target).backward()
            if optimized:
                optimizer.step()
                optimizer.zero_grad()
        return [tensor for pair in batches for tensor in pair]

    recording = record(work, device)

    assert len(recording.result) == 8
    assert [recording.category(tensor) for tensor in recording.result] == [Category.INPUT] * 8


# Results of operators, end to end


def made_forward(recording: Recording) -> dict[str, set[Category | None]]:
    """Return the categories of the results of each non-autograd operator with inputs, by name."""
    found: dict[str, set[Category | None]] = {}
    for node in recording.nodes:
        if node.reads and node.name.startswith("aten::"):
            found.setdefault(node.name, set()).update(recording.categories[state] for state in node.makes)
    return found


def made_backward(recording: Recording) -> set[Category | None]:
    """Return the categories of the tensors that autograd nodes created."""
    return {recording.categories[state] for node in recording.nodes if "Backward0" in node.name for state in node.makes}


@covers("test_categories_e2e_simple_fwd")
def test_categories_of_operators_alone_are_none(device: torch.device) -> None:
    """Without module, backward or optimizer, no tensor has a category, whether or not it requires grad."""
    recording = record(scenes.leaves_forward(device).work, device)

    assert len(recording.categories) >= 6
    assert set(recording.categories.values()) == {None}


@covers("test_categories_e2e_simple_fwd_bwd")
def test_categories_gradient_and_input_by_a_backward(device: torch.device) -> None:
    """A backward identifies gradients and the inputs from which they are computed.

    Leaves that are not updated are inputs too, because only an update makes a tensor a parameter.
    """
    recording = record(scenes.leaves_backward(device).work, device)

    left = recording.result
    assert {name: recording.category(left[name]) for name in ("x", "target", "v", "w", "v_grad", "w_grad")} == {
        "x": Category.INPUT,
        "target": Category.INPUT,
        "v": Category.INPUT,
        "w": Category.INPUT,
        "v_grad": Category.GRADIENT,
        "w_grad": Category.GRADIENT,
    }
    assert made_backward(recording) == {Category.GRADIENT, Category.AUTOGRAD_DETAIL}
    assert Category.PARAMETER not in recording.categories.values()


@covers("test_categories_e2e_simple_fwd_bwd_step")
def test_categories_parameter_and_activation_by_an_optimizer_step(device: torch.device) -> None:
    """An optimizer step identifies parameters, and with them the activations up to the loss."""
    recording = record(scenes.leaves_step(device).work, device)

    left = recording.result
    assert {name: recording.category(tensor) for name, tensor in left.items()} == {
        "x": Category.INPUT,
        "target": Category.INPUT,
        "loss": Category.ACTIVATION,
        "v": Category.PARAMETER,
        "w": Category.PARAMETER,
        "v_grad": Category.GRADIENT,
        "w_grad": Category.GRADIENT,
    }
    forward = made_forward(recording)
    assert forward["aten::mul"] == forward["aten::stack"] == forward["aten::mse_loss"] == {Category.ACTIVATION}
    assert made_backward(recording) == {Category.GRADIENT, Category.AUTOGRAD_DETAIL}


MODULES = [
    pytest.param(scenes.module_forward, False, marks=covers("test_categories_e2e_simple_module_fwd"), id="layer"),
    pytest.param(
        scenes.module_backward, True, marks=covers("test_categories_e2e_simple_module_fwd_bwd"), id="layer_backward"
    ),
    pytest.param(
        scenes.module_step, True, marks=covers("test_categories_e2e_simple_module_fwd_bwd_step"), id="layer_step"
    ),
    pytest.param(scenes.layers_forward, False, marks=covers("test_categories_e2e_sequential_fwd"), id="layers"),
    pytest.param(
        scenes.layers_backward, True, marks=covers("test_categories_e2e_sequential_fwd_bwd"), id="layers_backward"
    ),
]


@pytest.mark.parametrize(("scene", "backward"), MODULES)
def test_categories_by_a_module_call_are_complete(
    device: torch.device, scene: Callable[[torch.device], Scene], backward: bool
) -> None:
    """A module call identifies parameters, inputs and activations without a backward.

    A backward adds gradients and autograd details. Every tensor has the correct category.
    """
    recording = record(scene(device).work, device)

    for name, tensor in recording.result.items():
        expected = (
            Category.INPUT
            if name == "x"
            else Category.ACTIVATION
            if name == "loss"
            else Category.GRADIENT
            if name.endswith("_grad")
            else Category.PARAMETER
        )
        assert recording.category(tensor) is expected, name
    forward = made_forward(recording)
    layers = {"aten::linear", "aten::sigmoid"} & forward.keys()
    assert "aten::linear" in layers
    # torch identifies a tensor by the operators that use it. On CUDA, a layer's result is used only by the next
    # operator.
    unknown: list[set[Category | None]] = [set()] if device.type == "cuda" and scene is scenes.module_forward else []
    assert all(forward[layer] in [{Category.ACTIVATION}, *unknown] for layer in layers)
    seen = set(recording.categories.values())
    assert seen - {Category.TEMPORARY} <= (
        {Category.INPUT, Category.PARAMETER, Category.ACTIVATION}
        | ({Category.GRADIENT, Category.AUTOGRAD_DETAIL} if backward else set())
    )
    if backward:
        assert made_backward(recording) >= {Category.GRADIENT, Category.AUTOGRAD_DETAIL}


# Optimizer state and temporaries

OPTIMIZERS = [
    pytest.param(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1, id="sgd_with_momentum"),
    pytest.param(lambda p: torch.optim.Adam(p, lr=0.1), 2, id="adam"),
]


@pytest.mark.parametrize(("make", "buffers"), OPTIMIZERS)
@pytest.mark.parametrize("steps", [1, 2], ids=["made_in_the_run", "from_before"])
def test_categories_optimizer_state_is_kept_by_an_optimizer(
    device: torch.device,
    make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    buffers: int,
    steps: int,
) -> None:
    """The buffers that an optimizer keeps per parameter are its state, and no other tensors are.

    This holds whether they are created in the run or before, although gradients update them as they update parameters.
    """
    model = perceptron(device)
    optimizer = make(list(model.parameters()))
    x, target = torch.ones((2, 3), device=device), torch.zeros((2, 1), device=device)
    for _ in range(steps - 1):
        train(model, optimizer, x, target)

    recording = record(lambda: train(model, optimizer, x, target), device)

    check_parameters(recording, model, with_gradients=True)
    state = [
        tensor
        for parameter in model.parameters()
        for tensor in optimizer.state[parameter].values()
        if isinstance(tensor, torch.Tensor)
    ]
    assert len([tensor for tensor in state if tensor.dim()]) == buffers * 5
    assert {recording.category(tensor) for tensor in state} == {Category.OPTIMIZER_STATE}
    labelled = {key for (key, _), category in recording.categories.items() if category is Category.OPTIMIZER_STATE}
    assert labelled == {recording.key(tensor) for tensor in state}


def test_categories_temporary_is_freed_within_its_operator(device: torch.device) -> None:
    """The temporaries of a composite operator are labelled TEMPORARY, and no other tensors are."""
    x = scenes.values(device)
    recording = record(lambda: torch.nn.functional.cosine_similarity(x, x, dim=0).neg(), device)

    temporary = {state.key for state, category in recording.categories.items() if category is Category.TEMPORARY}
    assert temporary == set(recording.one("aten::cosine_similarity").temporary)
    assert temporary


def test_categories_autograd_detail_is_created_and_freed_by_backward(device: torch.device) -> None:
    """Intermediate tensors of the backward are AUTOGRAD_DETAIL; all are freed, and gradients are not among them."""
    recording = record(scenes.layers_backward(device).work, device)

    details = {key for (key, _), category in recording.categories.items() if category is Category.AUTOGRAD_DETAIL}
    freed = {key for node in recording.nodes for key in node.frees}
    assert details
    assert details <= freed
    made = {state.key for node in recording.nodes if "Backward0" in node.name for state in node.makes}
    assert details <= made
