"""Grad modes: `no_grad`, `enable_grad`, `set_grad_enabled`, inference mode and `detach`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from .engines import Engine

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"


@pytest.mark.covers(ROW)
def test_no_grad_results_are_constants(engine: Engine, device: torch.device) -> None:
    """Results computed under `no_grad` do not require grad and act as constants in later operations."""
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)

    with torch.no_grad():
        constant = x * x
        with torch.enable_grad():
            recorded = x * 3
    (constant * recorded).sum().backward()

    assert not constant.requires_grad
    assert recorded.requires_grad
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 12.0]


def test_no_grad_enable_grad_and_set_grad_enabled_nest_and_end(engine: Engine, device: torch.device) -> None:
    """Each block and decorated function has its own mode and restores the enclosing one, also after an exception.

    A generator has its mode only while it runs.
    """

    @torch.no_grad()
    def decorated(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @torch.no_grad()
    def stepping() -> Iterator[bool]:
        yield torch.is_grad_enabled()
        yield torch.is_grad_enabled()

    x = torch.ones(2, device=device, requires_grad=True)
    assert not decorated(x).requires_grad
    steps = [(inside, torch.is_grad_enabled()) for inside in stepping()]
    with pytest.raises(KeyError), torch.no_grad():
        raise KeyError
    modes: list[bool] = []
    with torch.set_grad_enabled(False):
        modes.append(torch.is_grad_enabled())
        with torch.set_grad_enabled(True):
            modes.append(torch.is_grad_enabled())
            with torch.no_grad():
                modes.append(torch.is_grad_enabled())
            modes.append(torch.is_grad_enabled())
        with pytest.raises(KeyError), torch.enable_grad():
            raise KeyError
        modes.append(torch.is_grad_enabled())

    assert steps == [(False, True), (False, True)]
    assert modes == [False, True, False, True, False]
    assert torch.is_grad_enabled()
    (x * 2).sum().backward()
    assert x.grad is not None


@pytest.mark.covers(ROW)
def test_backward_works_under_no_grad(engine: Engine, device: torch.device) -> None:
    """A recorded graph can be traversed under `no_grad`, with the same gradients, and `.grad` does not require grad."""
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    y = (x * x).sum()

    with torch.no_grad():
        y.backward()

    assert x.grad is not None
    assert x.grad.tolist() == [2.0, 4.0]
    assert not x.grad.requires_grad


@pytest.mark.covers(ROW)
def test_detach_cuts_the_graph(engine: Engine, device: torch.device) -> None:
    """No gradient flows through `detach`; other paths to the same leaf are unaffected."""
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    y = x * 2

    (y.detach() * x + y).sum().backward()

    assert x.grad is not None
    assert x.grad.tolist() == [4.0, 6.0]


def test_detach_in_place_makes_a_leaf(engine: Engine, device: torch.device) -> None:
    """`detach_` turns the tensor itself into a leaf; calling it on a view raises."""
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    y = x * 2
    base = x * 3

    y.detach_()
    with pytest.raises(RuntimeError, match="Can't detach"):
        base[:1].detach_()
    y.requires_grad_()
    (y * x).sum().backward()

    assert y.is_leaf
    assert y.grad is not None
    assert x.grad is not None
    assert y.grad.tolist() == [1.0, 2.0]
    assert x.grad.tolist() == [2.0, 4.0]


@pytest.mark.covers(ROW)
def test_inference_mode_tensors_are_not_for_training(engine: Engine, device: torch.device) -> None:
    """Inference tensors cannot be saved for backward or changed in place outside inference mode.

    Their clones can.
    """
    x = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    with torch.inference_mode():
        made = x * 2
        other = x * 2
        assert torch.is_inference_mode_enabled()
        assert not torch.is_grad_enabled()

    assert made.is_inference()
    assert not made.requires_grad
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        _ = x * made
    with pytest.raises(RuntimeError, match="Inplace update to inference tensor outside InferenceMode"):
        other.add_(1)
    (x * made.clone().add_(1)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 5.0]


def test_inference_mode_tensors_have_no_version(engine: Engine, device: torch.device) -> None:
    """An inference tensor has no version counter, and reading it raises.

    In-place changes of normal tensors in inference mode are still counted, so a graph that saved them raises.
    """
    x = torch.ones(2, device=device, requires_grad=True)
    saved = torch.ones(2, device=device)
    y = (x * saved).sum()

    with torch.inference_mode():
        made = torch.ones(2, device=device)
        with pytest.raises(RuntimeError, match="Inference tensors do not track version counter"):
            _ = made._version
        saved.add_(1)

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    engine.still_works()


def test_requires_grad_of_results_follows_the_operands(engine: Engine, device: torch.device) -> None:
    """A result requires grad if an operand does.

    Comparisons, indices and integer conversions do not require grad, and neither do results computed from them.
    """
    x = torch.tensor([1.5, -2.5], device=device, requires_grad=True)
    constant = torch.ones(2, device=device)

    assert (x + constant).requires_grad
    assert not (constant * 2).requires_grad
    whole = x.to(torch.int64)
    for result in (x > 0, x.argmax(), whole, x.sort().indices, torch.zeros_like(x), (x > 0).float() * 2, whole * 0.5):
        assert not result.requires_grad
    (x * (x > 0)).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [1.0, 0.0]
