"""Events of an accelerator: what they wait for, when they are complete, and the time between two of them."""

from __future__ import annotations

import pytest
import torch

from .apis import Api
from .busy import NOT_SHOWN, POISON, SLEEP_MS, Relay, calibrate, ever, seen_in_trials, sleep_on

pytestmark = [
    pytest.mark.requires(accelerator=True),
    pytest.mark.covers("test_cuda::TestCuda::test_events", "test_cuda::TestCuda::test_generic_stream_event"),
]


@pytest.mark.requires(asynchronous=True)
def test_event_query_is_false_until_the_work_before_it_is_done(api: Api, device: torch.device) -> None:
    """An event recorded after a sleep is pending while other streams are idle, and complete after `synchronize`."""
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


@pytest.mark.requires(asynchronous=True)
def test_event_record_without_a_stream_uses_the_current_one(api: Api, device: torch.device) -> None:
    """`record()` uses the current stream: the event is pending after its sleep, while other streams are idle."""
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


@pytest.mark.requires(asynchronous=True)
def test_event_record_again_moves_the_event(api: Api, device: torch.device) -> None:
    """An event represents its latest record.

    An event that is complete after its first record is pending after a second record behind a sleep.
    """
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


@pytest.mark.races("the control leaves out the wait, to show that the case would notice")
@pytest.mark.requires(asynchronous=True)
def test_wait_event_does_not_wait_for_later_work(api: Api, device: torch.device) -> None:
    """A wait for an event recorded *before* the writer's sleep does not delay the reader, which reads poison."""
    relay = Relay(api.stream(device), api.stream(device))
    early = relay.writer.record_event()
    assert relay.shows_wrong_order(), NOT_SHOWN

    assert ever(lambda: not relay.run(1, lambda: relay.reader.wait_event(early)))


@pytest.mark.races("the control leaves out the wait, to show that the case would notice")
@pytest.mark.requires(asynchronous=True)
def test_wait_event_waits_for_the_latest_record_before_it(api: Api, device: torch.device) -> None:
    """A stream that waits for an event waits for the latest record at the time of the call.

    A later record behind another sleep does not extend the wait, and a later record on an idle stream does not shorten
    it. The reader is observed to proceed while the re-recorded event is pending, and never reads poison although the
    re-recorded event completes before the writer.
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


@pytest.mark.requires(asynchronous=True)
def test_event_record_again_while_pending_moves_the_event(api: Api, device: torch.device) -> None:
    """An event that is recorded again while it is pending completes with the work before its latest record.

    The first record is behind a short sleep, and the second one behind a longer sleep on another stream.
    """
    first, second = api.stream(device), api.stream(device)
    calibrate(device)

    def seen_pending() -> bool:
        event = api.event(device)
        sleep_on(first)
        event.record(first)
        sleep_on(second, 3 * SLEEP_MS)
        pending = not event.query()
        event.record(second)
        event.synchronize()
        assert event.query()
        assert second.query()
        api.synchronize(device)
        return pending

    assert ever(seen_pending)


@pytest.mark.races("the control leaves out the wait, to show that the case would notice")
@pytest.mark.parametrize(
    "options", [{}, {"blocking": True}, {"enable_timing": True}], ids=["plain", "blocking", "timing"]
)
@pytest.mark.requires(asynchronous=True)
def test_event_synchronize_makes_results_visible_to_the_host(
    api: Api, device: torch.device, options: dict[str, bool]
) -> None:
    """When `synchronize` returns, the host sees what the stream wrote into pinned memory before the event.

    This holds for events of all kinds: `blocking` only changes how the host waits. The buffer has poison, and the write
    follows a sleep: poison must be observed once before the synchronize, and never after it.
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
        event = stream.record_event(api.event(device, **options))
        too_early = bool((host == POISON).all())
        event.synchronize()
        assert (host == value).all()
        return too_early

    assert seen_in_trials(trial), NOT_SHOWN


@pytest.mark.covers("test_cuda::TestCuda::test_events_elapsedtime")
def test_elapsed_time_grows_with_the_work_between(api: Api, device: torch.device) -> None:
    """The time between two events is positive, longer for a longer sleep, and additive over a third event."""
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
    """`elapsed_time` raises if either event lacks `enable_timing`, the default, and the error names the argument."""
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
    """`elapsed_time` raises if either event was never recorded, and the device still works."""
    first, second = (api.event(device, enable_timing=True) for _ in range(2))
    if which == "first":
        first.record()
        first.synchronize()

    for one, other in ((first, second), (second, first)):
        with pytest.raises((ValueError, RuntimeError), match="recorded"):
            one.elapsed_time(other)

    assert torch.ones(4, device=device).sum().item() == 4


def test_event_id_is_0_until_its_first_record(device: torch.device) -> None:
    """The id of an event is 0 until its first record, and then unique."""
    first, second = torch.Event(device), torch.Event(device)
    assert (first.event_id, second.event_id) == (0, 0)

    first.record()
    second.record()
    second.synchronize()

    assert 0 not in (first.event_id, second.event_id)
    assert first.event_id != second.event_id


@pytest.mark.requires(pinned_memory=True)
def test_event_wait_gives_right_results_on_another_stream(api: Api, device: torch.device) -> None:
    """Operands copied on a sleeping stream are complete for another stream that waited for its event.

    Before that, the operands contain NaN.
    """
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
