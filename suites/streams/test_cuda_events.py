"""`torch.cuda.Event` specifics: handles, repr, and use without a device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from .busy import SLEEP_MS, calibrate, ever, sleep_on

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


@pytest.mark.parametrize(
    "made",
    [lambda: torch.cuda.Event(blocking=True), lambda: torch.Event("cuda", blocking=True)],
    ids=["torch.cuda.Event", "torch.Event"],
)
def test_wait_for_a_blocking_event_takes_no_processor_time(made: Callable[[], Any], device: torch.device) -> None:
    """The thread that waits for an event with `blocking=True` sleeps (torch, `Event`; CUDA, cudaEventBlockingSync)."""
    calibrate(device)
    stream = torch.Stream(device)

    def slept() -> bool:
        event = made()
        sleep_on(stream, 4 * SLEEP_MS)
        with stream:
            event.record()
        began, busy = time.perf_counter(), time.thread_time()
        event.synchronize()
        waited, worked = time.perf_counter() - began, time.thread_time() - busy
        return waited > SLEEP_MS / 1000 and worked < waited / 4

    assert ever(slept)
