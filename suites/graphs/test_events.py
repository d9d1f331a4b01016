"""Events that graphs record and wait for: timing within a graph, and the order with work outside it."""

from __future__ import annotations

import pytest
import torch

from suites.streams.busy import POISON, calibrate, sleep_on

from .capturing import Api, apis, on_cuda, works

ROW = "test_cuda::TestCuda::"


def external(*, timing: bool = False) -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=timing, external=True)


@on_cuda
@pytest.mark.covers(f"{ROW}test_graph_timing")
def test_external_event_elapsed_time_in_a_graph(device: torch.device) -> None:
    """Each replay records a graph's external events in order, and `elapsed_time` measures the work between them.

    A long wait is longer than a short one, and neither exceeds the whole.
    """
    calibrate(device)
    launch = torch.cuda.Event(enable_timing=True)
    stream = torch.cuda.Stream(device)
    events = [external(timing=True) for _ in range(3)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        events[0].record()
        sleep_on(stream, 5)
        events[1].record()
        sleep_on(stream, 50)
        events[2].record()
    for _ in range(3):
        launch.record()
        graph.replay()
        torch.cuda.synchronize()
        assert launch.elapsed_time(events[0]) >= 0
        short, long = (a.elapsed_time(b) for a, b in ((events[0], events[1]), (events[1], events[2])))
        assert 0 < short < long
        assert long <= events[0].elapsed_time(events[2])


@on_cuda
@pytest.mark.covers("test_cuda::TestCudaDeviceParametrized::test_graph_external_wait_and_record")
def test_external_event_of_a_graph_is_waited_for_outside(device: torch.device) -> None:
    """A stream that waits for an external event of a graph sees what the replay wrote before it, in each replay."""
    calibrate(device)
    stream, reader = torch.cuda.Stream(device), torch.cuda.Stream(device)
    event = external()
    buffer = torch.zeros(1 << 16, dtype=torch.int64, device=device)
    value = torch.zeros((), dtype=torch.int64, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        sleep_on(stream, 20)
        buffer.copy_(value.expand_as(buffer))
        event.record()
        sleep_on(stream, 20)
    for number in range(1, 5):
        buffer.fill_(POISON)
        value.fill_(number)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            graph.replay()
        reader.wait_event(event)
        with torch.cuda.stream(reader):
            seen = buffer.clone()
        torch.cuda.synchronize()
        assert (seen == number).all(), f"replay {number} was read too early"


@on_cuda
@pytest.mark.covers("test_cuda::TestCudaDeviceParametrized::test_graph_external_wait_and_record")
def test_external_event_from_outside_is_waited_for_by_a_graph(device: torch.device) -> None:
    """A graph that waits for an external event waits, in each replay, for its latest record before the launch."""
    calibrate(device)
    stream, writer = torch.cuda.Stream(device), torch.cuda.Stream(device)
    event = external()
    event.record(writer)  # torch creates an event at its first record, and ignores a wait for a missing event
    buffer, seen = (torch.zeros(1 << 16, dtype=torch.int64, device=device) for _ in range(2))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        event.wait()
        seen.copy_(buffer)
    for number in range(1, 5):
        buffer.fill_(POISON)
        torch.cuda.synchronize()
        with torch.cuda.stream(writer):
            sleep_on(writer, 20)
            buffer.fill_(number)
            event.record()
        with torch.cuda.stream(stream):
            graph.replay()
        torch.cuda.synchronize()
        assert (seen == number).all(), f"replay {number} did not wait"


@apis
def test_event_recorded_in_a_capture_is_not_usable_outside(api: Api, device: torch.device) -> None:
    """An event recorded in a capture belongs to the capture.

    Synchronizing with it outside the capture raises, and the device works.
    """
    stream, event = torch.Stream(device), torch.Event(device)
    x = torch.zeros(8, device=device)
    with api.capturing(api.new(), stream):
        x.add_(1)
        event.record(stream)
    with pytest.raises(RuntimeError, match=r"(?i)captur|invalid argument"):  # driver 580 reports the latter
        event.synchronize()
    assert works(device)
