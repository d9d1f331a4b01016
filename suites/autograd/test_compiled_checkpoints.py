"""Checkpoints in compiled functions: the compiler decides what to save, and must follow the checkpoint's policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from suites import _torch_private_compiled as private
from suites.compiled import KEEPS, KEPT, REPLAYS, WRAPPED_SUITES

from .counting import OperatorCounts
from .engines import COMPILED, Engine, Known

#: Applies under both engines, because the cases call `torch.compile`.
pytestmark = pytest.mark.keeps(KEEPS, **KEPT)


def chain(x: Tensor) -> Tensor:
    for _ in range(3):
        x = (x @ x).sin()
    return x


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile the function behind a checkpoint as one graph, with a backend that runs each traced operator."""

    def behind(*given: Any) -> Any:
        return checkpoint(function, *given, use_reentrant=False, **options)

    made: Callable[..., Any] = torch.compile(behind, backend="aot_eager_decomp_partition", fullgraph=True)
    return made


def saved(function: Callable[..., Any], *given: Any) -> tuple[Any, int]:
    """Return the result of a call, and the number of tensors that it saved for its backward pass."""
    packed: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        packed.append(1)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = function(*given)
    return result, len(packed)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Reset the compiler before and after the case; its cache does not distinguish checkpoint policies."""
    with private.fresh_compiler():
        yield


@pytest.fixture
def x(device: torch.device) -> Tensor:
    torch.manual_seed(2)
    return torch.randn(4, 4).to(device).requires_grad_()


@pytest.mark.covers(WRAPPED_SUITES)
def test_compile_with_checkpoint_saves_only_the_input(x: Tensor, engine: Engine) -> None:
    """A checkpoint in a compiled function saves only its input between the passes.

    The function without a checkpoint saves more; value and gradient are the same.
    """
    plain: Any = torch.compile(chain, backend="aot_eager_decomp_partition", fullgraph=True)
    wanted, many = saved(plain, x)
    (expected,) = torch.autograd.grad(wanted.sum(), x)

    result, few = saved(compiled(chain), x)
    assert few == 1
    assert many > 1
    torch.testing.assert_close(result, wanted)
    (found,) = torch.autograd.grad(result.sum(), x)
    torch.testing.assert_close(found, expected)


#: Torch recomputes a random operator with a generator that follows the first one, passed as an extra argument of the
#: compiled backward pass. Only CUDA does this.
GENERATORS_LEFT_OUT = Known(
    "the captured pass leaves out the generators of what runs again (_backward_prologue_functional in "
    "torch/_functorch/_aot_autograd/runtime_wrappers.py of torch 2.13)",
    "https://github.com/pytorch/pytorch/pull/146878",
    IndexError,
)


@pytest.mark.covers(WRAPPED_SUITES)
@REPLAYS
def test_compile_with_checkpoint_draws_the_same_random_numbers(
    engine: Engine, device: torch.device, request: pytest.FixtureRequest
) -> None:
    """In a compiled function behind a checkpoint, dropout's recomputation uses the mask of the forward pass.

    Dropped elements have gradient zero, and kept elements have their gradients.
    """
    if engine.name == COMPILED and device.type == "cuda":
        request.applymarker(GENERATORS_LEFT_OUT.mark())
    x = torch.ones(256, device=device, requires_grad=True)
    drop = compiled(lambda given: torch.nn.functional.dropout(given.sin(), 0.5))

    for _ in range(2):
        result = drop(x)
        (found,) = torch.autograd.grad(result.sum(), x)
        kept = result.detach() != 0
        assert 64 < int(kept.sum()) < 192
        torch.testing.assert_close(found, torch.where(kept, 2 * x.detach().cos(), torch.zeros_like(found)))


@pytest.mark.covers(WRAPPED_SUITES)
@pytest.mark.parametrize("products", ["kept", "run_again"])
def test_compile_with_a_checkpoint_policy_of_operators(products: str, x: Tensor, engine: Engine) -> None:
    """A checkpoint policy decides which operators a compiled function recomputes in the backward pass.

    Matrix products are not recomputed under a policy that saves them, and are under a policy that saves nothing; the
    gradient is the same.
    """
    keeps = CheckpointPolicy.MUST_SAVE if products == "kept" else CheckpointPolicy.MUST_RECOMPUTE

    def policy(context: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return keeps if operator is torch.ops.aten.mm.default else CheckpointPolicy.PREFER_RECOMPUTE

    function = compiled(chain, context_fn=lambda: create_selective_checkpoint_contexts(policy))
    (expected,) = torch.autograd.grad(chain(x).sum(), x)

    result = function(x)
    with OperatorCounts() as ran:
        (found,) = torch.autograd.grad(result.sum(), x)

    torch.testing.assert_close(found, expected)
    # Two backward products for each of the three products, and the three products if they are recomputed.
    assert ran.counts["mm"] == (6 if products == "kept" else 9)


@pytest.mark.covers(WRAPPED_SUITES)
def test_compile_with_checkpoint_gives_gradients_of_a_modules_parameters(engine: Engine, device: torch.device) -> None:
    """A compiled function's module parameters have the same gradients as without a checkpoint, in each pass.

    The function closes over the parameters.
    """
    torch.manual_seed(4)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)).to(device)
    function = compiled(model)
    for size in (2, 5):
        given = torch.randn(size, 3).to(device)
        expected = torch.autograd.grad(model(given).sum(), list(model.parameters()))
        model.zero_grad()
        function(given).sum().backward()
        for parameter, wanted in zip(model.parameters(), expected, strict=True):
            assert parameter.grad is not None
            torch.testing.assert_close(parameter.grad, wanted)


@pytest.mark.requires(torch=">=2.13")
@pytest.mark.parametrize(("budget", "kept"), [(1.0, 6), (0.5, 3), (0.0, 1)])
def test_region_activation_memory_budget_decides_how_much_is_saved(
    engine: Engine, device: torch.device, budget: float, kept: int
) -> None:
    """`region_activation_memory_budget` saves all tensors, a part, or the inputs only; the gradient is the same.

    Outside of a compiled function, or beyond 0 to 1, it raises.
    """
    budgeted = torch.autograd.graph.region_activation_memory_budget
    x = torch.randn(8, 8, dtype=torch.float64).to(device).requires_grad_()
    (expected,) = torch.autograd.grad(chain(x).sum(), x)

    def function(at: Tensor) -> Tensor:
        with budgeted(budget):
            return chain(at)

    result, tensors = saved(torch.compile(function, backend="aot_eager_decomp_partition", fullgraph=True), x)
    (found,) = torch.autograd.grad(result.sum(), x)

    torch.testing.assert_close(found, expected)
    unbudgeted, most = saved(torch.compile(chain, backend="aot_eager_decomp_partition", fullgraph=True), x)
    torch.testing.assert_close(torch.autograd.grad(unbudgeted.sum(), x)[0], expected)
    assert tensors == kept <= most
    for value in (-0.1, 1.1):
        with pytest.raises(ValueError, match="must be in"):
            budgeted(value)
    with pytest.raises(RuntimeError, match="inside a torch"), budgeted(0.5):
        pass
