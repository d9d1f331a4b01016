"""Nested checkpoints, and backward passes inside checkpoints: recomputation, its number, and when tensors are freed."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from suites.compiled import WRAPPED_SUITES

from .engines import LIST, Engine, Known, waived

Function = Callable[[Tensor], Tensor]

NO_HISTORY = Known(
    "a captured pass with create_graph=True treats the gradient of a checkpoint as a constant",
    LIST,
    RuntimeError,
)


class Counted:
    """Functions that count their runs."""

    def __init__(self) -> None:
        self.runs: Counter[str] = Counter()

    def of(self, name: str, function: Function) -> Function:
        def run(given: Tensor) -> Tensor:
            self.runs[name] += 1
            return function(given)

        return run


def kept(function: Function) -> Function:
    """Return the function behind a non-reentrant checkpoint."""

    def behind(given: Tensor) -> Tensor:
        result: Tensor = checkpoint(function, given, use_reentrant=False)
        return result

    return behind


@pytest.fixture
def x(device: torch.device) -> Tensor:
    return torch.tensor([0.5, 1.5], device=device, dtype=torch.float64, requires_grad=True)


@pytest.mark.covers(WRAPPED_SUITES)
@pytest.mark.parametrize("depth", [1, 2, 4])
def test_nested_checkpoint_is_recomputed_per_enclosing_checkpoint(depth: int, x: Tensor, engine: Engine) -> None:
    """A function inside n nested checkpoints runs n + 1 times: once forward, and once per enclosing checkpoint.

    The gradient is the same as without checkpoints.
    """
    counted = Counted()
    plain: Function = torch.sin
    behind: Function = torch.sin
    for level in range(depth, 0, -1):

        def around(given: Tensor, inner: Function = plain) -> Tensor:
            return inner(given).cos()

        def around_behind(given: Tensor, inner: Function = behind) -> Tensor:
            return inner(given).cos()

        plain, behind = around, kept(counted.of(str(level), around_behind))

    (expected,) = torch.autograd.grad(plain(x).sum(), x)
    behind(x).sum().backward()

    assert x.grad is not None
    torch.testing.assert_close(x.grad, expected)
    assert counted.runs == {str(level): level + 1 for level in range(1, depth + 1)}


@pytest.mark.covers(WRAPPED_SUITES)
def test_nested_checkpoints_two_within_one(x: Tensor, engine: Engine) -> None:
    """If two checkpoints are chained inside a third, the first is recomputed for itself and for the third.

    The second may be recomputed only once, since nothing beyond its result is needed.
    """
    counted = Counted()
    first, second = kept(counted.of("first", lambda at: at.sin().exp())), kept(counted.of("second", lambda at: at**3))
    both = kept(counted.of("both", lambda at: second(first(at))))

    (expected,) = torch.autograd.grad((x.sin().exp() ** 3).sum(), x)
    both(x).sum().backward()

    assert x.grad is not None
    torch.testing.assert_close(x.grad, expected)
    assert counted.runs["both"] == 2
    assert counted.runs["first"] == 3
    assert 2 <= counted.runs["second"] <= 3


@pytest.mark.covers(WRAPPED_SUITES)
@pytest.mark.parametrize("early_stop", [True, False], ids=["stops", "goes_on"])
def test_nested_checkpoint_early_stop(early_stop: bool, x: Tensor, engine: Engine) -> None:
    """In a nested checkpoint, the part after the last needed tensor is recomputed only without early stop.

    The gradient is the same.
    """
    counted = Counted()
    tail = counted.of("tail", lambda at: at + 1)
    inner = kept(lambda at: tail(at.sin()))
    outer = kept(lambda at: inner(at.exp()))

    with set_checkpoint_early_stop(early_stop):
        result = outer(x)
    assert counted.runs["tail"] == 1
    result.sum().backward()

    # Once for the outer checkpoint, which needs to know what the inner one saves, and once for the inner one.
    assert counted.runs["tail"] == (1 if early_stop else 3)
    assert x.grad is not None
    torch.testing.assert_close(x.grad, (x.exp().cos() * x.exp()).detach())


@pytest.mark.covers(WRAPPED_SUITES)
@waived(NO_HISTORY)
def test_nested_checkpoint_with_autograd_grad_within(x: Tensor, engine: Engine) -> None:
    """A function behind a checkpoint may compute a gradient with a graph.

    Its own gradient is then the second derivative.
    """

    def slope(at: Tensor) -> Tensor:
        (found,) = torch.autograd.grad(at.sin().exp().sum(), at, create_graph=True)
        return found

    (expected,) = torch.autograd.grad(slope(x).sum(), x)
    kept(slope)(x).sum().backward()

    assert x.grad is not None
    torch.testing.assert_close(x.grad, expected)


@pytest.mark.covers(WRAPPED_SUITES)
@waived(NO_HISTORY)
def test_nested_checkpoints_second_derivative(x: Tensor, engine: Engine) -> None:
    """Non-reentrant checkpoints can be differentiated twice, also when nested."""
    behind = kept(lambda at: kept(torch.sin)(at).exp())

    (once,) = torch.autograd.grad(behind(x).sum(), x, create_graph=True)
    (twice,) = torch.autograd.grad(once.sum(), x)

    at = x.detach()
    torch.testing.assert_close(once.detach(), at.sin().exp() * at.cos())
    torch.testing.assert_close(twice, at.sin().exp() * (at.cos() ** 2 - at.sin()))


@pytest.mark.covers(WRAPPED_SUITES)
def test_nested_checkpoints_draw_the_same_random_numbers(engine: Engine, device: torch.device) -> None:
    """Every recomputation of an inner checkpoint draws the random numbers of its first run, at every level."""
    masks: list[Tensor] = []

    def masked(at: Tensor) -> Tensor:
        masks.append(torch.rand_like(at) > 0.5)
        return at * masks[-1]

    x = torch.ones(64, device=device, requires_grad=True)
    torch.manual_seed(11)
    kept(lambda at: kept(masked)(at).exp() * torch.rand_like(at))(x).sum().backward()

    assert len(masks) >= 2
    assert 0 < int(masks[0].sum()) < 64
    for other in masks[1:]:
        assert torch.equal(other, masks[0])
    assert x.grad is not None
    assert torch.equal(x.grad != 0, masks[0])


@pytest.mark.covers(WRAPPED_SUITES)
@pytest.mark.xfail(
    torch.__version__ < (2, 13),
    raises=pytest.PytestUnraisableExceptionWarning,
    reason="the forward that was cut short is cleaned up after the hooks that it had set, which torch calls an "
    "internal error (seen with 2.11 and 2.12, https://github.com/pytorch/pytorch/blob/main/torch/utils/checkpoint.py)",
)
def test_nested_checkpoint_error_leaves_the_next_pass_alone(x: Tensor, engine: Engine) -> None:
    """An exception from the recomputation of an inner checkpoint propagates from `backward`.

    The next pass works.
    """
    counted = Counted()

    def raising(at: Tensor) -> Tensor:
        if counted.runs["inner"] > 1:
            raise ValueError("not a second time")
        return at.sin()

    inner = kept(counted.of("inner", raising))
    result = kept(lambda at: inner(at).exp())(x)
    with pytest.raises(ValueError, match="not a second time"):
        result.sum().backward()
    engine.still_works()

    # On CUDA, an engine thread frees the pass a moment later, before its next pass at the latest. Failures in that
    # belong to this case.
    x.detach().requires_grad_().sin().sum().backward()
    del result
    gc.collect()
