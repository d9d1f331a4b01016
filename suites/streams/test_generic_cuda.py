"""`torch.Stream`, `torch.Event` and `torch.accelerator` in combination with `torch.cuda`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from .busy import calibrate, ever, sleep_on

pytestmark = [
    pytest.mark.requires(device="cuda"),
    pytest.mark.covers("test_cuda::TestCuda::test_generic_stream_event"),
]


def as_cuda(stream: torch.Stream) -> torch.cuda.Stream:
    """Return the CUDA stream with the identity of a generic one."""
    return torch.cuda.Stream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )


@pytest.fixture
def stream_restored(device: torch.device) -> Iterator[None]:
    """Restore the current stream after a case that sets it permanently."""
    before = torch.cuda.current_stream(device)
    yield
    torch.cuda.set_stream(before)


def test_cuda_stream_and_event_are_generic_ones(device: torch.device) -> None:
    """The CUDA classes are subclasses of the generic ones."""
    assert isinstance(torch.cuda.Stream(device), torch.Stream)
    assert isinstance(torch.cuda.Event(), torch.Event)


@pytest.mark.covers("test_cuda::TestCuda::test_stream_event_compatibility")
def test_cuda_stream_made_from_a_generic_stream_is_the_same(device: torch.device) -> None:
    """Id, index and type identify a stream: work enqueued through either object makes both busy."""
    generic = torch.Stream(device)
    twin = as_cuda(generic)
    calibrate(device)
    assert twin.stream_id == generic.stream_id

    def seen_through_the_other(given: torch.Stream, asked: torch.Stream) -> bool:
        sleep_on(given)
        at_work = not asked.query()
        asked.synchronize()
        assert given.query()
        return at_work

    assert ever(lambda: seen_through_the_other(twin, generic))
    assert ever(lambda: seen_through_the_other(generic, twin))


def test_generic_stream_is_current_for_cuda_and_accelerator(device: torch.device) -> None:
    """A generic stream as a context is current for `torch.cuda` and `torch.accelerator`."""
    before = torch.cuda.current_stream(device).stream_id
    stream = torch.Stream(device)

    with stream:
        assert torch.cuda.current_stream(device).stream_id == stream.stream_id
        assert torch.accelerator.current_stream(device).stream_id == stream.stream_id

    assert torch.cuda.current_stream(device).stream_id == before


@pytest.mark.usefixtures("stream_restored")
def test_accelerator_set_stream_sets_the_current_stream_of_cuda(device: torch.device) -> None:
    """`torch.accelerator.set_stream` accepts generic and CUDA streams, and `torch.cuda` sees the change."""
    for stream in (torch.Stream(device), torch.cuda.Stream(device)):
        torch.accelerator.set_stream(stream)

        assert torch.cuda.current_stream(device).stream_id == stream.stream_id
        assert torch.accelerator.current_stream(device).stream_id == stream.stream_id


@pytest.mark.covers("test_cuda::TestCuda::test_stream_event_compatibility")
def test_generic_event_on_a_cuda_stream_is_done_after_synchronize(device: torch.device) -> None:
    """A generic event on a sleeping CUDA stream is pending while others are idle, and complete after `synchronize`."""
    stream, idle = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    calibrate(device)

    def seen_pending() -> bool:
        event = torch.Event(device)
        sleep_on(stream)
        event.record(stream)
        idle.synchronize()
        pending = not event.query()
        event.synchronize()
        assert event.query()
        return pending

    assert ever(seen_pending)


@pytest.mark.parametrize("generic_first", [True, False], ids=["generic_to_cuda", "cuda_to_generic"])
def test_elapsed_time_between_generic_and_cuda_events_is_refused(device: torch.device, generic_first: bool) -> None:
    """`elapsed_time` between a generic and a CUDA event raises and names the required class."""
    stream = torch.cuda.current_stream(device)
    events = [torch.Event(device, enable_timing=True), torch.cuda.Event(enable_timing=True)]
    for event in events:
        event.record(stream)
    stream.synchronize()
    first, second = events if generic_first else reversed(events)

    with pytest.raises((TypeError, ValueError, RuntimeError), match=r"torch\.(cuda\.)?Event"):
        first.elapsed_time(second)
