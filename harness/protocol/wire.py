"""The wire format between supervisor, zygote and executor: one JSON object per line over a Unix stream socket.

The format is JSON and not pickle, because the sender runs a test that may have written to any of its descriptors.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import socket
import struct
from collections.abc import Sequence
from typing import Any, cast

from harness.core.errors import HarnessError

Message = dict[str, Any]

# Created once: json.dumps and json.loads create or look up a codec at each call, and these run for every case.
_encode = json.JSONEncoder(separators=(",", ":"), default=repr).encode
_decode = json.JSONDecoder().decode

_CHUNK = 1 << 18
_MAX_LINE = 64 << 20
_INT = struct.calcsize("i")
_MAYBE_SURROGATE = re.compile(rb"\\u[dD][89abABcdefCDEF]")


class ProtocolError(HarnessError):
    """The data from a channel was not written by this package."""


class Channel:
    """One end of a connection. `peer` names the other end in errors."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.socket = sock
        self.peer = peer
        self._buffer = bytearray()
        self._searched = 0
        self._fds: list[int] = []
        self._fds_lost = False
        self.closed = False

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send one message, with descriptors if given. Raise OSError if the other end is gone."""
        data = encode_message(message)
        if fds:
            sent = socket.send_fds(self.socket, [data], list(fds))
            data = data[sent:]
        if data:
            self.socket.sendall(data)

    def receive(self, max_fds: int = 0) -> None:
        """Read the available data; blocks until there is some. Set `closed` at the end of the stream."""
        try:
            data = self._receive_fds(max_fds) if max_fds else self.socket.recv(_CHUNK)
        except ConnectionResetError:
            data = b""
        if not data:
            self.closed = True
        self._buffer += data
        if len(self._buffer) > _MAX_LINE:
            self._buffer.clear()
            raise ProtocolError(f"{self.peer} sent a line of over {_MAX_LINE >> 20} MiB")

    def _receive_fds(self, most: int) -> bytes:
        # Not socket.recv_fds: every program that this process starts would inherit its descriptors.
        data, ancillary, flags, _ = self.socket.recvmsg(_CHUNK, socket.CMSG_SPACE(most * _INT), socket.MSG_CMSG_CLOEXEC)
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                self._fds += struct.unpack(f"{len(content) // _INT}i", content[: len(content) // _INT * _INT])
        if flags & socket.MSG_CTRUNC:
            self._fds_lost = True  # their messages are unknown, so none of the descriptors can be used
            self._close_fds()
        return data

    def pop(self) -> Message | None:
        """Return the next complete message, or None."""
        end = self._buffer.find(b"\n", self._searched)
        if end < 0:
            self._searched = len(self._buffer)
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._searched = 0
        return decode_message(line, self.peer)

    def take_fds(self, count: int) -> list[int]:
        """Return the first `count` received descriptors that were not taken yet.

        Raise ProtocolError if there are fewer.

        Raise OSError if the kernel could not pass them, because this process had too many open files.
        """
        if self._fds_lost:
            self._fds_lost = False
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        if len(self._fds) < count:
            raise ProtocolError(f"{self.peer} sent {len(self._fds)} descriptors, expected {count}")
        taken, self._fds = self._fds[:count], self._fds[count:]
        return taken

    def close(self) -> None:
        self.closed = True
        self.socket.close()
        self._close_fds()

    def _close_fds(self) -> None:
        for descriptor in self._fds:
            os.close(descriptor)
        self._fds.clear()


def encode_message(message: Message) -> bytes:
    """Return one line of ASCII. A value that JSON does not support becomes its repr, so that no report is lost."""
    return _encode(message).encode() + b"\n"


def decode_message(line: bytes, peer: str) -> Message:
    """Return the message in one line, with every lone surrogate escaped. Raise ProtocolError."""
    try:
        message = _decode(line.decode())
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"{peer} sent {line[:80]!r}, expected a line of JSON") from error
    if not _is_message(message):
        raise ProtocolError(f"{peer} sent {line[:80]!r}, expected an object with an 'op'")
    return cast("Message", escape_surrogates(message) if _MAYBE_SURROGATE.search(line) else message)


def decode_messages(lines: Sequence[bytes], peer: str) -> list[Message]:
    """Return the messages in several lines, as `decode_message` does for each, but in one step. Raise ProtocolError."""
    data = b",".join(lines)
    if len(lines) > 1 and not _MAYBE_SURROGATE.search(data):
        with contextlib.suppress(ValueError, RecursionError):  # `decode_message` reports which line is wrong
            messages = _decode(f"[{data.decode()}]")
            if len(messages) == len(lines) and all(_is_message(message) for message in messages):
                return cast("list[Message]", messages)
    return [decode_message(line, peer) for line in lines]


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("op"), str)


def escape_surrogates(value: object) -> object:
    """Return the JSON value with lone surrogates as ``\\udc80``: encoding them fails, which ends an xdist run."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, list):
        return [escape_surrogates(entry) for entry in value]
    if isinstance(value, dict):
        return {escape_surrogates(key): escape_surrogates(entry) for key, entry in value.items()}
    return value
