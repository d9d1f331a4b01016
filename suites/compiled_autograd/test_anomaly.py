"""Anomaly mode: NaN in the gradients of a captured pass is told of, at its end."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from suites.compiled import compiled_backward

ROW = "test_compiled_autograd::TestCompiledAutograd::"

pytestmark = pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled:UserWarning")


class GivesNan(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(_: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0] * float("nan")


def leaf(device: torch.device) -> torch.Tensor:
    return torch.ones(3, device=device, requires_grad=True)


@pytest.mark.covers(f"{ROW}test_anomaly_mode_already_nan")
def test_anomaly_mode_refuses_a_grad_that_was_nan_before(device: torch.device) -> None:
    """Contract: with anomaly mode a pass does not start into a gradient that is NaN already, since it could not tell
    its own from that."""
    x = leaf(device)
    x.grad = torch.full((3,), float("nan"), device=device)

    with (
        torch.autograd.detect_anomaly(),
        compiled_backward(backend="eager"),
        pytest.raises(AssertionError, match="already having NaN gradient"),
    ):
        (x * 2).sum().backward()


@pytest.mark.covers(f"{ROW}test_anomaly_mode_backward")
def test_anomaly_mode_names_parameters_of_an_accumulated_nan(device: torch.device) -> None:
    """Contract: with anomaly mode, a pass that accumulates NaN raises, and names the parameters."""
    x, y = leaf(device), leaf(device)

    with (
        torch.autograd.detect_anomaly(),
        compiled_backward(backend="eager"),
        pytest.raises(RuntimeError, match=r"NaN gradients for parameters: inputs\[\d+\]\."),
    ):
        (GivesNan.apply(x).sum() + y.sum()).backward()


@pytest.mark.covers(f"{ROW}test_anomaly_mode_grad")
def test_anomaly_mode_refuses_a_nan_returned_by_autograd_grad(device: torch.device) -> None:
    """Contract: so does `autograd.grad` that would return NaN."""
    x = leaf(device)

    with (
        torch.autograd.detect_anomaly(),
        compiled_backward(backend="eager"),
        pytest.raises(RuntimeError, match="NaN gradients for output nodes"),
    ):
        torch.autograd.grad(GivesNan.apply(x).sum(), x)


def test_anomaly_mode_off_lets_nan_accumulate(device: torch.device) -> None:
    """Contract: without the mode NaN is accumulated without a word, and with it a pass without NaN is as ever (the
    controls)."""
    x = leaf(device)
    with compiled_backward(backend="eager"):
        GivesNan.apply(x).sum().backward()
    assert x.grad is not None
    assert x.grad.isnan().all()

    x.grad = None
    with torch.autograd.detect_anomaly(), compiled_backward(backend="eager") as recording:
        (x * 2).sum().backward()
    assert recording.captures == 1
    assert torch.equal(x.grad, torch.full_like(x, 2))
