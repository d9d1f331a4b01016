"""Streams of an accelerator: the current one, user-created ones, and order between them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from .apis import Api
from .busy import NOT_SHOWN, Relay, calibrate, ever, sleep_on

pytestmark = [
    pytest.mark.requires(accelerator=True),
    pytest.mark.covers("test_cuda::TestCuda::test_streams", "test_cuda::TestCuda::test_generic_stream_event"),
]


def test_stream_that_is_new_is_on_its_device_and_not_the_current_one(api: Api, device: torch.device) -> None:
    """A new stream is on the requested device, and differs from the current stream and from other new ones."""
    current, first, second = api.current_stream(device), api.stream(device), api.stream(device)

    assert first.device == device
    assert first.device_index == device.index
    assert first != current
    assert first != second
    assert len({current.stream_id, first.stream_id, second.stream_id}) == 3


def test_current_stream_is_not_changed_by_making_a_stream(api: Api, device: torch.device) -> None:
    """Creating a stream does not change the current stream."""
    before = api.current_stream(device)

    made = api.stream(device)

    assert api.current_stream(device) == before
    assert made != before


@pytest.mark.covers("test_cuda::TestCuda::test_stream_context_manager")
def test_current_stream_is_set_within_a_block_only(api: Api, device: torch.device) -> None:
    """A `with` block makes its stream current and restores the previous one, also nested and after an exception."""
    before = api.current_stream(device).stream_id
    outer, inner = api.stream(device), api.stream(device)

    def block() -> None:
        with api.entered(outer):
            assert api.current_stream(device).stream_id == outer.stream_id
            with api.entered(inner):
                assert api.current_stream(device).stream_id == inner.stream_id
            assert api.current_stream(device).stream_id == outer.stream_id
            raise LookupError

    with pytest.raises(LookupError):
        block()

    assert api.current_stream(device).stream_id == before


@pytest.mark.races("the control leaves out the wait, to show that the case would notice")
@pytest.mark.requires(asynchronous=True)
def test_current_stream_is_used_by_an_operator(api: Api, device: torch.device) -> None:
    """An operator called within a stream's block runs on that stream.

    After a sleep is enqueued, the stream is busy and nothing is written yet, while the previously current stream is
    idle.
    """
    stream, before = api.stream(device), api.current_stream(device)
    x = torch.zeros(16, device=device)
    calibrate(device)
    api.synchronize(device)

    def seen() -> bool:
        x.zero_()
        api.synchronize(device)
        sleep_on(stream)
        with api.entered(stream):
            x.add_(1)
            mark = api.current_stream(device).record_event()
        idle, at_work = before.query(), not mark.query()
        unwritten = not bool(x.any())  # read on the previously current stream, which waits for nothing
        api.synchronize(device)
        assert (x == 1).all()
        return idle and at_work and unwritten

    assert ever(seen)


@pytest.mark.requires(asynchronous=True)
def test_stream_query_is_false_while_work_is_pending(api: Api, device: torch.device) -> None:
    """`query` is True for an idle stream, False for a busy one, and True after `synchronize`.

    The sleep is much longer than the query. The busy state must be observed in one trial, and the idle state in all.
    """
    stream = api.stream(device)
    calibrate(device)
    api.synchronize(device)
    assert stream.query()

    def seen_at_work() -> bool:
        sleep_on(stream)
        at_work = not stream.query()
        stream.synchronize()
        assert stream.query()
        return at_work

    assert ever(seen_at_work)


@pytest.mark.requires(asynchronous=True)
def test_stream_query_is_not_changed_by_work_on_another_stream(api: Api, device: torch.device) -> None:
    """Streams are independent: while one sleeps, another completes its work.

    The sleeping stream must still be busy after the other was synchronized and its result was read.
    """
    sleeping, other = api.stream(device), api.stream(device)
    x = torch.zeros(16, device=device)
    calibrate(device)
    api.synchronize(device)

    def overtaken() -> bool:
        x.zero_()
        api.synchronize(device)
        sleep_on(sleeping)
        idle = other.query()
        with api.entered(other):
            x.add_(1)
        other.synchronize()
        assert x.tolist() == [1] * 16
        still_asleep = not sleeping.query()
        api.synchronize(device)
        return idle and still_asleep

    assert ever(overtaken)


def test_stream_runs_its_work_in_the_order_given(api: Api, device: torch.device) -> None:
    """A stream runs its work in order: a chain of non-commuting operations after a sleep gives the correct result."""
    stream = api.stream(device)
    x, y = (torch.full((1 << 12,), -1, device=device, dtype=torch.int64) for _ in range(2))
    api.synchronize(device)

    sleep_on(stream)
    with api.entered(stream):
        for value in range(20):
            x.fill_(value)
        y.zero_()
        for value in range(20):
            y.mul_(3).add_(value)
    stream.synchronize()

    expected = 0
    for value in range(20):
        expected = expected * 3 + value
    assert (x == 19).all()
    assert (y == expected).all()


@pytest.mark.races("the host reads before it waits, to see that the value is not there yet")
@pytest.mark.requires(asynchronous=True)
def test_stream_synchronize_makes_writes_visible_to_the_host(api: Api, device: torch.device) -> None:
    """When `synchronize` of a stream or device returns, the host sees the stream's writes to pinned memory.

    Before it returns, poison must be observed once.
    """
    stream = api.stream(device)
    source = torch.zeros(1 << 12, dtype=torch.int32, device=device)
    host = torch.empty(1 << 12, dtype=torch.int32).pin_memory()
    calibrate(device)
    early = []

    for value, wait in enumerate((stream.synchronize, lambda: api.synchronize(device)) * 3, start=1):
        host.fill_(-1)
        api.synchronize(device)
        sleep_on(stream)
        with api.entered(stream):
            source.fill_(value)
            host.copy_(source, non_blocking=True)
        early.append(bool((host == -1).all()))
        wait()
        assert (host == value).all()

    assert any(early), NOT_SHOWN


@pytest.mark.requires(pinned_memory=True)
def test_non_blocking_copy_and_the_operator_after_it_are_in_order(api: Api, device: torch.device) -> None:
    """An operator on the stream of a non-blocking copy from pinned memory reads the copied values."""
    values = torch.arange(1 << 18, dtype=torch.int32).pin_memory()
    stream = api.current_stream(device)
    calibrate(device)

    sleep_on(stream)
    result = values.to(device, non_blocking=True) + 1
    stream.synchronize()

    assert stream.query()
    assert torch.equal(result.cpu(), values + 1)


LINKS: dict[str, Callable[[torch.Stream, torch.Stream], object]] = {
    "wait_stream": lambda writer, reader: reader.wait_stream(writer),
    "wait_event": lambda writer, reader: reader.wait_event(writer.record_event()),
    "event_wait": lambda writer, reader: writer.record_event().wait(reader),
    "stream_synchronize": lambda writer, _: writer.synchronize(),
    "event_synchronize": lambda writer, _: writer.record_event().synchronize(),
    "accelerator_synchronize": lambda writer, _: torch.accelerator.synchronize(writer.device),
}


@pytest.mark.races("the control leaves out the wait, to show that the case would notice")
@pytest.mark.requires(asynchronous=True)
@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS.keys())
def test_wait_stream_and_wait_event_order_two_streams(
    api: Api, device: torch.device, link: Callable[[torch.Stream, torch.Stream], object]
) -> None:
    """Work enqueued after a wait for another stream runs after that stream's earlier work.

    The writer sleeps before it overwrites poison. Without the wait, the reader must be observed to read poison; with
    it, never.
    """
    relay = Relay(api.stream(device), api.stream(device))
    assert relay.shows_wrong_order(), NOT_SHOWN

    assert relay.always_in_order(lambda: link(relay.writer, relay.reader))


@pytest.mark.requires(asynchronous=True)
def test_wait_stream_does_not_hold_up_the_host(api: Api, device: torch.device) -> None:
    """`wait_stream` returns immediately: both streams are still busy."""
    slow, waiting = api.stream(device), api.stream(device)
    calibrate(device)

    def both_at_work() -> bool:
        api.synchronize(device)
        sleep_on(slow)
        waiting.wait_stream(slow)
        return not slow.query() and not waiting.query()

    assert ever(both_at_work)
    waiting.synchronize()
    assert slow.query()


@pytest.mark.requires(asynchronous=True)
@pytest.mark.parametrize("link", ["wait_event", "event_wait"])
def test_wait_event_and_event_wait_do_not_hold_up_the_host(api: Api, device: torch.device, link: str) -> None:
    """`Stream.wait_event` and `Event.wait` return immediately: both streams are still busy."""
    slow, waiting = api.stream(device), api.stream(device)
    calibrate(device)

    def both_at_work() -> bool:
        api.synchronize(device)
        sleep_on(slow)
        LINKS[link](slow, waiting)
        return not slow.query() and not waiting.query()

    assert ever(both_at_work)
    waiting.synchronize()
    assert slow.query()
