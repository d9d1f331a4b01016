"""Large numbers of streams and events: more than a device has queues, and frequent reuse of the same ones."""

from __future__ import annotations

import pytest
import torch

from .apis import Api
from .busy import NOT_SHOWN, calibrate, ever, sleep_on

pytestmark = [pytest.mark.requires(accelerator=True), pytest.mark.timeout(600)]

STREAMS = 1000
RECORDS = 10_000


def test_thousand_streams_do_their_work(api: Api, device: torch.device) -> None:
    """A thousand streams, far more than a device has queues, each complete their work once.

    After a device synchronize, every stream is idle.
    """
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
    """A chain of a thousand streams, each of which waits for the previous one by an event, applies operations in order.

    The operations do not commute. The first stream sleeps, so all others have to wait, and a stream that ignores its
    wait would read the unchanged tensor.
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


def test_stream_that_is_deleted_completes_its_work(api: Api, device: torch.device) -> None:
    """Deleting a stream object does not cancel its pending work, a hundred times in a row."""
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


@pytest.mark.requires(asynchronous=True)
def test_event_recorded_ten_thousand_times(api: Api, device: torch.device) -> None:
    """An event can be recorded ten thousand times, and each synchronize waits for the latest record.

    Every thousandth record follows a sleep and a copy to pinned memory: the event is pending at least once, and the
    copied count is correct after the synchronize.
    """
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


@pytest.mark.requires(asynchronous=True)
def test_event_query_of_ten_thousand_events_at_once(api: Api, device: torch.device) -> None:
    """Ten thousand events keep their positions in the stream.

    With a sleep in the middle, the events before it are complete while those after it are pending, which must be
    observed once. All are complete after the stream's synchronize.
    """
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
    """Two streams that alternate 2,500 steps on a tensor, with four reused events, apply all steps in order."""
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
