"""`torch.accelerator`: the current device and the current stream, on any accelerator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

pytestmark = [
    pytest.mark.requires(accelerator=True),
    pytest.mark.covers("test_cuda::TestCuda::test_generic_stream_event"),
]


@pytest.fixture
def stream_restored(device: torch.device) -> Iterator[None]:
    """Restore the current stream after a case that sets it permanently."""
    before = torch.accelerator.current_stream(device)
    yield
    torch.accelerator.set_stream(before)


def test_stream_without_a_device_is_on_the_current_accelerator(device: torch.device) -> None:
    """The default device of a stream or event is the accelerator, and a stream's index is the current device's."""
    stream = torch.Stream()

    assert stream.device == torch.device(device.type, torch.accelerator.current_device_index())
    assert torch.Event().device.type == device.type


def test_current_accelerator_is_the_device(device: torch.device) -> None:
    """The accelerator is available, has the device's type, and counts and selects devices like the device's module."""
    module = torch.get_device_module(device)

    assert torch.accelerator.is_available()
    assert torch.accelerator.current_accelerator(check_available=True) == torch.device(device.type)
    assert torch.accelerator.device_count() == module.device_count()
    assert torch.accelerator.current_device_index() == module.current_device() == device.index


@pytest.mark.usefixtures("stream_restored")
def test_set_stream_makes_a_stream_current_until_the_next_call(device: torch.device) -> None:
    """`torch.accelerator.set_stream` makes each given stream current; a `with` block in between restores it."""
    streams, inner = [torch.Stream(device) for _ in range(3)], torch.Stream(device)
    assert len({stream.stream_id for stream in (*streams, inner)}) == 4

    for stream in streams:
        torch.accelerator.set_stream(stream)
        assert torch.accelerator.current_stream(device) == stream
        with inner:
            assert torch.accelerator.current_stream(device) == inner
        assert torch.accelerator.current_stream(device) == stream
