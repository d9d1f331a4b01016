"""The question whether a device works behind the host, asked of devices that are fakes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from harness.backends.backend import Backend
from harness.devices.census import _has_process_groups, _has_sparse, _is_asynchronous

BACKEND = Backend("npu")


def _torch(query: Callable[[], bool]) -> Any:
    """Return a torch whose events answer with `query`."""
    block = SimpleNamespace(neg_=lambda: None, device="npu:0")
    return SimpleNamespace(
        device=lambda kind, index: f"{kind}:{index}",
        ones=lambda *_, **__: block,
        accelerator=SimpleNamespace(current_stream=lambda: SimpleNamespace(synchronize=lambda: None)),
        Event=lambda _: SimpleNamespace(record=lambda _: None, query=query),
    )


@pytest.mark.parametrize(
    ("answers", "found"),
    [([False], True), ([True, False], True), ([True, True, False], True), ([True, True, True], False)],
)
def test_one_pending_event_is_enough(answers: list[bool], found: bool) -> None:
    left = iter(answers)
    assert _is_asynchronous(BACKEND, _torch(lambda: next(left))) is found
    assert list(left) == [], "asked further"


def test_a_device_that_cannot_answer_is_unknown() -> None:
    def query() -> bool:
        raise RuntimeError("events are not implemented")

    assert _is_asynchronous(BACKEND, _torch(query)) is None


def test_tensors_that_cannot_be_sparse_are_seen() -> None:
    torch = importlib.import_module("torch")
    there: Any = SimpleNamespace(eye=torch.eye, device=lambda *_: "cpu")
    refused: Any = SimpleNamespace(eye=torch.eye, device=lambda *_: "meta")  # nothing can be copied from there

    assert _has_sparse(BACKEND, there)
    assert not _has_sparse(BACKEND, refused)


@pytest.mark.parametrize(("torch_type", "found"), [("cpu", True), ("npu", False)])
def test_a_backend_of_torch_distributed_is_seen(torch_type: str, found: bool) -> None:
    assert _has_process_groups(Backend("npu", torch_type=torch_type)) is found
