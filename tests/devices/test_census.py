"""The detection of asynchronous devices, with fakes of devices."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from harness.backends.backend import Backend
from harness.devices.census import _has_process_groups, _has_sparse, _is_asynchronous

BACKEND = Backend("npu")


def _torch(launches: Callable[[], float], rest: float) -> Any:
    """Return a torch whose launches take what `launches` says, and whose work takes `rest` after them, in seconds."""
    block = SimpleNamespace(neg_=lambda: time.sleep(launches()), device="npu:0")
    event = SimpleNamespace(record=lambda _: None, synchronize=lambda: time.sleep(rest), query=lambda: False)
    return SimpleNamespace(
        device=lambda kind, index: f"{kind}:{index}",
        ones=lambda *_, **__: block,
        accelerator=SimpleNamespace(current_stream=lambda: SimpleNamespace(synchronize=lambda: None)),
        Event=lambda _: event,
    )


def test_work_that_outlives_its_launches_is_asynchronous() -> None:
    slow_at_first = iter([0.03] * 8 + [0.0] * 8)
    assert _is_asynchronous(BACKEND, _torch(lambda: 0.0, 0.05)) is True
    assert _is_asynchronous(BACKEND, _torch(lambda: next(slow_at_first), 0.05)) is True


def test_work_that_is_done_with_its_launches_is_not() -> None:
    """The event is pending at first on this device, too."""
    assert _is_asynchronous(BACKEND, _torch(lambda: 0.03, 0.01)) is False


def test_launches_that_take_long_are_not_tried_again() -> None:
    left = iter([0.2] * 8)
    assert _is_asynchronous(BACKEND, _torch(lambda: next(left), 0.01)) is False


def test_a_device_that_cannot_answer_is_unknown() -> None:
    def launch() -> float:
        raise RuntimeError("neg is not implemented")

    assert _is_asynchronous(BACKEND, _torch(launch, 0.0)) is None


def test_tensors_that_cannot_be_sparse_are_seen() -> None:
    torch = importlib.import_module("torch")
    there: Any = SimpleNamespace(eye=torch.eye, device=lambda *_: "cpu")
    refused: Any = SimpleNamespace(eye=torch.eye, device=lambda *_: "meta")  # no copy from it is possible

    assert _has_sparse(BACKEND, there)
    assert not _has_sparse(BACKEND, refused)


@pytest.mark.parametrize(("torch_type", "found"), [("cpu", True), ("npu", False)])
def test_a_backend_of_torch_distributed_is_seen(torch_type: str, found: bool) -> None:
    assert _has_process_groups(Backend("npu", torch_type=torch_type)) is found
