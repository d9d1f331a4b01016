"""Checkpointing: the forward is recomputed in the backward pass and gives the same gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts

from .counting import OperatorCounts
from .engines import Engine

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"

KINDS = pytest.mark.parametrize("reentrant", [False, True], ids=["kept_graph", "reentrant"])


def run(function: Callable[..., Any], *arguments: Any, reentrant: bool, **options: Any) -> Any:
    return checkpoint(function, *arguments, use_reentrant=reentrant, **options)


@pytest.mark.covers(ROW)
@KINDS
def test_checkpoint_gives_the_gradients_without_it(reentrant: bool, engine: Engine, device: torch.device) -> None:
    """A checkpoint leaves the gradients of inputs and parameters unchanged.

    The function runs once in the forward pass and once in the backward pass.
    """
    torch.manual_seed(3)
    layer = torch.nn.Linear(3, 3, device=device)
    x = torch.randn(2, 3, device=device, requires_grad=True)
    runs: list[int] = []

    def forward(given: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        result: torch.Tensor = layer(given).sin()
        return result

    expected = torch.autograd.grad(forward(x).sum(), [x, layer.weight, layer.bias])
    runs.clear()
    result = run(forward, x, reentrant=reentrant)
    assert len(runs) == 1
    result.sum().backward()

    assert len(runs) == 2
    for wanted, found in zip(expected, (x.grad, layer.weight.grad, layer.bias.grad), strict=True):
        assert found is not None
        assert torch.equal(found, wanted)


@pytest.mark.covers(ROW)
@KINDS
def test_checkpoint_preserve_rng_state_draws_the_same_numbers(
    reentrant: bool, engine: Engine, device: torch.device
) -> None:
    """The recomputation draws the same random numbers as the first forward.

    The generator state after the pass is what it would be without the checkpoint.
    """
    x = torch.ones(200, device=device, requires_grad=True)
    masks: list[torch.Tensor] = []

    def forward(given: torch.Tensor) -> torch.Tensor:
        mask = torch.rand_like(given) > 0.5
        masks.append(mask)
        return given * mask

    torch.manual_seed(5)
    result = run(forward, x, reentrant=reentrant)
    drawn = torch.rand(3, device=device)
    torch.manual_seed(7)
    result.sum().backward()
    after = torch.rand(3, device=device)
    torch.manual_seed(7)

    assert torch.equal(after, torch.rand(3, device=device))
    assert not torch.equal(drawn, after)
    assert len(masks) == 2
    assert torch.equal(masks[0], masks[1])
    assert 0 < int(masks[0].sum()) < 200
    assert x.grad is not None
    assert torch.equal(x.grad, masks[0].float())


def test_checkpoint_preserve_rng_state_false_draws_anew(engine: Engine, device: torch.device) -> None:
    """With `preserve_rng_state=False`, the recomputation draws new random numbers.

    The generator state is not restored.
    """
    x = torch.ones(200, device=device, requires_grad=True)
    masks: list[torch.Tensor] = []

    def forward(given: torch.Tensor) -> torch.Tensor:
        masks.append(torch.rand_like(given) > 0.5)
        return given * masks[-1]

    run(forward, x, reentrant=True, preserve_rng_state=False).sum().backward()

    assert len(masks) == 2
    assert not torch.equal(masks[0], masks[1])


def test_checkpoint_early_stop_ends_the_second_forward(engine: Engine, device: torch.device) -> None:
    """Recomputation stops at the last tensor that the backward pass needs.

    With `early_stop=False`, the rest of the function runs too.
    """
    reached: list[str] = []

    def forward(given: torch.Tensor) -> torch.Tensor:
        squared = given.sin()
        reached.append("before")
        result = squared + 1
        reached.append("after")
        return result

    x = torch.ones(2, device=device, requires_grad=True)
    result = run(forward, x, reentrant=False)
    with torch.utils.checkpoint.set_checkpoint_early_stop(False):
        whole = run(forward, x, reentrant=False)
    reached.clear()

    result.sum().backward()
    assert reached == []
    whole.sum().backward()
    assert reached == ["before", "after"]
    assert x.grad is not None
    torch.testing.assert_close(x.grad, 2 * torch.ones(2, device=device).cos())


@contextmanager
def counting(packed: list[tuple[int, ...]]) -> Iterator[None]:
    """Record the shape of each tensor that is saved for a backward pass."""

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        packed.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield


@pytest.mark.covers(ROW)
def test_checkpoint_saves_only_its_input(engine: Engine, device: torch.device) -> None:
    """Between the passes, a checkpoint keeps only its input.

    It saves one tensor of that shape; without a checkpoint, more tensors are saved.
    """

    def forward(given: torch.Tensor) -> torch.Tensor:
        given = given.expand(3, 2)
        for _ in range(5):
            given = given.sin()
        return given

    x = torch.ones(2, device=device, requires_grad=True)
    plain: list[tuple[int, ...]] = []
    within: list[tuple[int, ...]] = []
    with counting(plain):
        forward(x)
    with counting(within):
        result = run(forward, x, reentrant=False)

    assert plain == [(3, 2)] * 5
    # torch up to 2.12 also saves a tensor without elements.
    assert [shape for shape in within if shape != (0,)] == [(2,)]
    result.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, torch.autograd.grad(forward(x).sum(), x)[0])


def test_checkpoints_nest(engine: Engine, device: torch.device) -> None:
    """Checkpoints nest; the inner function is recomputed once more for each enclosing checkpoint."""
    runs: list[str] = []

    def inner(given: torch.Tensor) -> torch.Tensor:
        runs.append("inner")
        return given.sin().exp()

    def outer(given: torch.Tensor) -> torch.Tensor:
        runs.append("outer")
        result: torch.Tensor = run(inner, given.cos(), reentrant=False).sin()
        return result

    x = torch.tensor([0.5, 1.5], device=device, requires_grad=True)
    (expected,) = torch.autograd.grad(x.cos().sin().exp().sin().sum(), x)
    run(outer, x, reentrant=False).sum().backward()

    assert x.grad is not None
    torch.testing.assert_close(x.grad, expected)
    assert runs.count("outer") == 2
    assert runs.count("inner") == 3


@pytest.mark.covers(ROW)
def test_checkpointerror_when_the_second_forward_differs(engine: Engine, device: torch.device) -> None:
    """`CheckpointError` is raised if the recomputation saves another number of tensors, or tensors of other shapes."""
    calls: list[int] = []

    def another_number(given: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return given.sin().sin() if len(calls) % 2 else given * 2

    def another_shape(given: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return given[: 1 + len(calls) % 2].sin().sum()

    x = torch.ones(3, device=device, requires_grad=True)

    for forward, text in ((another_number, "different number of tensors"), (another_shape, "different metadata")):
        calls.clear()
        with pytest.raises(torch.utils.checkpoint.CheckpointError, match=text):
            run(forward, x, reentrant=False).sum().backward()
        engine.still_works()


def test_checkpoint_with_autograd_grad_needs_use_reentrant_false(engine: Engine, device: torch.device) -> None:
    """`autograd.grad` works with a non-reentrant checkpoint; a reentrant checkpoint raises."""
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)

    (found,) = torch.autograd.grad(run(torch.exp, x, reentrant=False).sum(), x)
    assert torch.equal(found, x.detach().exp())

    with pytest.raises(RuntimeError, match=r"incompatible with \.grad\(\)"):
        torch.autograd.grad(run(torch.exp, x, reentrant=True).sum(), x)
    engine.still_works()


def test_checkpoint_use_reentrant_needs_an_input_that_requires_grad(engine: Engine, device: torch.device) -> None:
    """A reentrant checkpoint without an input that requires grad warns and yields no gradients.

    A non-reentrant one yields the gradients of the parameters.
    """
    layer = torch.nn.Linear(2, 2, device=device)
    x = torch.ones(1, 2, device=device)

    with pytest.warns(UserWarning, match="None of the inputs have requires_grad=True"):
        result = run(layer, x, reentrant=True)
    assert not result.requires_grad
    run(layer, x, reentrant=False).sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.tolist() == [[1.0, 1.0]] * 2


@KINDS
def test_checkpoint_sequential_in_segments(reentrant: bool, engine: Engine, device: torch.device) -> None:
    """`checkpoint_sequential` gives the same gradients as the plain sequence of modules."""
    torch.manual_seed(3)
    layers = torch.nn.Sequential(*(torch.nn.Linear(2, 2, device=device) for _ in range(4)))
    x = torch.ones(1, 2, device=device, requires_grad=True)

    expected = torch.autograd.grad(layers(x).sum(), list(layers.parameters()))
    checkpoint_sequential(layers, 2, x, use_reentrant=reentrant).sum().backward()

    for one, wanted in zip(layers.parameters(), expected, strict=True):
        assert one.grad is not None
        torch.testing.assert_close(one.grad, wanted)


def test_checkpoint_selective_does_not_run_named_operators_again(engine: Engine, device: torch.device) -> None:
    """Selective checkpointing saves the listed operators and recomputes the others; gradients do not change."""
    kept = [torch.ops.aten.mm.default]
    x = torch.ones(2, 2, device=device, requires_grad=True)

    def forward(given: torch.Tensor) -> torch.Tensor:
        return (given @ given).sin().cos()

    (expected,) = torch.autograd.grad(forward(x).sum(), x)
    result = run(forward, x, reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(kept))
    with OperatorCounts() as ran:
        (found,) = torch.autograd.grad(result.sum(), x)

    torch.testing.assert_close(found, expected)
    assert ran.counts["sin"] >= 1
    assert ran.counts["mm"] == 2  # of the backward; a third one would be a recomputation
    engine.still_works()


def test_checkpoint_selective_is_used_up_by_one_backward(engine: Engine, device: torch.device) -> None:
    """The tensors that a selective checkpoint keeps serve one backward pass.

    A second pass through the same graph raises, and leaves the first gradient unchanged.
    """
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], device=device, requires_grad=True)
    kept = [torch.ops.aten.mm.default]

    def forward(given: torch.Tensor) -> torch.Tensor:
        return (given @ given).sin()

    (expected,) = torch.autograd.grad(forward(x).sum(), x)
    result = run(forward, x, reentrant=False, context_fn=lambda: create_selective_checkpoint_contexts(kept))
    result.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="backward once on any region computed under selective"):
        result.sum().backward()

    torch.testing.assert_close(x.grad, expected)
    engine.still_works()
