"""Many streams and many events: more than a device has queues for, and the same ones over and over."""

from __future__ import annotations

import pytest
import torch

from .apis import Api
from .busy import NOT_SHOWN, calibrate, ever, sleep_on

pytestmark = [pytest.mark.requires(accelerator=True), pytest.mark.timeout(600)]

STREAMS = 1000
RECORDS = 10_000


def test_thousand_streams_do_their_work(api: Api, device: torch.device) -> None:
    """Contract: a program may make far more streams than a device has queues (they may share some); what is given to
    each of a thousand is done, once, and each is idle after the device was waited for."""
    streams = [api.stream(device) for _ in range(STREAMS)]
    values = torch.zeros(STREAMS, dtype=torch.int64, device=device)
    api.synchronize(device)

    for number, stream in enumerate(streams):
        with api.entered(stream):
            values[number].add_(number + 1)
    api.synchronize(device)

    assert torch.equal(values.cpu(), torch.arange(1, STREAMS + 1))
    assert all(stream.query() for stream in streams)


def test_wait_event_keeps_a_thousand_streams_in_order(api: Api, device: torch.device) -> None:
    """Contract: a chain of a thousand streams, each of which waits for the one before by an event and then adds to one
    tensor what does not commute, gives what the chain gives on the host.

    The first is behind a sleep, so all others have to wait; a wait that was ignored would read the tensor unchanged.
    """
    streams = [api.stream(device) for _ in range(STREAMS)]
    x = torch.zeros(1, dtype=torch.int64, device=device)
    calibrate(device)
    api.synchronize(device)

    sleep_on(streams[0])
    event, expected = None, 0
    for number, stream in enumerate(streams):
        if event is not None:
            stream.wait_event(event)
        with api.entered(stream):
            x.mul_(3).add_(number).remainder_(1_000_003)
        event = stream.record_event()
        expected = (expected * 3 + number) % 1_000_003
    api.synchronize(device)

    assert x.item() == expected


def test_stream_that_is_dropped_leaves_its_work(api: Api, device: torch.device) -> None:
    """Contract: dropping a stream's object does not cancel what was given to it: behind a sleep the work is still done,
    a hundred times in a row."""
    values = torch.full((100,), -1, dtype=torch.int64, device=device)
    calibrate(device)
    api.synchronize(device)

    for number in range(100):
        stream = api.stream(device)
        sleep_on(stream, 1)
        with api.entered(stream):
            values[number].fill_(number)
        del stream
    api.synchronize(device)

    assert values.tolist() == list(range(100))


def test_event_recorded_ten_thousand_times(api: Api, device: torch.device) -> None:
    """Contract: an event may be recorded again and again: it stands for the last record, so that after each wait for it
    the work given before that record is done. Every thousandth is looked at: behind a sleep it is pending once at
    least, and what was counted by then is in pinned memory when it is waited for."""
    stream, event = api.stream(device), api.event(device)
    counter = torch.zeros(1, dtype=torch.int64, device=device)
    seen = torch.zeros(1, dtype=torch.int64).pin_memory()
    calibrate(device)
    api.synchronize(device)
    pending = []

    with api.entered(stream):
        for number in range(1, RECORDS + 1):
            counter.add_(1)
            if number % 1000 == 0:
                sleep_on(stream, 20)
                seen.copy_(counter, non_blocking=True)
            event.record(stream)
            if number % 1000 == 0:
                pending.append(not event.query())
                event.synchronize()
                assert event.query()
                assert seen.item() == number
    api.synchronize(device)

    assert any(pending), NOT_SHOWN
    assert counter.item() == RECORDS


def test_event_query_of_ten_thousand_events_at_once(api: Api, device: torch.device) -> None:
    """Contract: each of ten thousand events keeps its own place in its stream: with one of them behind a sleep in the
    middle, those recorded before it are done while those after it are not, which must once be seen; all are done when
    the stream is."""
    stream = api.stream(device)
    calibrate(device)

    def divided() -> bool:
        api.synchronize(device)
        events = [api.event(device) for _ in range(RECORDS)]
        for event in events[: RECORDS // 2]:
            event.record(stream)
        events[RECORDS // 2 - 1].synchronize()
        sleep_on(stream, 500)
        for event in events[RECORDS // 2 :]:
            event.record(stream)
        before = all(event.query() for event in events[: RECORDS // 2])
        after = not any(event.query() for event in events[RECORDS // 2 :])
        stream.synchronize()
        assert all(event.query() for event in events)
        return before and after

    assert ever(divided)


def test_wait_event_ring_between_two_streams(api: Api, device: torch.device) -> None:
    """Contract: two streams that hand a tensor to and fro 2,500 times by four events, used in turns, apply every
    step in order."""
    streams, events = [api.stream(device) for _ in range(2)], [api.event(device) for _ in range(4)]
    x = torch.zeros(1, dtype=torch.int64, device=device)
    api.synchronize(device)

    expected = 0
    for step in range(RECORDS // 4):
        stream = streams[step % 2]
        if step:
            stream.wait_event(events[(step - 1) % 4])
        with api.entered(stream):
            x.mul_(5).add_(step).remainder_(999_983)
        events[step % 4].record(stream)
        expected = (expected * 5 + step) % 999_983
    api.synchronize(device)

    assert x.item() == expected
