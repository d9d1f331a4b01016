"""`torch.cuda.Event` specifics: handles, repr, and use without a device."""

from __future__ import annotations

import pytest
import torch

pytestmark = [pytest.mark.requires(device="cuda"), pytest.mark.covers("test_cuda::TestCuda::test_events")]


def test_cuda_event_query_is_true_before_its_first_record() -> None:
    """Before its first record, an event has nothing to wait for: `query` is True and `synchronize` returns."""
    event = torch.cuda.Event()

    assert event.query()
    event.synchronize()
    assert event.query()


@pytest.mark.covers("test_cuda::TestCuda::test_stream_event_repr")
def test_cuda_event_repr_names_the_class_and_the_handle(device: torch.device) -> None:
    """The repr of an event has its class name, and its handle once it has one."""
    event = torch.cuda.Event()
    assert "torch.cuda.Event" in repr(event)

    event.record(torch.cuda.Stream(device))

    assert event.cuda_event != 0
    assert "torch.cuda.Event" in repr(event)
    assert f"{event.cuda_event:#x}" in repr(event)
