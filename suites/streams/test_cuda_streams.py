"""`torch.cuda` stream specifics: handles, the null stream, the function `torch.cuda.stream`."""

from __future__ import annotations

import pytest
import torch

from .busy import NOT_SHOWN, Relay

pytestmark = [pytest.mark.requires(device="cuda"), pytest.mark.covers("test_cuda::TestCuda::test_streams")]


def test_default_stream_has_the_null_handle(device: torch.device) -> None:
    """A device's default stream is CUDA's, with handle 0, and is the same on each call."""
    default = torch.cuda.default_stream(device)

    assert default.cuda_stream == 0
    assert default == torch.cuda.default_stream(device)
    assert hash(default) == hash(torch.cuda.default_stream(device))


def test_cuda_stream_that_is_new_is_not_the_default_stream(device: torch.device) -> None:
    """A new stream differs from the default stream in handle and in equality."""
    default, made = torch.cuda.default_stream(device), torch.cuda.Stream(device)

    assert made != default
    assert made.cuda_stream != 0


def test_cuda_stream_none_leaves_the_current_stream(device: torch.device) -> None:
    """Neither `torch.cuda.stream(None)` nor `set_stream(None)` changes the current stream."""
    with torch.cuda.stream(torch.cuda.Stream(device)):
        chosen = torch.cuda.current_stream(device)
        with torch.cuda.stream(None):
            assert torch.cuda.current_stream(device) == chosen
        torch.cuda.set_stream(None)  # type: ignore[arg-type]
        assert torch.cuda.current_stream(device) == chosen


@pytest.mark.covers("test_cuda::TestCuda::test_stream_event_repr")
def test_cuda_stream_repr_names_the_class_and_the_handle(device: torch.device) -> None:
    """The repr of a stream has its class, device and handle, also for the default stream."""
    for stream in (torch.cuda.Stream(device), torch.cuda.default_stream(device)):
        text = repr(stream)
        assert "torch.cuda.Stream" in text
        assert str(device) in text
        assert f"{stream.cuda_stream:#x}" in text


@pytest.mark.races("the control leaves out the wait, to show that the case would notice")
@pytest.mark.parametrize("make", [torch.cuda.Stream, torch.Stream], ids=["cuda", "generic"])
def test_cuda_synchronize_orders_all_streams_of_the_device(device: torch.device, make: type[torch.Stream]) -> None:
    """Work enqueued after `torch.cuda.synchronize` runs after all earlier work, on any stream.

    Without the synchronize, the reader must be observed to read poison; with it, never.
    """
    relay = Relay(make(device), make(device))
    assert relay.shows_wrong_order(), NOT_SHOWN

    assert relay.always_in_order(lambda: torch.cuda.synchronize(device))
