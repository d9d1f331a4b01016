"""The wire format: messages and descriptors arrive unchanged, and invalid data is rejected."""

from __future__ import annotations

import os
import resource
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.protocol.wire import Channel, ProtocolError, decode_message, encode_message

_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), _values, max_size=5))
def test_a_message_survives(fields: dict[str, object]) -> None:
    message = {**fields, "op": "x"}
    line = encode_message(message)
    assert line.count(b"\n") == 1
    assert decode_message(line[:-1], "peer") == message


def test_a_lone_surrogate_becomes_visible_wherever_it_stands() -> None:
    line = encode_message({"op": "x", "a\udc80": ["\ud800 b", {"c": "\udfff", "smile": "\U0001f600"}]})
    assert decode_message(line, "peer") == {
        "op": "x",
        "a\\udc80": ["\\ud800 b", {"c": "\\udfff", "smile": "\U0001f600"}],
    }


def test_a_value_json_does_not_know_becomes_its_repr() -> None:
    assert decode_message(encode_message({"op": "x", "value": {1, 2}}), "peer")["value"] == "{1, 2}"


@pytest.mark.parametrize("line", [b"", b"garbage", b"[1]", b'{"no": "op"}', b'{"op": 3}', b"\xff\xfe", b"[" * 100_000])
def test_what_is_not_a_message_is_refused_by_name(line: bytes) -> None:
    with pytest.raises(ProtocolError, match="executor e1 sent"):
        decode_message(line, "executor e1")


def _pair() -> tuple[Channel, Channel]:
    left, right = socket.socketpair()
    return Channel(left, "left"), Channel(right, "right")


def test_messages_are_cut_apart_and_joined() -> None:
    ours, theirs = _pair()
    data = encode_message({"op": "a"}) + encode_message({"op": "b", "text": "long" * 1000})
    for start in range(0, len(data), 777):
        theirs.socket.sendall(data[start : start + 777])
    seen: list[str] = []
    while len(seen) < 2:
        ours.receive()
        while (message := ours.pop()) is not None:
            seen.append(message["op"])
    assert seen == ["a", "b"]
    assert ours.pop() is None
    theirs.close()
    ours.receive()
    assert ours.closed
    ours.close()


def test_descriptors_travel_with_a_message() -> None:
    ours, theirs = _pair()
    reading, writing = os.pipe()
    theirs.send({"op": "take"}, [writing])
    os.close(writing)
    ours.receive(max_fds=4)
    assert ours.pop() == {"op": "take"}
    with pytest.raises(ProtocolError, match="sent 1 descriptors, expected 2"):
        ours.take_fds(2)
    (received,) = ours.take_fds(1)
    os.write(received, b"through")
    os.close(received)
    assert os.read(reading, 100) == b"through"
    os.close(reading)
    ours.close()
    theirs.close()


def test_received_descriptors_are_not_inherited_by_programs() -> None:
    ours, theirs = _pair()
    with open(os.devnull) as file:
        theirs.send({"op": "take"}, [file.fileno()])
    ours.receive(max_fds=1)
    (received,) = ours.take_fds(1)
    assert not os.get_inheritable(received)
    os.close(received)
    ours.close()
    theirs.close()


def test_descriptors_that_were_not_taken_are_closed_with_the_channel() -> None:
    ours, theirs = _pair()
    reading, writing = os.pipe()
    theirs.send({"op": "take"}, [writing])
    os.close(writing)
    ours.receive(max_fds=1)
    ours.close()
    assert os.read(reading, 1) == b""
    os.close(reading)
    theirs.close()


def test_descriptors_that_do_not_fit_are_reported() -> None:
    """The message arrives; the received descriptors are closed, since it is unknown which ones they are."""
    ours, theirs = _pair()
    reading, writing = os.pipe()
    theirs.send({"op": "take"}, [writing, writing])
    os.close(writing)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.open(os.devnull, os.O_RDONLY)  # the lowest free number
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
    try:
        ours.receive(max_fds=2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert ours.pop() == {"op": "take"}
    with pytest.raises(OSError, match="Too many open files"):
        ours.take_fds(2)
    assert os.read(reading, 1) == b""
    os.close(reading)
    with pytest.raises(ProtocolError, match="sent 0 descriptors, expected 2"):
        ours.take_fds(2)
    ours.close()
    theirs.close()
