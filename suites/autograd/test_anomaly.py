"""Anomaly mode: a NaN in the backward pass is found where it was made, and told by where its forward was."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.autograd import Function, detect_anomaly, set_detect_anomaly

from .engines import LIST, Engine, Known, waived
from .functions import apply

ROW = "test_compiled_autograd::TestAutogradWithCompiledAutograd::*"

ENABLED = "ignore:Anomaly Detection has been enabled:UserWarning"


class NotANumber(Function):
    """`x * 1` of two elements: the gradient of the second is NaN."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * gradients[0].new_tensor([1.0, float("nan")])


@pytest.mark.covers(ROW)
@pytest.mark.filterwarnings(ENABLED, "ignore:Error detected in:UserWarning")
def test_anomaly_mode_refuses_a_nan(engine: Engine, device: torch.device) -> None:
    """Contract: under anomaly mode a gradient with a NaN in it is an error, and all is well after it."""
    x = torch.ones(2, device=device, requires_grad=True)

    with detect_anomaly(), pytest.raises(RuntimeError, match=r"(?i)returned nan "):
        apply(NotANumber, x).sum().backward()
    engine.still_works()


@pytest.mark.covers(ROW)
def test_anomaly_mode_off_lets_a_nan_pass(engine: Engine, device: torch.device) -> None:
    """Contract: without the mode a gradient with a NaN in it arrives like any other."""
    x = torch.ones(2, device=device, requires_grad=True)

    apply(NotANumber, x).sum().backward()

    assert x.grad is not None
    assert x.grad.isnan().tolist() == [False, True]


@waived(Known("a captured pass keeps the mode it was captured in", LIST, RuntimeError))
@pytest.mark.filterwarnings(ENABLED, "ignore:Error detected in:UserWarning")
def test_anomaly_mode_leaves_later_passes_alone(engine: Engine, device: torch.device) -> None:
    """Contract: after anomaly mode a NaN passes, also in a pass like one that was refused under it."""
    x = torch.ones(2, device=device, requires_grad=True)

    with detect_anomaly(), pytest.raises(RuntimeError, match=r"(?i)returned nan "):
        apply(NotANumber, x).sum().backward()
    x.grad = None
    engine.settle()
    apply(NotANumber, x).sum().backward()

    assert x.grad is not None
    assert x.grad.isnan().tolist() == [False, True]


@pytest.mark.covers(ROW)
@pytest.mark.filterwarnings(ENABLED)
def test_anomaly_mode_check_nan_false_lets_a_nan_pass(engine: Engine, device: torch.device) -> None:
    """Contract: with `check_nan=False` a NaN passes under anomaly mode."""
    x = torch.ones(2, device=device, requires_grad=True)

    with detect_anomaly(check_nan=False):
        apply(NotANumber, x).sum().backward()

    assert x.grad is not None
    assert x.grad.isnan().tolist() == [False, True]


@pytest.mark.filterwarnings(ENABLED)
def test_anomaly_mode_changes_no_gradient(engine: Engine, device: torch.device) -> None:
    """Contract: gradients without a NaN are the same under anomaly mode, and a NaN in the forward pass alone is none of
    its business."""
    plain = torch.tensor([1.0, 2.0], device=device, requires_grad=True)
    watched = torch.tensor([1.0, 2.0], device=device, requires_grad=True)

    (plain.exp() * plain).sum().backward()
    with detect_anomaly():
        (watched.exp() * watched).sum().backward()
        mixed = torch.tensor([float("nan"), 1.0], device=device, requires_grad=True)
        (mixed * 2).sum().backward()

    assert plain.grad is not None
    assert watched.grad is not None
    assert mixed.grad is not None
    assert torch.equal(plain.grad, watched.grad)
    assert mixed.grad.tolist() == [2.0, 2.0]


@waived(Known("anomaly mode finds NaN at the end of a pass, and not who made it", LIST, pytest.fail.Exception))
@pytest.mark.filterwarnings(ENABLED)
def test_anomaly_mode_tells_where_the_forward_was(engine: Engine, device: torch.device) -> None:
    """Contract: under anomaly mode, a NaN names the function that made it, and comes with a warning that has the stack
    of the call it belongs to; the leaf gets nothing."""
    x = torch.ones(2, device=device, requires_grad=True)

    def the_forward_of_it() -> torch.Tensor:
        result: torch.Tensor = apply(NotANumber, x)
        return result

    with (
        detect_anomaly(),
        pytest.warns(UserWarning, match=r"(?s)Error detected in NotANumberBackward.*the_forward_of_it"),
        pytest.raises(RuntimeError, match=r"NotANumberBackward.*returned nan values"),
    ):
        the_forward_of_it().sum().backward()
    assert x.grad is None
    engine.still_works()


def test_anomaly_mode_ends_with_its_block(engine: Engine) -> None:
    """Contract: the mode is as before at the end of each block, also of one that an error ended."""
    with set_detect_anomaly(True, check_nan=False):
        with set_detect_anomaly(False):
            assert not torch.is_anomaly_enabled()
        assert torch.is_anomaly_enabled()
        assert not torch.is_anomaly_check_nan_enabled()
    with pytest.raises(KeyError), set_detect_anomaly(True):
        raise KeyError
    assert not torch.is_anomaly_enabled()
    assert torch.is_anomaly_check_nan_enabled()
    engine.still_works()
