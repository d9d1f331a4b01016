"""`torch.Stream`, `torch.Event`, `torch.accelerator` where the contract is that of every device, the CPU too."""

from __future__ import annotations

import pytest
import torch

CLASSES = pytest.mark.parametrize("make", [torch.Stream, torch.Event], ids=["stream", "event"])


def test_stream_query_is_true_for_a_new_stream(device: torch.device) -> None:
    """Contract: a stream to which nothing was given has nothing left to do: `query` is true, `synchronize` returns."""
    stream = torch.Stream(device)

    assert stream.query()
    stream.synchronize()
    assert stream.query()


def test_event_query_is_true_before_its_first_record(device: torch.device) -> None:
    """Contract: an event stands for the work before its record; without one it is done and holds up nobody."""
    event, stream = torch.Event(device), torch.Stream(device)

    assert event.query()
    event.synchronize()
    event.wait(stream)
    stream.synchronize()
    assert stream.query()
    assert event.query()


@CLASSES
def test_stream_and_event_device_type_is_the_one_asked_for(make: type, device: torch.device) -> None:
    """Contract: a stream or event is on the type of device asked for, by position, by keyword, as text or as object,
    whatever the accelerator is."""
    for asked in (device, torch.device("meta")):
        made = [make(asked), make(device=asked), make(str(asked)), make(device=str(asked))]
        assert {one.device.type for one in made} == {asked.type}


def test_stream_equals_itself_and_hashes_so(device: torch.device) -> None:
    """Contract: equality is identity of the stream, whatever object names it, and equal streams hash alike."""
    stream = torch.Stream(device)
    same = torch.Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)

    assert same is not stream
    assert same == stream
    assert (same != stream) is False
    assert {stream: "found"}[same] == "found"


def test_streams_of_different_device_types_differ(device: torch.device) -> None:
    """Contract: two streams with the same id on devices of different types are not equal."""
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
    """Contract: `with stream as s` gives the stream, does not swallow exceptions, and can be entered again."""
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
    """Contract: the text of a generic stream or event names its class and the type of its device."""
    text = repr(kind(device))

    assert expected in text
    assert f"device_type={device.type}" in text


@CLASSES
@pytest.mark.parametrize(
    "name", ["", "nonsense", "cpu:", "cpu:-1", "cpu:first", "cuda:-1", "cuda:x", "cuda:0:1", " cuda", "cuda:01"]
)
def test_stream_and_event_refuse_a_malformed_device_by_name(make: type, name: str) -> None:
    """Contract: text that names no device is refused with an error that quotes it (or calls it empty), on any machine:
    before any device is looked for."""
    with pytest.raises(RuntimeError) as refusal:
        make(name)

    assert (name or "empty") in str(refusal.value)
    assert "device" in str(refusal.value).lower()


@CLASSES
@pytest.mark.parametrize("not_a_device", [1.5, object(), ["cpu"]], ids=["float", "object", "list"])
def test_stream_and_event_with_a_device_of_wrong_type_are_a_typeerror(make: type, not_a_device: object) -> None:
    """Contract: an argument of the wrong type is a TypeError that names the argument."""
    with pytest.raises(TypeError, match="device"):
        make(not_a_device)


@CLASSES
def test_stream_and_event_of_an_unknown_option_are_a_typeerror(make: type) -> None:
    """Contract: options are checked: a misspelt one is a TypeError that names it, not ignored."""
    with pytest.raises(TypeError, match="enable_timming"):
        make("cpu", enable_timming=True)


def test_elapsed_time_needs_enable_timing(device: torch.device) -> None:
    """Contract: where one of two events was made without `enable_timing`, the default, there is no time between them:
    the error names it."""
    timed, first, second = torch.Event(device, enable_timing=True), torch.Event(device), torch.Event(device)

    for one, other in ((first, second), (timed, first), (first, timed)):
        with pytest.raises(ValueError, match="enable_timing"):
            one.elapsed_time(other)


def test_elapsed_time_needs_both_events_recorded(device: torch.device) -> None:
    """Contract: there is no time between events that were never recorded; the error says so."""
    first, second = (torch.Event(device, enable_timing=True) for _ in range(2))

    with pytest.raises(ValueError, match="recorded"):
        first.elapsed_time(second)


def test_elapsed_time_needs_events_of_one_device_type(device: torch.device) -> None:
    """Contract: between events of different types of device there is no time; the error names the mismatch."""
    here, elsewhere = torch.Event(device, enable_timing=True), torch.Event("meta", enable_timing=True)

    for one, other in ((here, elsewhere), (elsewhere, here)):
        with pytest.raises(RuntimeError, match="does not match"):
            one.elapsed_time(other)


def test_current_accelerator_device_count_and_is_available_agree() -> None:
    """Contract: available, counted and named say the same: all of them, or none and a count of zero."""
    available = torch.accelerator.is_available()

    assert (torch.accelerator.device_count() > 0) == available
    named = torch.accelerator.current_accelerator(check_available=True)
    assert (named is not None) == available
    assert named is None or (named.index is None and named.type != "cpu")
