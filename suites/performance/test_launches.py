"""Speed of launches, events, graphs and the allocator, with a check of the effect of each."""

from __future__ import annotations

import pytest
import torch

from ..graphs.capturing import Accelerator, Api, Cuda, captured
from ..sizes import SIZES
from ..streams.busy import calibrate, ever, sleep_on
from ..synchronizing import synchronize
from .measuring import Speed

pytestmark = [pytest.mark.serial, pytest.mark.parametrize("full", SIZES)]

#: The number of kernels of a graph.
KERNELS = 100


class Counter:
    """Adds one to a small tensor at each call."""

    def __init__(self, device: torch.device) -> None:
        self.x = torch.zeros(64, dtype=torch.int64, device=device)
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        self.x.add_(1)

    def check(self, times: int = 1) -> None:
        """Assert that every call had its effect, `times` times."""
        assert self.x.tolist() == [times * self.calls] * 64


def test_launch_latency(device: torch.device, speed: Speed) -> None:
    """The time per operation in a long sequence that is launched from Python. Each operation has its effect."""
    work = Counter(device)

    speed("launch_latency", work)

    work.check()


def test_launch_and_synchronize(device: torch.device, speed: Speed) -> None:
    """The time of a launch and of the wait for its completion. Each launch has its effect."""
    work = Counter(device)

    def launch_and_wait() -> None:
        work()
        synchronize(device)

    speed("launch_synchronize", launch_and_wait)

    work.check()


@pytest.mark.requires(any=[{"device": "cuda", "cuda_graphs": True}, {"accelerator_graphs": True}])
def test_graph_replay(device: torch.device, speed: Speed) -> None:
    """The time per kernel in replays of a graph of 100 kernels. Each kernel of each replay has its effect."""
    work = Counter(device)
    api: Api = Cuda() if device.type == "cuda" else Accelerator()

    def kernels() -> None:
        for _ in range(KERNELS):
            work.x.add_(1)

    graph = captured(api, device, kernels)
    work.x.zero_()

    def replay() -> None:
        work.calls += 1
        graph.replay()

    speed("graph_replay", replay, parts=KERNELS)

    work.check(times=KERNELS)


@pytest.mark.requires(asynchronous=True)
@pytest.mark.requires(accelerator=True)
def test_event_record(device: torch.device, speed: Speed) -> None:
    """The time to record an event on a stream.

    The event completes when the work before it is complete, and not earlier. The stream sleeps before the event; the
    case must observe an incomplete event at least once.
    """
    stream = torch.accelerator.current_stream(device)
    event = torch.Event(device)

    speed("event_record", lambda: event.record(stream))

    calibrate(device)

    def waits_for_its_stream() -> bool:
        sleep_on(stream)
        event.record(stream)
        early = event.query()
        event.synchronize()
        assert event.query()
        return not early

    assert ever(waits_for_its_stream)


def test_allocation(device: torch.device, speed: Speed) -> None:
    """The time to allocate 1 MiB from the allocator's cache and to free it. Live blocks do not overlap."""

    def allocate() -> None:
        torch.empty(1 << 20, dtype=torch.uint8, device=device)

    speed("allocation", allocate)

    kept = [torch.full((1 << 20,), value, dtype=torch.uint8, device=device) for value in range(4)]
    assert [int(x.sum()) for x in kept] == [value << 20 for value in range(4)]
