"""CUDA streams: the default one, those a user makes, and order between them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from .busy import NOT_SHOWN, Relay, calibrate, ever, sleep_on

pytestmark = [pytest.mark.requires(device="cuda"), pytest.mark.covers("test_cuda::TestCuda::test_streams")]


def test_the_default_stream_has_the_null_handle(device: torch.device) -> None:
    """Contract: a device's default stream is CUDA's own, handle 0, and the same one each time it is asked for."""
    default = torch.cuda.default_stream(device)

    assert default.cuda_stream == 0
    assert default == torch.cuda.default_stream(device)
    assert hash(default) == hash(torch.cuda.default_stream(device))


def test_a_new_stream_is_not_the_default_one(device: torch.device) -> None:
    """Contract: a stream that a user makes differs from the default one, in handle and in equality, and from another
    made beside it; it is on the device asked for."""
    default, first, second = torch.cuda.default_stream(device), torch.cuda.Stream(device), torch.cuda.Stream(device)

    assert first != default
    assert first != second
    assert 0 not in (first.cuda_stream, second.cuda_stream)
    assert first.device == device


def test_making_a_stream_does_not_select_it(device: torch.device) -> None:
    """Contract: the current stream changes only when one is selected."""
    before = torch.cuda.current_stream(device)

    made = torch.cuda.Stream(device)

    assert torch.cuda.current_stream(device) == before
    assert made != before


@pytest.mark.parametrize("enter", [torch.cuda.stream, lambda stream: stream], ids=["function", "stream_itself"])
def test_a_stream_is_current_within_its_block_alone(device: torch.device, enter: Callable[..., object]) -> None:
    """Contract: a `with` block makes its stream current and restores the one before, nested and by an exception too."""
    before = torch.cuda.current_stream(device)
    outer, inner = torch.cuda.Stream(device), torch.cuda.Stream(device)

    def block() -> None:
        with enter(outer):
            assert torch.cuda.current_stream(device) == outer
            with enter(inner):
                assert torch.cuda.current_stream(device) == inner
            assert torch.cuda.current_stream(device) == outer
            raise LookupError

    with pytest.raises(LookupError):
        block()

    assert torch.cuda.current_stream(device) == before


def test_no_stream_selects_nothing(device: torch.device) -> None:
    """Contract: `torch.cuda.stream(None)` leaves the current stream as it is."""
    with torch.cuda.stream(torch.cuda.Stream(device)):
        chosen = torch.cuda.current_stream(device)
        with torch.cuda.stream(None):
            assert torch.cuda.current_stream(device) == chosen


def test_query_tells_whether_work_is_left(device: torch.device) -> None:
    """Contract: an idle stream has nothing left, one with a sleeping kernel has, and after `synchronize` it has not.

    The sleep outlasts the query by far; being seen at work once in some trials is enough, being idle after
    `synchronize` is asked of each.
    """
    stream = torch.cuda.Stream(device)
    calibrate(device)
    torch.cuda.synchronize(device)
    assert stream.query()

    def seen_at_work() -> bool:
        sleep_on(stream)
        at_work = not stream.query()
        stream.synchronize()
        assert stream.query()
        return at_work

    assert ever(seen_at_work)


def test_work_on_one_stream_does_not_make_another_busy(device: torch.device) -> None:
    """Contract: streams are independent: while one sleeps another is idle, and takes and finishes work.

    Seen by the sleeping stream being still at work after the other was synchronised.
    """
    sleeping, other = torch.cuda.Stream(device), torch.cuda.Stream(device)
    x = torch.zeros(16, device=device)
    calibrate(device)
    torch.cuda.synchronize(device)

    def overtaken() -> bool:
        sleep_on(sleeping)
        idle = other.query()
        with torch.cuda.stream(other):
            x.add_(1)
        other.synchronize()
        still_asleep = not sleeping.query()
        torch.cuda.synchronize(device)
        return idle and still_asleep

    assert ever(overtaken)


def test_a_stream_runs_its_work_in_the_order_given(device: torch.device) -> None:
    """Contract: a stream is first in, first out: writes behind a sleep land in order, the last one stays."""
    stream = torch.cuda.Stream(device)
    x = torch.full((1 << 18,), -1, device=device)
    torch.cuda.synchronize(device)

    sleep_on(stream)
    with torch.cuda.stream(stream):
        for value in range(20):
            x.fill_(value)
    stream.synchronize()

    assert (x == 19).all()


def test_a_copy_and_the_operator_after_it_are_in_order(device: torch.device) -> None:
    """Contract: an operator on the stream that got a non-blocking copy from pinned memory reads the copied values."""
    values = torch.arange(1 << 18, dtype=torch.int32).pin_memory()
    stream = torch.cuda.default_stream(device)
    calibrate(device)

    with torch.cuda.stream(stream):
        sleep_on(stream)
        result = values.to(device, non_blocking=True) + 1
    stream.synchronize()

    assert stream.query()
    assert torch.equal(result.cpu(), values + 1)


@pytest.mark.covers("test_cuda::TestCuda::test_stream_event_repr")
def test_repr_names_the_class_and_the_handle(device: torch.device) -> None:
    """Contract: the text of a stream names its class, device and handle, that of the default stream too."""
    for stream in (torch.cuda.Stream(device), torch.cuda.default_stream(device)):
        text = repr(stream)
        assert "torch.cuda.Stream" in text
        assert str(device) in text
        assert f"{stream.cuda_stream:#x}" in text


LINKS: dict[str, Callable[[torch.Stream, torch.Stream], object]] = {
    "wait_stream": lambda writer, reader: reader.wait_stream(writer),
    "wait_event": lambda writer, reader: reader.wait_event(writer.record_event()),
    "event_wait": lambda writer, reader: writer.record_event().wait(reader),
    "stream_synchronize": lambda writer, _: writer.synchronize(),
    "event_synchronize": lambda writer, _: writer.record_event().synchronize(),
    "device_synchronize": lambda writer, _: torch.cuda.synchronize(writer.device),
    "accelerator_synchronize": lambda writer, _: torch.accelerator.synchronize(writer.device),
}


@pytest.mark.parametrize("link", LINKS.values(), ids=LINKS.keys())
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(torch.cuda.Stream, id="cuda"),
        pytest.param(
            torch.Stream, id="generic", marks=pytest.mark.covers("test_cuda::TestCuda::test_generic_stream_event")
        ),
    ],
)
def test_synchronised_streams_are_in_order(
    device: torch.device,
    make: Callable[[torch.device], torch.Stream],
    link: Callable[[torch.Stream, torch.Stream], object],
) -> None:
    """Contract: work given to a stream after it was made to wait for another runs after that stream's work so far.

    The writer sleeps before it overwrites poison. Without the wait the reader must be seen to read poison; with it,
    never.
    """
    relay = Relay(make(device), make(device))
    assert relay.shows_wrong_order(), NOT_SHOWN

    assert relay.always_in_order(lambda: link(relay.writer, relay.reader))


def test_waiting_for_a_stream_does_not_hold_up_the_host(device: torch.device) -> None:
    """Contract: `wait_stream` returns at once: the stream waited for is still at work, and the one that waits is not
    done either."""
    slow, waiting = torch.cuda.Stream(device), torch.cuda.Stream(device)
    calibrate(device)

    def both_at_work() -> bool:
        torch.cuda.synchronize(device)
        sleep_on(slow)
        waiting.wait_stream(slow)
        return not slow.query() and not waiting.query()

    assert ever(both_at_work)
    waiting.synchronize()
    assert slow.query()
