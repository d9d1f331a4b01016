"""Modules and optimizers in the tree."""

from __future__ import annotations

import pytest
import torch

from .node import Kind, Node, names
from .trees import record
from .workloads import Scale, modules, training_step

WITH_MODULES = pytest.mark.covers(
    "test_profiler_tree::TestProfilerTree::test_profiler_experimental_tree_with_stack_and_modules"
)
PREFIX = "nn.Module: "
STEP = "Optimizer.step#SGD.step"
ZERO_GRAD = "Optimizer.zero_grad#SGD.zero_grad"


def modules_in(tree: Node) -> list[Node]:
    """Return the module calls in a tree, in the order of their start."""
    return [node for node in tree.of_kind(Kind.PYTHON) if node.name.startswith(PREFIX)]


@WITH_MODULES
def test_with_stack_modules_nest_as_their_calls() -> None:
    """A module's call is a frame with its class name and a number, and contains the calls of its submodules."""
    tree = record(modules(), with_stack=True).one_frame("work")

    outermost = modules_in(tree)[0]
    assert outermost.name == f"{PREFIX}Chain_0"
    inner = modules_in(outermost)
    assert names(inner) == [f"{PREFIX}Scale_0", f"{PREFIX}Scale_1", f"{PREFIX}ReLU_0"]
    assert [names(module.of_kind(Kind.OP))[0] for module in inner] == ["aten::mul", "aten::mul", "aten::relu"]
    assert not [below for module in inner for below in modules_in(module)]


@WITH_MODULES
def test_with_stack_module_instance_keeps_its_number() -> None:
    """Within a profile, the number identifies the instance.

    Calls of one instance share it, and two instances differ.
    """
    one, other, x = Scale(), Scale(), torch.ones(3)

    def work() -> None:
        one(x)
        other(x)
        one(x)

    numbers = [node.name for node in modules_in(record(work, with_stack=True).one_frame("work"))]

    assert numbers[0] == numbers[2] != numbers[1]
    assert set(numbers) == {f"{PREFIX}Scale_0", f"{PREFIX}Scale_1"}


@WITH_MODULES
def test_with_stack_forward_hook_is_below_the_module_beside_its_forward() -> None:
    """Operators of a forward hook are below the module's call, but not below its `forward`."""
    module, x = Scale(), torch.ones(3)

    def hook(*_: object) -> None:
        torch.sin(x)

    module.register_forward_hook(hook)

    def work() -> None:
        module(x)

    tree = record(work, with_stack=True).one_frame("work")

    call = tree.one(f"{PREFIX}Scale_0")
    assert call.one_frame("hook").all("aten::sin")
    assert not call.one_frame("forward").all("aten::sin")
    assert tree.all("aten::sin") == call.all("aten::sin")


@WITH_MODULES
def test_with_stack_module_left_by_an_exception_ends_there() -> None:
    """Operators that run after a module's exception was caught are not below the module."""

    class Failing(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch.sin(x)
            raise LookupError

    module, x = Failing(), torch.ones(3)

    def work() -> None:
        try:
            module(x)
        except LookupError:
            torch.cos(x)

    tree = record(work, with_stack=True).one_frame("work")

    assert names(tree.one(f"{PREFIX}Failing_0").of_kind(Kind.OP)) == ["aten::sin"]
    assert names(tree.of_kind(Kind.OP)) == ["aten::sin", "aten::cos"]


@WITH_MODULES
def test_with_stack_is_needed_for_modules() -> None:
    """Without `with_stack`, the operators of modules are roots."""
    tree = record(modules())

    assert names(tree.children) == ["aten::mul", "aten::mul", "aten::relu"]


def test_optimizer_step_is_a_scope_around_its_updates() -> None:
    """Each step is one scope named after the optimizer, with one update per parameter in it.

    Neither forward nor backward is in it.
    """
    work = training_step()

    def twice() -> None:
        work()
        work()

    tree = record(twice)

    steps = tree.all(STEP)
    assert [names(step.children) for step in steps] == [["aten::add_"] * 2] * 2
    assert len(tree.all("aten::add_")) == 4
    assert all(step in tree.children for step in steps)


def test_zero_grad_is_a_scope_of_the_optimizer() -> None:
    """`zero_grad` is one scope after the step's, and the gradients are released in it."""
    tree = record(training_step(), profile_memory=True)

    scopes = [name for name in names(tree.children) if name.startswith("Optimizer.")]
    assert scopes == [STEP, ZERO_GRAD]
    released = [node.block.size for node in tree.one(ZERO_GRAD).of_kind(Kind.MEMORY) if node.block]
    assert released == [-12, -12]


def test_optimizer_updates_are_below_its_step_and_no_module() -> None:
    """With stacks, updates are below the optimizer's `step` and below no module."""
    tree = record(training_step(), with_stack=True).one_frame("work")

    (step,) = (frame for frame in tree.frames("step") if frame.name == "torch/optim/sgd.py: step")
    updates = tree.all("aten::add_")
    assert len(updates) == 2
    assert step.all("aten::add_") == updates
    assert not [module for module in modules_in(tree) if module.all("aten::add_")]


def test_backward_is_below_no_module_and_no_optimizer() -> None:
    """The engine's work is below the call of `backward`, not below the modules whose nodes it evaluates."""
    tree = record(training_step(), with_stack=True).one_frame("work")

    lines = [names(above) for node, above in tree.with_parents() if node.name.endswith("Backward0")]
    assert lines, str(tree)
    for over in lines:
        assert "torch/_tensor.py: backward" in over, str(tree)
        assert not [name for name in over if name.startswith((PREFIX, "torch/optim/"))], str(tree)


@pytest.mark.parametrize(
    "optimiser", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop], ids=lambda o: o.__name__
)
def test_optimizer_step_scope_has_the_name_of_the_class(optimiser: type[torch.optim.Optimizer]) -> None:
    """The scope of a step has the optimizer's class name, and contains an update of the parameter."""
    parameter = torch.ones(3, requires_grad=True)
    parameter.grad = torch.ones(3)
    step = optimiser([parameter]).step
    step()

    tree = record(step)

    (scope,) = tree.children
    assert scope.name == f"Optimizer.step#{optimiser.__name__}.step"
    assert [name for name in names(scope.of_kind(Kind.OP)) if name.rstrip("_") in UPDATES], str(tree)


UPDATES = ("aten::add", "aten::addcdiv", "aten::_foreach_add", "aten::_foreach_addcdiv")
