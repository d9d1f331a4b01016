"""`torch.Stream`, `torch.Event` and `torch.accelerator`: contracts that apply to every device, including the CPU."""

from __future__ import annotations

import pytest
import torch

CLASSES = pytest.mark.parametrize("make", [torch.Stream, torch.Event], ids=["stream", "event"])


def test_stream_query_is_true_for_a_new_stream(device: torch.device) -> None:
    """A new stream has no work: `query` is True and `synchronize` returns."""
    stream = torch.Stream(device)

    assert stream.query()
    stream.synchronize()
    assert stream.query()


def test_event_query_is_true_before_its_first_record(device: torch.device) -> None:
    """An event that was never recorded is complete, and waits for it do not block."""
    event, stream = torch.Event(device), torch.Stream(device)

    assert event.query()
    event.synchronize()
    event.wait(stream)
    stream.synchronize()
    assert stream.query()
    assert event.query()


@CLASSES
def test_stream_and_event_device_type_is_the_one_asked_for(make: type, device: torch.device) -> None:
    """A stream or event has the requested device type, given by position, keyword, string or object, on any machine."""
    for asked in (device, torch.device("meta")):
        made = [make(asked), make(device=asked), make(str(asked)), make(device=str(asked))]
        assert {one.device.type for one in made} == {asked.type}


def test_stream_equality_and_hash(device: torch.device) -> None:
    """Streams are equal if they are the same stream, whatever object represents it.

    Equal streams have equal hashes.
    """
    stream = torch.Stream(device)
    same = torch.Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)

    assert same is not stream
    assert same == stream
    assert (same != stream) is False
    assert {stream: "found"}[same] == "found"


def test_streams_of_different_device_types_differ(device: torch.device) -> None:
    """Streams with the same id on different device types are not equal."""
    stream = torch.Stream(device)
    elsewhere = torch.Stream(
        stream_id=stream.stream_id,
        device_index=stream.device_index,
        device_type=torch.Stream("meta").device_type,
    )

    assert elsewhere.stream_id == stream.stream_id
    assert elsewhere != stream
    assert (elsewhere == stream) is False


def test_stream_as_a_context_gives_itself(device: torch.device) -> None:
    """`with stream as s` returns the stream, does not suppress exceptions, and can be entered again."""
    stream = torch.Stream(device)

    def block() -> None:
        with stream as entered:
            assert entered is stream
            raise LookupError

    for _ in range(2):
        with pytest.raises(LookupError):
            block()


@pytest.mark.parametrize(
    ("kind", "expected"), [(torch.Stream, "torch.Stream"), (torch.Event, "torch.Event")], ids=["stream", "event"]
)
def test_stream_and_event_repr_name_the_class_and_the_device_type(
    kind: type, expected: str, device: torch.device
) -> None:
    """The repr of a generic stream or event has its class and its device type."""
    text = repr(kind(device))

    assert expected in text
    assert f"device_type={device.type}" in text


@CLASSES
@pytest.mark.parametrize(
    "name", ["", "nonsense", "cpu:", "cpu:-1", "cpu:first", "cuda:-1", "cuda:x", "cuda:0:1", " cuda", "cuda:01"]
)
def test_stream_and_event_refuse_a_malformed_device_by_name(make: type, name: str) -> None:
    """A malformed device string raises an error that quotes it (or calls it empty), on any machine."""
    with pytest.raises(RuntimeError) as refusal:
        make(name)

    assert (name or "empty") in str(refusal.value)
    assert "device" in str(refusal.value).lower()


@CLASSES
@pytest.mark.parametrize("not_a_device", [1.5, object(), ["cpu"]], ids=["float", "object", "list"])
def test_stream_and_event_with_a_device_of_wrong_type_are_a_typeerror(make: type, not_a_device: object) -> None:
    """An argument of the wrong type raises a TypeError that names the argument."""
    with pytest.raises(TypeError, match="device"):
        make(not_a_device)


@CLASSES
def test_stream_and_event_of_an_unknown_option_are_a_typeerror(make: type) -> None:
    """A misspelt option raises a TypeError that names it."""
    with pytest.raises(TypeError, match="enable_timming"):
        make("cpu", enable_timming=True)


def test_elapsed_time_needs_enable_timing(device: torch.device) -> None:
    """`elapsed_time` raises if either event lacks `enable_timing`, the default, and the error names the argument."""
    timed, first, second = torch.Event(device, enable_timing=True), torch.Event(device), torch.Event(device)

    for one, other in ((first, second), (timed, first), (first, timed)):
        with pytest.raises(ValueError, match="enable_timing"):
            one.elapsed_time(other)


def test_elapsed_time_needs_both_events_recorded(device: torch.device) -> None:
    """`elapsed_time` raises for events that were never recorded, with that reason."""
    first, second = (torch.Event(device, enable_timing=True) for _ in range(2))

    with pytest.raises(ValueError, match="recorded"):
        first.elapsed_time(second)


def test_elapsed_time_needs_events_of_one_device_type(device: torch.device) -> None:
    """`elapsed_time` across device types raises and names the mismatch."""
    here, elsewhere = torch.Event(device, enable_timing=True), torch.Event("meta", enable_timing=True)

    for one, other in ((here, elsewhere), (elsewhere, here)):
        with pytest.raises(RuntimeError, match="does not match"):
            one.elapsed_time(other)


def test_current_accelerator_device_count_and_is_available_agree() -> None:
    """`is_available`, `device_count` and `current_accelerator` agree."""
    available = torch.accelerator.is_available()

    assert (torch.accelerator.device_count() > 0) == available
    named = torch.accelerator.current_accelerator(check_available=True)
    assert (named is not None) == available
    assert named is None or (named.index is None and named.type != "cpu")
