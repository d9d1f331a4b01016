"""Streams and events of two devices together."""

from __future__ import annotations

import pytest
import torch

from .busy import NOT_SHOWN, Relay

pytestmark = [
    pytest.mark.requires(device="cuda", devices=2),
    pytest.mark.covers("test_cuda::TestCuda::test_streams"),
]

FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)


def test_each_device_has_its_own_current_stream() -> None:
    """Contract: selecting a stream on one device makes that device current, leaves the other's stream alone, and
    leaving the block restores all three."""
    before = [torch.cuda.current_stream(d) for d in (FIRST, SECOND)], torch.cuda.current_device()
    stream = torch.cuda.Stream(SECOND)
    assert torch.cuda.current_device() == before[1]

    with torch.cuda.stream(stream):
        assert torch.cuda.current_device() == SECOND.index
        assert torch.cuda.current_stream(SECOND) == stream
        assert torch.cuda.current_stream(FIRST) == before[0][0]

    assert ([torch.cuda.current_stream(d) for d in (FIRST, SECOND)], torch.cuda.current_device()) == before


def test_streams_of_different_devices_differ() -> None:
    """Contract: the default streams of two devices, one handle though they have, are not equal."""
    first, second = torch.cuda.default_stream(FIRST), torch.cuda.default_stream(SECOND)

    assert first.cuda_stream == second.cuda_stream
    assert first != second


def test_a_stream_waits_for_one_of_another_device() -> None:
    """Contract: streams of any device can wait for an event; a copy across devices behind such a wait reads what was
    written. Without the wait, poison must be seen.

    A copy between devices is ordered after the current streams of both, of which the writer is not one.
    """
    relay = Relay(torch.cuda.Stream(FIRST), torch.cuda.Stream(SECOND))
    assert relay.shows_wrong_order(), NOT_SHOWN

    assert relay.always_in_order(lambda: relay.reader.wait_stream(relay.writer))
