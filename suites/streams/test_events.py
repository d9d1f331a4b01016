"""Events of an accelerator: what they wait for, when they are done, and the time between two of them."""

from __future__ import annotations

import pytest
import torch

from .apis import Api
from .busy import NOT_SHOWN, POISON, Relay, calibrate, ever, seen_in_trials, sleep_on

pytestmark = [
    pytest.mark.requires(accelerator=True),
    pytest.mark.covers("test_cuda::TestCuda::test_events", "test_cuda::TestCuda::test_generic_stream_event"),
]


def test_event_query_is_false_until_the_work_before_it_is_done(api: Api, device: torch.device) -> None:
    """Contract: recorded behind a sleep an event is not done, though other streams are; after `synchronize` it is,
    always, and so is all the work before it."""
    stream, idle = api.stream(device), api.current_stream(device)
    calibrate(device)

    def seen_pending() -> bool:
        event = api.event(device)
        assert event.query()
        sleep_on(stream)
        event.record(stream)
        idle.synchronize()
        pending = not event.query()
        event.synchronize()
        assert event.query()
        assert stream.query()
        return pending

    assert ever(seen_pending)


def test_event_record_without_a_stream_uses_the_current_one(api: Api, device: torch.device) -> None:
    """Contract: `record()` uses the stream that is current: behind its sleep it is pending, though others are idle."""
    stream, idle = api.stream(device), api.current_stream(device)
    calibrate(device)
    api.synchronize(device)

    def seen_pending() -> bool:
        event = api.event(device)
        sleep_on(stream)
        with api.entered(stream):
            event.record()
        idle.synchronize()
        pending = not event.query()
        stream.synchronize()
        return pending

    assert ever(seen_pending)


def test_event_record_again_moves_the_event(api: Api, device: torch.device) -> None:
    """Contract: an event stands for its latest record: done after the first, it is pending after one behind a sleep."""
    stream = api.stream(device)
    calibrate(device)

    def seen_moved() -> bool:
        event = stream.record_event(api.event(device))
        event.synchronize()
        assert event.query()
        sleep_on(stream)
        assert stream.record_event(event) is event
        pending = not event.query()
        event.synchronize()
        return pending

    assert ever(seen_moved)


def test_wait_event_does_not_wait_for_work_given_after_it(api: Api, device: torch.device) -> None:
    """Contract: an event captures the work before it alone. A reader that waits for an event recorded *before* the
    writer's sleep and write is not held up: it is seen to read poison, as without any wait."""
    relay = Relay(api.stream(device), api.stream(device))
    early = relay.writer.record_event()
    assert relay.shows_wrong_order(), NOT_SHOWN

    assert ever(lambda: not relay.run(1, lambda: relay.reader.wait_event(early)))


def test_wait_event_is_for_the_record_before_it(api: Api, device: torch.device) -> None:
    """Contract: a stream that waits for an event waits for its record as it was then: recorded again behind another
    sleep afterwards, the event holds up nobody who waited before; recorded again on an idle stream, it lets nobody go.

    The reader is seen to have gone on while the event, recorded again, is still pending. It never reads poison though
    the event, recorded again, is done before the writer is.
    """
    writer, reader, other = (api.stream(device) for _ in range(3))
    calibrate(device)

    def gone_on() -> bool:
        event = api.event(device)
        writer.record_event(event)
        reader.wait_event(event)
        sleep_on(other)
        other.record_event(event)
        reader.synchronize()
        still_pending = not event.query()
        api.synchronize(device)
        return still_pending

    def wait_and_record_again() -> None:
        event = writer.record_event(api.event(device))
        reader.wait_event(event)
        other.record_event(event)

    assert ever(gone_on)
    relay = Relay(writer, reader)
    assert relay.shows_wrong_order(), NOT_SHOWN
    assert relay.always_in_order(wait_and_record_again)


def test_event_synchronize_makes_results_visible_to_the_host(api: Api, device: torch.device) -> None:
    """Contract: when `synchronize` returns, what the stream wrote into pinned memory before the event is there.

    The buffer holds poison and the write is behind a sleep: read before the synchronisation it must once be seen to be
    poison still, after it never.
    """
    stream = api.stream(device)
    host = torch.empty(1 << 18, dtype=torch.int32).pin_memory()
    source = torch.empty(1 << 18, dtype=torch.int32, device=device)
    calibrate(device)

    def trial(value: int) -> bool:
        host.fill_(POISON)
        api.synchronize(device)
        sleep_on(stream)
        with api.entered(stream):
            source.fill_(value)
            host.copy_(source, non_blocking=True)
        event = stream.record_event()
        too_early = bool((host == POISON).all())
        event.synchronize()
        assert (host == value).all()
        return too_early

    assert seen_in_trials(trial), NOT_SHOWN


@pytest.mark.covers("test_cuda::TestCuda::test_events_elapsedtime")
def test_elapsed_time_grows_with_the_work_between(api: Api, device: torch.device) -> None:
    """Contract: the time between two events is positive, longer for a longer sleep, and adds up over a third event."""
    stream = api.stream(device)
    first, second, third = (api.event(device, enable_timing=True) for _ in range(3))
    calibrate(device)

    first.record(stream)
    sleep_on(stream, 10)
    second.record(stream)
    sleep_on(stream, 200)
    third.record(stream)
    third.synchronize()

    short, long, whole = first.elapsed_time(second), second.elapsed_time(third), first.elapsed_time(third)
    assert 0 < short < long < whole
    assert whole == pytest.approx(short + long, rel=0.01)


@pytest.mark.covers("test_cuda::TestCuda::test_events_elapsedtime")
def test_elapsed_time_needs_enable_timing(api: Api, device: torch.device) -> None:
    """Contract: events without `enable_timing`, the default, have no elapsed time, and there is none from or to one of
    them; the error names the argument."""
    stream = api.current_stream(device)
    first, second = (stream.record_event(api.event(device)) for _ in range(2))
    timed = stream.record_event(api.event(device, enable_timing=True))
    timed.synchronize()

    for one, other in ((first, second), (first, timed), (timed, first)):
        with pytest.raises((ValueError, RuntimeError), match="enable_timing"):
            one.elapsed_time(other)


@pytest.mark.covers("test_cuda::TestCuda::test_events_elapsedtime")
@pytest.mark.parametrize("which", ["neither", "first"])
def test_elapsed_time_needs_both_events_recorded(api: Api, device: torch.device, which: str) -> None:
    """Contract: there is no time to or from an event never recorded; the error says so, and the device is unharmed."""
    first, second = (api.event(device, enable_timing=True) for _ in range(2))
    if which == "first":
        first.record()
        first.synchronize()

    for one, other in ((first, second), (second, first)):
        with pytest.raises((ValueError, RuntimeError), match="recorded"):
            one.elapsed_time(other)

    assert torch.ones(4, device=device).sum().item() == 4


def test_event_id_is_0_until_its_first_record(device: torch.device) -> None:
    """Contract: the id of an event is 0 until its first record, and then its own."""
    first, second = torch.Event(device), torch.Event(device)
    assert (first.event_id, second.event_id) == (0, 0)

    first.record()
    second.record()
    second.synchronize()

    assert 0 not in (first.event_id, second.event_id)
    assert first.event_id != second.event_id


def test_event_wait_gives_right_results_on_another_stream(api: Api, device: torch.device) -> None:
    """Contract: operands copied on a stream behind a sleep are whole for another stream that waited for its event; what
    it would read without waiting is no number."""
    stream = api.stream(device)
    a, b = (torch.randn(1 << 18).pin_memory() for _ in range(2))
    a_there, b_there = (torch.full((1 << 18,), float("nan"), device=device) for _ in range(2))
    calibrate(device)
    api.synchronize(device)

    sleep_on(stream)
    with api.entered(stream):
        a_there.copy_(a, non_blocking=True)
        b_there.copy_(b, non_blocking=True)
    event = stream.record_event()
    event.wait(api.current_stream(device))
    total = a_there + b_there

    assert torch.equal(total.cpu(), a + b)
