"""Priorities of streams: each stream has the requested priority, in every query.

No case checks that high-priority work overtakes other work, because priority is only a hint to the device's scheduler.
"""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.requires(device="cuda")

#: The priorities for which torch has pools of streams. A device may support fewer.
_each_priority = pytest.mark.parametrize("priority", [0, -1, -2, -3])


def _within_range(priority: int) -> int:
    greatest = torch.cuda.Stream.priority_range()[1]
    if priority < greatest:
        pytest.skip(f"the device's greatest priority is {greatest}")
    return priority


def test_cuda_stream_priority_range_starts_at_zero(device: torch.device) -> None:
    """`priority_range` returns the least and greatest priority.

    Smaller numbers have greater priority, and the least priority is 0, the default. Source: CUDA C++ Programming Guide,
    Stream Priorities.
    """
    least, greatest = torch.cuda.Stream.priority_range()

    assert least == 0
    assert greatest < 0
    assert torch.cuda.Stream(device).priority == least
    assert torch.cuda.default_stream(device).priority == least


@_each_priority
def test_cuda_stream_has_the_priority_that_was_asked_for(device: torch.device, priority: int) -> None:
    """Each stream of torch's pool has the priority with which it was created."""
    streams = [torch.cuda.Stream(device, priority=_within_range(priority)) for _ in range(64)]

    assert {stream.priority for stream in streams} == {priority}


@pytest.mark.parametrize("asked", [1, 100, -100])
def test_cuda_stream_priority_beyond_the_range_is_the_nearest(device: torch.device, asked: int) -> None:
    """A priority outside the range is clamped to it (`torch.cuda.Stream`)."""
    least, greatest = torch.cuda.Stream.priority_range()

    assert torch.cuda.Stream(device, priority=asked).priority == (least if asked > 0 else greatest)


@_each_priority
def test_current_stream_has_its_priority(device: torch.device, priority: int) -> None:
    """Within `torch.cuda.stream`, the current stream is the given one, with its priority."""
    stream = torch.cuda.Stream(device, priority=_within_range(priority))

    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream(device).priority == priority
    assert torch.cuda.current_stream(device).priority == 0


@_each_priority
def test_externalstream_has_the_priority_of_its_stream(device: torch.device, priority: int) -> None:
    """A stream that torch gets as a handle has the priority that CUDA reports for it."""
    stream = torch.cuda.Stream(device, priority=_within_range(priority))

    assert torch.cuda.ExternalStream(stream.cuda_stream, device=device).priority == priority


@_each_priority
def test_generic_stream_has_the_priority_that_was_asked_for(device: torch.device, priority: int) -> None:
    """`torch.Stream` accepts a priority, which is read through CUDA's own class for the same stream."""
    stream = torch.Stream(device, priority=_within_range(priority))

    same = torch.cuda.Stream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )
    assert same.priority == priority


def test_streams_of_two_priorities_are_never_the_same(device: torch.device) -> None:
    """Pool streams of one priority are never reused for another priority."""
    greatest = torch.cuda.Stream.priority_range()[1]
    handles = {
        priority: {torch.cuda.Stream(device, priority=priority).cuda_stream for _ in range(64)}
        for priority in range(greatest, 1)
    }

    assert len(set.union(*handles.values())) == sum(map(len, handles.values()))


@pytest.mark.requires(devices=2)
def test_cuda_stream_priority_holds_on_each_device(device: torch.device) -> None:
    """A stream on a device that is not current also has its own priority."""
    greatest = torch.cuda.Stream.priority_range()[1]

    for each in (device, torch.device(device.type, 1)):
        assert torch.cuda.Stream(each, priority=greatest).priority == greatest
        assert torch.cuda.Stream(each).priority == 0
