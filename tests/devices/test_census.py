"""What a census observes of a device, with fakes of devices and with the CPU."""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from harness.backends.backend import Backend
from harness.devices.capabilities import VOCABULARY
from harness.devices.census import OBSERVATIONS, observe

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
    assert observe("asynchronous", BACKEND, _torch(lambda: 0.0, 0.05)) is True
    assert observe("asynchronous", BACKEND, _torch(lambda: next(slow_at_first), 0.05)) is True


def test_work_that_is_done_with_its_launches_is_not() -> None:
    """The event is pending at first on this device, too."""
    assert observe("asynchronous", BACKEND, _torch(lambda: 0.03, 0.01)) is False


def test_launches_that_take_long_are_not_tried_again() -> None:
    left = iter([0.2] * 8)
    assert observe("asynchronous", BACKEND, _torch(lambda: next(left), 0.01)) is False


def test_a_device_that_cannot_answer_is_unknown() -> None:
    def launch() -> float:
        raise RuntimeError("neg is not implemented")

    assert observe("asynchronous", BACKEND, _torch(launch, 0.0)) is None


def test_tensors_that_cannot_be_sparse_are_seen() -> None:
    torch = importlib.import_module("torch")
    there: Any = SimpleNamespace(eye=torch.eye, device=lambda *_: "cpu")
    refused: Any = SimpleNamespace(eye=torch.eye, device=lambda *_: "meta")  # no copy from it is possible

    assert observe("sparse", BACKEND, there)
    assert not observe("sparse", BACKEND, refused)


@pytest.mark.parametrize(("torch_type", "found"), [("cpu", True), ("npu", False)])
def test_a_backend_of_torch_distributed_is_seen(torch_type: str, found: bool) -> None:
    assert observe("process_groups", Backend("npu", torch_type=torch_type), None) is found


#: The functions of torch that an accelerator without the part does not have, and those of the CPU.
CPU = Backend("cpu")


class _Forks:
    """A tensor that cannot be used in a fork of its process."""

    def __init__(self) -> None:
        self._process = os.getpid()

    def __add__(self, other: object) -> Any:
        """Raise RuntimeError in a fork."""
        if os.getpid() != self._process:
            raise RuntimeError("forked")
        return SimpleNamespace(sum=lambda: SimpleNamespace(item=lambda: 8))


class _ShortSeeds:
    """A generator with seeds of 32 bits."""

    def __init__(self, device: object) -> None:  # noqa: ARG002
        self._seed = 0

    def manual_seed(self, seed: int) -> None:
        """Keep the lower half."""
        self._seed = seed % 2**32

    def initial_seed(self) -> int:
        """Return what was kept."""
        return self._seed


@pytest.mark.parametrize(
    ("name", "lacking", "of_the_cpu"),
    [
        ("wide_seeds", {"Generator": _ShortSeeds}, True),
        ("refuses_forks", {}, False),
        ("device_properties", {}, False),
        ("caching_allocator", {}, False),
        ("pinned_memory", {}, False),
        ("autocast", {}, True),
        ("inductor", {}, True),
        ("accelerator_graphs", {}, False),
    ],
)
def test_a_part_is_observed(name: str, lacking: dict[str, Any], of_the_cpu: bool) -> None:
    """The CPU build of torch has no accelerator, and so neither its allocator, nor pinned memory, nor graphs."""
    torch = importlib.import_module("torch")
    assert observe(name, CPU, torch) is of_the_cpu
    if lacking:
        assert observe(name, BACKEND, SimpleNamespace(device=lambda *_: "npu:0", **lacking)) is not of_the_cpu


def test_a_device_that_cannot_be_used_in_a_fork_refuses_it() -> None:
    forks: Any = SimpleNamespace(
        device=lambda *_: "npu:0",
        ones=lambda *_, **__: _Forks(),
        npu=SimpleNamespace(synchronize=lambda _: None),
    )
    assert observe("refuses_forks", BACKEND, forks) is True


def test_each_observation_is_a_capability() -> None:
    assert set(OBSERVATIONS) <= set(VOCABULARY)
