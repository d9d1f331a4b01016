"""Helpers of the suite of streams: sleeps, and errors that mean that green contexts are unavailable."""

from __future__ import annotations

import re
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from suites.streams import busy
from suites.streams.test_green_contexts import skipped_where_absent


@pytest.mark.parametrize(
    "text",
    [
        "PyTorch was not built with Green Context support!",
        "Green Context is only supported on CUDA 12.8+!",
        "cuda driver too old to use green context!",
        "cuda driver too old to use workqueue configuration!",
        "Workqueue configuration requires CUDA 13.1+!",
        "Workqueue configuration for green contexts requires CUDA 13.1+!",
    ],
)
def test_a_build_or_driver_without_green_contexts_is_a_skip(text: str) -> None:
    with pytest.raises(pytest.skip.Exception, match="green contexts"), skipped_where_absent():
        raise RuntimeError(text)


@pytest.mark.parametrize(
    "text",
    [
        "CUDA driver error: operation not supported",
        "16 multiprocessors are not supported",
        "Support for this device is gone",
        "Invalid number of SMs requested for green context: 16 (device has 132 SMs)",
        "At least one of num_sms or workqueue_scope must be specified",
    ],
)
def test_any_other_refusal_is_a_failure(text: str) -> None:
    with pytest.raises(RuntimeError, match=re.escape(text)), skipped_where_absent():
        raise RuntimeError(text)


class _Stream(nullcontext[None]):
    device = torch.device("cuda", 1)
    device_index = 1


def test_a_sleep_needs_nothing_that_a_fault_can_break(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its length follows from the device's highest clock: events and synchronization are what the cases check."""

    def forbidden(*_: Any, **__: Any) -> None:
        pytest.fail("measures with what a case checks")

    slept: list[int] = []
    monkeypatch.setattr(torch.cuda, "_sleep", slept.append)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(torch.cuda, "get_device_properties", {1: SimpleNamespace(clock_rate=1_500_000)}.__getitem__)
    for name in ("Event", "synchronize", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, forbidden)
    stream: Any = _Stream()
    busy.calibrate(stream.device)
    busy.sleep_on(stream, 20.0)
    assert slept == [1, 30_000_000]
