"""Anomaly mode: it detects NaN in the backward pass, names the function and shows the stack of the forward call."""

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
    """`x * 1` for two elements, with NaN as the gradient of the second."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * gradients[0].new_tensor([1.0, float("nan")])


@pytest.mark.covers(ROW)
@pytest.mark.filterwarnings(ENABLED, "ignore:Error detected in:UserWarning")
def test_anomaly_mode_refuses_a_nan(engine: Engine, device: torch.device) -> None:
    """Under anomaly mode, a gradient that contains NaN raises, and the next backward pass works."""
    x = torch.ones(2, device=device, requires_grad=True)

    with detect_anomaly(), pytest.raises(RuntimeError, match=r"(?i)returned nan "):
        apply(NotANumber, x).sum().backward()
    engine.still_works()


@pytest.mark.covers(ROW)
def test_anomaly_mode_off_lets_a_nan_pass(engine: Engine, device: torch.device) -> None:
    """Without anomaly mode, a gradient that contains NaN is accumulated like any other."""
    x = torch.ones(2, device=device, requires_grad=True)

    apply(NotANumber, x).sum().backward()

    assert x.grad is not None
    assert x.grad.isnan().tolist() == [False, True]


@waived(Known("a captured pass keeps the mode it was captured in", LIST, RuntimeError))
@pytest.mark.filterwarnings(ENABLED, "ignore:Error detected in:UserWarning")
def test_anomaly_mode_leaves_later_passes_alone(engine: Engine, device: torch.device) -> None:
    """After anomaly mode ends, NaN gradients are accepted again, even in a graph like the one that raised."""
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
    """Under anomaly mode with `check_nan=False`, a NaN gradient is accepted."""
    x = torch.ones(2, device=device, requires_grad=True)

    with detect_anomaly(check_nan=False):
        apply(NotANumber, x).sum().backward()

    assert x.grad is not None
    assert x.grad.isnan().tolist() == [False, True]


@pytest.mark.filterwarnings(ENABLED)
def test_anomaly_mode_changes_no_gradient(engine: Engine, device: torch.device) -> None:
    """Anomaly mode does not change gradients without NaN, and ignores NaN that occurs only in the forward pass."""
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


@waived(
    Known("anomaly mode finds NaN at the end of a captured pass and names no function", LIST, pytest.fail.Exception)
)
@pytest.mark.filterwarnings(ENABLED)
def test_anomaly_mode_warns_with_the_forward_stack(engine: Engine, device: torch.device) -> None:
    """Under anomaly mode, the error names the function that produced NaN.

    A warning shows the stack of its forward call. The leaf receives no gradient.
    """
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


@pytest.mark.filterwarnings(ENABLED)
def test_anomaly_mode_ends_with_its_block(engine: Engine) -> None:
    """Each anomaly-mode block restores the previous mode at its end, also after an exception."""
    with set_detect_anomaly(True, check_nan=False):
        with set_detect_anomaly(False):
            assert not torch.is_anomaly_enabled()
        assert torch.is_anomaly_enabled()
        assert not torch.is_anomaly_check_nan_enabled()
        with detect_anomaly():
            assert torch.is_anomaly_check_nan_enabled()
        assert torch.is_anomaly_enabled()
        assert not torch.is_anomaly_check_nan_enabled()
    with detect_anomaly():
        with detect_anomaly(check_nan=False):
            assert not torch.is_anomaly_check_nan_enabled()
        assert torch.is_anomaly_check_nan_enabled()
    with pytest.raises(KeyError), set_detect_anomaly(True):
        raise KeyError
    assert not torch.is_anomaly_enabled()
    assert torch.is_anomaly_check_nan_enabled()
    engine.still_works()
