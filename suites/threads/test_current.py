"""Per-thread state: current device, current stream, grad mode, default device."""

from __future__ import annotations

import threading

import pytest
import torch

from ..streams.busy import calibrate, ever, sleep_on
from . import together

accelerator = pytest.mark.requires(accelerator=True)


@accelerator
@pytest.mark.covers("test_cuda::TestCuda::test_streams")
def test_current_stream_of_a_new_thread_is_the_default_stream(device: torch.device) -> None:
    """A thread that is started within a stream's block has the default stream.

    A stream that the thread selects does not affect the parent.
    """
    default, mine, theirs = torch.accelerator.current_stream(device), torch.Stream(device), torch.Stream(device)

    def look() -> tuple[int, int]:
        before = torch.accelerator.current_stream(device).stream_id
        with theirs:
            return before, torch.accelerator.current_stream(device).stream_id

    with mine:
        seen = together.elsewhere(look)
        after = torch.accelerator.current_stream(device).stream_id

    assert seen == (default.stream_id, theirs.stream_id)
    assert after == mine.stream_id


@pytest.mark.requires(asynchronous=True)
@accelerator
def test_current_stream_of_a_thread_runs_its_work(device: torch.device) -> None:
    """An operation runs on its thread's current stream: four threads on separate streams get their own results.

    A sleeping stream delays only its own thread's work: when all threads have ended, the work of the others is
    complete, and that of the sleeping stream is not.
    """
    streams = [torch.Stream(device) for _ in range(4)]
    calibrate(device)

    def held_up(sleeper: int) -> bool:
        values = [torch.zeros(1000, dtype=torch.int64, device=device) for _ in streams]
        torch.accelerator.synchronize(device)
        sleep_on(streams[sleeper], 300)

        def work(number: int) -> None:
            with streams[number]:
                for step in range(20):
                    values[number].mul_(3).add_(step + number)
            if number != sleeper:
                streams[number].synchronize()

        together.run(4, work)
        done = [stream.query() for stream in streams]
        torch.accelerator.synchronize(device)
        for number, x in enumerate(values):
            expected = 0
            for step in range(20):
                expected = expected * 3 + step + number
            assert (x == expected).all()
        return done == [number != sleeper for number in range(4)]

    assert ever(lambda: held_up(0))
    assert ever(lambda: held_up(3))


@accelerator
@pytest.mark.requires(devices=2)
def test_current_device_index_is_per_thread(device: torch.device) -> None:
    """A new thread has device 0 as its current device, and selecting another affects that thread only."""

    def look() -> tuple[int, int, int]:
        before = torch.accelerator.current_device_index()
        torch.accelerator.set_device_index(1)
        x = torch.empty(1, device=device.type)
        return before, torch.accelerator.current_device_index(), x.get_device()

    with torch.accelerator.device_index(1):
        from_the_second = together.elsewhere(look)
        assert torch.accelerator.current_device_index() == 1
    from_the_first = together.elsewhere(look)

    assert from_the_second == from_the_first == (0, 1, 1)
    assert torch.accelerator.current_device_index() == 0


@accelerator
def test_stream_may_be_used_by_any_thread(device: torch.device) -> None:
    """A stream can be used by any thread.

    Work that several threads enqueue, and their queries and synchronizations, are in order.
    """
    stream = torch.Stream(device)
    x = torch.zeros(100, dtype=torch.int64, device=device)
    turn = threading.Condition()
    next_one = [0]

    def work(number: int) -> None:
        for step in range(number, 40, 4):
            with turn:
                turn.wait_for(lambda step=step: next_one[0] == step, timeout=together.LIMIT)  # type: ignore[misc]
                with stream:
                    x.mul_(3).add_(step).remainder_(1_000_003)
                next_one[0] += 1
                turn.notify_all()

    torch.accelerator.synchronize(device)
    together.run(4, work)
    stream.synchronize()

    expected = 0
    for step in range(40):
        expected = (expected * 3 + step) % 1_000_003
    assert (x == expected).all()


@pytest.mark.races("the control leaves out the wait, to show that the case would notice")
@pytest.mark.requires(asynchronous=True)
@accelerator
def test_event_recorded_by_one_thread_orders_another(device: torch.device) -> None:
    """A wait for an event recorded by another thread orders the streams, in each trial.

    Without the wait, poison must be observed at least once.
    """
    writer, reader = torch.Stream(device), torch.Stream(device)
    x = torch.zeros(1 << 16, dtype=torch.int32, device=device)
    seen = torch.zeros(1 << 16, dtype=torch.int32, device=device)
    calibrate(device)

    def passed(value: int, *, wait: bool) -> bool:
        x.fill_(-1)
        seen.fill_(-1)
        torch.accelerator.synchronize(device)
        sleep_on(writer)

        def write() -> torch.Event:
            with writer:
                x.fill_(value)
                return writer.record_event()

        event = together.elsewhere(write)
        if wait:
            assert isinstance(event, torch.Event)
            reader.wait_event(event)
        with reader:
            seen.copy_(x)
        torch.accelerator.synchronize(device)
        return bool((seen == value).all())

    assert ever(lambda: not passed(1, wait=False)), "a reader without a wait never read too early"
    assert all(passed(value, wait=True) for value in range(2, 7))


def test_grad_mode_and_default_device_are_per_thread(device: torch.device) -> None:
    """A new thread has grad mode on and the CPU as its default device, whatever the parent's state.

    Its changes do not affect the parent.
    """
    block = device if device.type != "cpu" else torch.device("meta")  # differs from the default device

    def look() -> tuple[bool, str, bool]:
        grad, where = torch.is_grad_enabled(), torch.empty(1).device.type
        torch.set_grad_enabled(False)
        return grad, where, torch.is_inference_mode_enabled()

    with torch.inference_mode(), block:
        seen = together.elsewhere(look)
        assert torch.empty(1).device.type == block.type
        assert torch.is_inference_mode_enabled()

    assert seen == (True, "cpu", False)
    assert torch.is_grad_enabled()
