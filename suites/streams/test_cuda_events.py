"""CUDA events: what they wait for, when they are done, and the time between two of them."""

from __future__ import annotations

import pytest
import torch

from .busy import NOT_SHOWN, POISON, Relay, calibrate, ever, seen_in_trials, sleep_on

pytestmark = [pytest.mark.requires(device="cuda"), pytest.mark.covers("test_cuda::TestCuda::test_events")]


def test_an_event_never_recorded_is_done() -> None:
    """Contract: before its first record an event waits for nothing: `query` is true, `synchronize` returns."""
    event = torch.cuda.Event()

    assert event.query()
    event.synchronize()
    assert event.query()


def test_an_event_is_done_when_the_work_before_it_is(device: torch.device) -> None:
    """Contract: recorded behind a sleeping kernel an event is not done; after `synchronize` it is, always."""
    stream = torch.cuda.Stream(device)
    calibrate(device)

    def seen_pending() -> bool:
        event = torch.cuda.Event()
        sleep_on(stream)
        event.record(stream)
        pending = not event.query()
        event.synchronize()
        assert event.query()
        return pending

    assert ever(seen_pending)


def test_an_event_without_a_stream_is_recorded_on_the_current_one(device: torch.device) -> None:
    """Contract: `record()` uses the stream that is current: behind its sleep it is pending, though others are idle."""
    stream = torch.cuda.Stream(device)
    calibrate(device)
    torch.cuda.synchronize(device)

    def seen_pending() -> bool:
        event = torch.cuda.Event()
        sleep_on(stream)
        with torch.cuda.stream(stream):
            event.record()
        pending = not event.query()
        stream.synchronize()
        return pending

    assert ever(seen_pending)


def test_recording_again_moves_the_event(device: torch.device) -> None:
    """Contract: an event stands for its latest record: done after the first, it is pending after one behind a sleep."""
    stream = torch.cuda.Stream(device)
    calibrate(device)

    def seen_moved() -> bool:
        event = stream.record_event(torch.cuda.Event())
        event.synchronize()
        assert event.query()
        sleep_on(stream)
        assert stream.record_event(event) is event
        pending = not event.query()
        event.synchronize()
        return pending

    assert ever(seen_moved)


def test_an_event_does_not_wait_for_work_given_after_it(device: torch.device) -> None:
    """Contract: an event captures the work before it alone. A reader that waits for an event recorded *before* the
    writer's sleep and write is not held up: it is seen to read poison, as without any wait."""
    relay = Relay(torch.cuda.Stream(device), torch.cuda.Stream(device))
    early = relay.writer.record_event()
    assert relay.shows_wrong_order(), NOT_SHOWN

    assert ever(lambda: not relay.run(1, lambda: relay.reader.wait_event(early)))


def test_synchronising_an_event_makes_results_visible_to_the_host(device: torch.device) -> None:
    """Contract: when `synchronize` returns, what the stream wrote into pinned memory before the event is there.

    The buffer holds poison and the write is behind a sleep: read before the synchronisation it must once be seen to be
    poison still, after it never.
    """
    stream = torch.cuda.Stream(device)
    host = torch.empty(1 << 18, dtype=torch.int32).pin_memory()
    source = torch.empty(1 << 18, dtype=torch.int32, device=device)
    calibrate(device)

    def trial(value: int) -> bool:
        host.fill_(POISON)
        torch.cuda.synchronize(device)
        sleep_on(stream)
        with torch.cuda.stream(stream):
            source.fill_(value)
            host.copy_(source, non_blocking=True)
        event = stream.record_event()
        too_early = bool((host == POISON).all())
        event.synchronize()
        assert (host == value).all()
        return too_early

    assert seen_in_trials(trial), NOT_SHOWN


def test_elapsed_time_grows_with_the_work_between(device: torch.device) -> None:
    """Contract: the time between two events is positive, longer for a longer sleep, and adds up over a third event."""
    stream = torch.cuda.Stream(device)
    first, second, third = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    calibrate(device)

    first.record(stream)
    sleep_on(stream, 10)
    second.record(stream)
    sleep_on(stream, 40)
    third.record(stream)
    third.synchronize()

    short, long, whole = first.elapsed_time(second), second.elapsed_time(third), first.elapsed_time(third)
    assert 0 < short < long < whole
    assert whole == pytest.approx(short + long, rel=0.01)


def test_elapsed_time_needs_events_made_for_it(device: torch.device) -> None:
    """Contract: events without `enable_timing`, the default, have no elapsed time; the error names the argument."""
    first, second = (torch.cuda.current_stream(device).record_event(torch.cuda.Event()) for _ in range(2))
    second.synchronize()

    with pytest.raises((ValueError, RuntimeError), match="enable_timing"):
        first.elapsed_time(second)


@pytest.mark.parametrize("which", ["neither", "first"])
def test_elapsed_time_needs_both_events_recorded(device: torch.device, which: str) -> None:
    """Contract: there is no time to or from an event never recorded; the error says so, and the device is unharmed."""
    first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    if which == "first":
        first.record()
        first.synchronize()

    with pytest.raises((ValueError, RuntimeError), match="recorded"):
        first.elapsed_time(second)

    assert torch.ones(4, device=device).sum().item() == 4


@pytest.mark.covers("test_cuda::TestCuda::test_stream_event_repr")
def test_repr_names_the_class_and_once_recorded_the_handle(device: torch.device) -> None:
    """Contract: the text of an event names its class, before it has a handle and after; then the handle too."""
    event = torch.cuda.Event()
    assert "torch.cuda.Event" in repr(event)

    event.record(torch.cuda.Stream(device))

    assert event.cuda_event != 0
    assert "torch.cuda.Event" in repr(event)
    assert f"{event.cuda_event:#x}" in repr(event)
