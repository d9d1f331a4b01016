"""Anomaly mode in a captured pass: NaN gradients are reported at its end."""

from __future__ import annotations

import re
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
        """Return NaN in the second of three elements: one is enough."""
        result = gradients[0].clone()
        result[1] = float("nan")
        return result


def leaf(device: torch.device) -> torch.Tensor:
    return torch.ones(3, device=device, requires_grad=True)


@pytest.mark.covers(f"{ROW}test_anomaly_mode_already_nan")
def test_anomaly_mode_refuses_a_grad_that_was_nan_before(device: torch.device) -> None:
    """Under anomaly mode, a pass raises if a gradient is already NaN when it starts.

    Otherwise the pass could not distinguish an existing NaN from a new one.
    """
    x = leaf(device)
    x.grad = before = torch.tensor([1.0, float("nan"), 3.0], device=device)

    with (
        torch.autograd.detect_anomaly(),
        compiled_backward(backend="eager"),
        pytest.raises(AssertionError, match="already having NaN gradient"),
    ):
        (x * 2).sum().backward()
    assert x.grad is before
    torch.testing.assert_close(before.tolist(), [1.0, float("nan"), 3.0], equal_nan=True)


@pytest.mark.covers(f"{ROW}test_anomaly_mode_backward")
def test_anomaly_mode_names_parameters_of_an_accumulated_nan(device: torch.device) -> None:
    """Under anomaly mode, a pass that accumulates NaN raises and names the parameters with NaN: either one, or both."""
    named = []
    for nan_in_first, nan_in_second in ((True, False), (False, True), (True, True)):
        x, y = leaf(device), leaf(device)
        first = GivesNan.apply(x) if nan_in_first else x.clone()
        second = GivesNan.apply(y) if nan_in_second else y.clone()
        loss = first.sum() + second.sum()
        with (
            torch.autograd.detect_anomaly(),
            compiled_backward(backend="eager"),
            pytest.raises(RuntimeError, match=r"NaN gradients for parameters: inputs\[\d+\]") as caught,
        ):
            loss.backward()
        named.append(re.findall(r"inputs\[\d+\]", str(caught.value)))
    (one,), (other,), both = named
    assert one != other
    assert sorted(both) == sorted([one, other])


@pytest.mark.covers(f"{ROW}test_anomaly_mode_grad")
def test_anomaly_mode_refuses_a_nan_returned_by_autograd_grad(device: torch.device) -> None:
    """Under anomaly mode, `autograd.grad` raises if any of its results has NaN."""
    for order in (slice(None), slice(None, None, -1)):
        x, y = leaf(device), leaf(device)
        with (
            torch.autograd.detect_anomaly(),
            compiled_backward(backend="eager"),
            pytest.raises(RuntimeError, match="NaN gradients for output nodes"),
        ):
            torch.autograd.grad(GivesNan.apply(x).sum() + y.sum(), (x, y)[order])


def test_anomaly_mode_off_lets_nan_accumulate(device: torch.device) -> None:
    """Without anomaly mode, NaN is accumulated; under it, a pass without NaN works as usual (controls)."""
    x = leaf(device)
    with compiled_backward(backend="eager"):
        GivesNan.apply(x).sum().backward()
    assert x.grad is not None
    assert x.grad.isnan().tolist() == [False, True, False]

    x.grad = None
    with torch.autograd.detect_anomaly(), compiled_backward(backend="eager") as recording:
        (x * 2).sum().backward()
    assert recording.captures == 1
    assert torch.equal(x.grad, torch.full_like(x, 2))
