"""`torch.Stream`, `torch.Event` and `torch.accelerator` in combination with `torch.cuda`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
import torch

from .busy import NOT_SHOWN, Relay, calibrate, ever, sleep_on

pytestmark = [
    pytest.mark.requires(device="cuda"),
    pytest.mark.covers("test_cuda::TestCuda::test_generic_stream_event"),
]


def as_cuda(stream: torch.Stream) -> torch.cuda.Stream:
    """Return the CUDA stream with the identity of a generic one."""
    return torch.cuda.Stream(
        stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
    )


@pytest.fixture
def stream_restored(device: torch.device) -> Iterator[None]:
    """Restore the current stream after a case that sets it permanently."""
    before = torch.cuda.current_stream(device)
    yield
    torch.cuda.set_stream(before)


def test_cuda_stream_and_event_are_generic_ones(device: torch.device) -> None:
    """The CUDA classes are subclasses of the generic ones."""
    assert isinstance(torch.cuda.Stream(device), torch.Stream)
    assert isinstance(torch.cuda.Event(), torch.Event)


@pytest.mark.covers("test_cuda::TestCuda::test_stream_event_compatibility")
def test_cuda_stream_made_from_a_generic_stream_is_the_same(device: torch.device) -> None:
    """Id, index and type identify a stream: work enqueued through either object makes both busy."""
    generic = torch.Stream(device)
    twin = as_cuda(generic)
    calibrate(device)
    assert twin.stream_id == generic.stream_id

    def seen_through_the_other(given: torch.Stream, asked: torch.Stream) -> bool:
        sleep_on(given)
        at_work = not asked.query()
        asked.synchronize()
        assert given.query()
        return at_work

    assert ever(lambda: seen_through_the_other(twin, generic))
    assert ever(lambda: seen_through_the_other(generic, twin))


def test_generic_stream_is_current_for_cuda_and_accelerator(device: torch.device) -> None:
    """A generic stream as a context is current for `torch.cuda` and `torch.accelerator`."""
    before = torch.cuda.current_stream(device).stream_id
    stream = torch.Stream(device)

    with stream:
        assert torch.cuda.current_stream(device).stream_id == stream.stream_id
        assert torch.accelerator.current_stream(device).stream_id == stream.stream_id

    assert torch.cuda.current_stream(device).stream_id == before


@pytest.mark.usefixtures("stream_restored")
def test_accelerator_set_stream_sets_the_current_stream_of_cuda(device: torch.device) -> None:
    """`torch.accelerator.set_stream` accepts generic and CUDA streams, and `torch.cuda` sees the change."""
    for stream in (torch.Stream(device), torch.cuda.Stream(device)):
        torch.accelerator.set_stream(stream)

        assert torch.cuda.current_stream(device).stream_id == stream.stream_id
        assert torch.accelerator.current_stream(device).stream_id == stream.stream_id


@pytest.mark.covers("test_cuda::TestCuda::test_stream_event_compatibility")
def test_generic_event_on_a_cuda_stream_is_done_after_synchronize(device: torch.device) -> None:
    """A generic event on a sleeping CUDA stream is pending while others are idle, and complete after `synchronize`."""
    stream, idle = torch.cuda.Stream(device), torch.cuda.current_stream(device)
    calibrate(device)

    def seen_pending() -> bool:
        event = torch.Event(device)
        sleep_on(stream)
        event.record(stream)
        idle.synchronize()
        pending = not event.query()
        event.synchronize()
        assert event.query()
        return pending

    assert ever(seen_pending)


@pytest.mark.parametrize("generic_first", [True, False], ids=["generic_to_cuda", "cuda_to_generic"])
def test_elapsed_time_between_generic_and_cuda_events_is_refused(device: torch.device, generic_first: bool) -> None:
    """`elapsed_time` between a generic and a CUDA event raises and names the required class."""
    stream = torch.cuda.current_stream(device)
    events = [torch.Event(device, enable_timing=True), torch.cuda.Event(enable_timing=True)]
    for event in events:
        event.record(stream)
    stream.synchronize()
    first, second = events if generic_first else reversed(events)

    with pytest.raises((TypeError, ValueError, RuntimeError), match=r"torch\.(cuda\.)?Event"):
        first.elapsed_time(second)


# Each pair of classes: a stream that writes, an event, a stream that reads

STREAMS: dict[str, Callable[[torch.device], torch.Stream]] = {"generic": torch.Stream, "cuda": torch.cuda.Stream}
EVENTS: dict[str, Callable[[torch.device], torch.Event]] = {
    "generic": torch.Event,
    "cuda": lambda _device: torch.cuda.Event(),
}
PAIRS = list(product(STREAMS, STREAMS))


def _within(stream: torch.Stream, call: Callable[[], object]) -> None:
    with stream:
        call()


#: The ways to record an event on a stream, and to wait for it, by the call.
RECORDS: dict[str, Callable[[torch.Stream, torch.Event], object]] = {
    "stream.record_event": lambda stream, event: stream.record_event(event),
    "event.record_of_a_stream": lambda stream, event: event.record(stream),
    "event.record": lambda stream, event: _within(stream, event.record),
}
WAITS: dict[str, Callable[[torch.Stream, torch.Event], object]] = {
    "stream.wait_event": lambda stream, event: stream.wait_event(event),
    "event.wait_of_a_stream": lambda stream, event: event.wait(stream),
    "event.wait": lambda stream, event: _within(stream, event.wait),
    "event.synchronize": lambda _stream, event: event.synchronize(),
}
NO_EFFECT = pytest.mark.xfail(
    raises=AssertionError,
    strict=True,
    reason="torch.Stream.wait_event takes a CUDA event for an unrecorded one, and waits for nothing: "
    "https://github.com/vllm-project/vllm-omni/issues/5571",
)


def _refused(writer: str, event: str, record: str) -> bool:
    """Return whether torch refuses this way to record: `torch.Stream.record_event` demands a `torch.Event`."""
    return (writer, event, record) == ("generic", "cuda", "stream.record_event")


def _ways() -> Iterator[Any]:
    for writer, event, reader, record, wait in product(STREAMS, EVENTS, STREAMS, RECORDS, WAITS):
        if _refused(writer, event, record):
            continue
        wrong = (event, reader, wait) == ("cuda", "generic", "stream.wait_event")
        yield pytest.param(writer, event, reader, record, wait, marks=[NO_EFFECT] if wrong else [])


def relay_of(writer: str, reader: str, device: torch.device) -> Relay:
    return Relay(STREAMS[writer](device), STREAMS[reader](device), elements=1 << 12)


@pytest.mark.requires(asynchronous=True)
@pytest.mark.races("the control leaves out the wait, to show that the case would notice")
@pytest.mark.parametrize(("writer", "reader"), PAIRS)
def test_relay_of_generic_and_cuda_streams_reads_too_early_without_a_wait(
    writer: str, reader: str, device: torch.device
) -> None:
    """Control: between streams of each pair of classes, a reader that does not wait reads too early."""
    assert relay_of(writer, reader, device).shows_wrong_order(), NOT_SHOWN


@pytest.mark.requires(asynchronous=True)
@pytest.mark.races("where torch waits for nothing, the case is expected to read a wrong value")
@pytest.mark.parametrize(("writer", "event", "reader", "record", "wait"), list(_ways()))
def test_wait_event_orders_streams_and_events_of_any_classes(
    writer: str, event: str, reader: str, record: str, wait: str, device: torch.device
) -> None:
    """Work after any wait for an event starts when the work before its record is done, whatever the three classes.

    The documentation of `torch.cuda.Stream` and `torch.cuda.Event` accepts both classes in each place.
    """
    relay = relay_of(writer, reader, device)
    made = EVENTS[event](device)

    def link() -> None:
        RECORDS[record](relay.writer, made)
        WAITS[wait](relay.reader, made)

    read_late = [relay.run(value, link) for value in (1, 2)]

    assert all(read_late), f"the reader did not wait in each of two trials: {read_late}"


def test_record_event_of_a_generic_stream_refuses_a_cuda_event(device: torch.device) -> None:
    """`torch.Stream.record_event` names the class that it expects, and records nothing."""
    event = torch.cuda.Event()
    stream = torch.Stream(device)
    calibrate(device)
    sleep_on(stream)

    with pytest.raises(RuntimeError, match=r"expected event to be a torch\.Event"):
        stream.record_event(event)

    assert event.query()  # an event without a record is complete
    stream.synchronize()


#: The ways in which a stream waits for another without an event of the caller's.
JOINS: dict[str, Callable[[Relay], object]] = {
    "wait_stream": lambda relay: relay.reader.wait_stream(relay.writer),
    "record_event_made": lambda relay: relay.reader.wait_event(relay.writer.record_event()),
    "synchronize": lambda relay: relay.writer.synchronize(),
}


def _joins() -> Iterator[Any]:
    for (writer, reader), join in product(PAIRS, JOINS):
        wrong = (writer, reader, join) == ("cuda", "generic", "record_event_made")
        yield pytest.param(writer, reader, join, marks=[NO_EFFECT] if wrong else [])


@pytest.mark.requires(asynchronous=True)
@pytest.mark.races("where torch waits for nothing, the case is expected to read a wrong value")
@pytest.mark.parametrize(("writer", "reader", "join"), list(_joins()))
def test_wait_stream_orders_generic_and_cuda_streams(writer: str, reader: str, join: str, device: torch.device) -> None:
    """`wait_stream`, the event that `record_event` makes, and `synchronize` order streams of each pair of classes."""
    relay = relay_of(writer, reader, device)

    read_late = [relay.run(value, link=lambda: JOINS[join](relay)) for value in (1, 2)]

    assert all(read_late), f"the reader did not wait in each of two trials: {read_late}"


@pytest.mark.usefixtures("stream_restored")
@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("how", ["with", "torch.cuda.stream", "torch.cuda.set_stream", "torch.accelerator.set_stream"])
def test_current_stream_of_either_class_gets_the_work(how: str, kind: str, device: torch.device) -> None:
    """Work goes to the stream that is current, whichever class and function made it current."""
    stream, before = STREAMS[kind](device), torch.cuda.current_stream(device)
    calibrate(device)
    torch.cuda.synchronize(device)

    def work() -> torch.cuda.Event:
        sleep_on(stream)
        torch.zeros(8, device=device).add_(1)
        return torch.cuda.current_stream(device).record_event()

    def seen_busy() -> bool:
        if how == "with":
            with stream:
                mark = work()
        elif how == "torch.cuda.stream":
            with torch.cuda.stream(stream):
                mark = work()
        else:
            (torch.cuda.set_stream if how == "torch.cuda.set_stream" else torch.accelerator.set_stream)(stream)
            mark = work()
        before.synchronize()  # work that went there is done now
        busy = not mark.query() and not stream.query()
        stream.synchronize()
        assert mark.query(), "the work was not on the stream that was synchronized"
        return busy

    assert ever(seen_busy), NOT_SHOWN
