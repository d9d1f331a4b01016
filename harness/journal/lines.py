"""One line of a journal: its bytes from an event, and the event from its bytes."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from harness.journal.events import KINDS, Collected, Event, Finish, Levels, MustPass

_encoder = msgspec.json.Encoder(enc_hook=repr)
_decode = msgspec.json.Decoder(Event).decode
_as_ascii = json.JSONEncoder(separators=(",", ":")).encode
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
_FIELD = re.compile(r"`\$\.(\w+)")
#: Lists of ids as pytest has collected them, with up to a million entries: they are not read again to check them.
_LONG = (Collected, MustPass)
#: What replaces a required value that a case has made invalid.
_INSTEAD: dict[tuple[type, str], Any] = {(Finish, "duration"): 0.0, (Levels, "values"): {}}


class LineError(Exception):
    """A line is not an event. `kind`: the kind of a line that a newer harness may know; otherwise empty."""

    def __init__(self, reason: str, kind: str = "") -> None:
        super().__init__(reason)
        self.kind = kind


class _Kind(msgspec.Struct):
    event: str


def decode_line(line: bytes) -> Event:
    """Return the event of a line. Lone surrogates in its texts become visible escapes. Raise LineError."""
    try:
        return _decode(_without_surrogates(line))
    except msgspec.ValidationError as error:
        raise LineError(str(error), _unknown_kind(line)) from None
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise LineError(str(error)) from None


def _unknown_kind(line: bytes) -> str:
    try:
        kind = msgspec.json.decode(_without_surrogates(line), type=_Kind).event
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ""
    return "" if kind in KINDS else kind


def encode_line(event: Event) -> bytes:
    """Return the line of an event, in ASCII. Raise ValueError, TypeError or RecursionError if there is none."""
    try:
        line = _encoder.encode(event)
    except UnicodeEncodeError:  # a lone surrogate
        line = b"\xff"
    if not line.isascii():
        line = _as_ascii(msgspec.to_builtins(event, enc_hook=repr)).encode("ascii")
    return line + b"\n"


def readable_line(event: Event) -> bytes:
    """Return the line of an event as readers accept it.

    Readers drop an invalid line with all its contents, for example a verdict. Therefore a value that they refuse,
    since a case has produced it, is left out, and the line names the field. Raise ValueError if a value is refused
    that the harness itself must have produced, and the errors of `encode_line`.
    """
    line = encode_line(event)
    if isinstance(event, _LONG):
        return line
    try:
        decode_line(line)
    except LineError:
        return _repaired(event)
    return line


def _repaired(event: Event) -> bytes:
    plain = _as_ascii(msgspec.to_builtins(event, enc_hook=repr))
    fields: dict[str, Any] = json.loads(plain, parse_constant=lambda _: None)  # JSON has no NaN and no infinity
    refused: set[str] = set()
    while True:
        line = _as_ascii(fields).encode("ascii")
        try:
            decode_line(line)
        except LineError as error:
            found = _FIELD.search(str(error))
            name = found[1] if found is not None else ""
            instead = _INSTEAD.get((type(event), name))
            if name not in fields or name in refused:
                raise ValueError(f"readers would refuse this line: {error}") from None
            refused.add(name)
            fields.pop(name)
            if instead is not None:
                fields[name] = instead
            if isinstance(event, Finish):
                text = f"not recorded, because their values are invalid in a journal: {', '.join(sorted(refused))}"
                kept = () if "notes" in refused else event.notes
                fields["notes"] = [*kept, text]
        else:
            return line + b"\n"


def _without_surrogates(line: bytes) -> bytes:
    """Return the line with lone surrogates as visible escapes. Events only have text that UTF-8 can encode."""
    if b"\\ud" not in line and b"\\uD" not in line:
        return line
    try:
        text = json.dumps(json.loads(line), ensure_ascii=False)
    except (ValueError, RecursionError):
        return line  # the decoder reports the error
    return _LONE_SURROGATE.sub(lambda match: f"\\\\u{ord(match[0]):04x}", text).encode("utf-8")


def text_of(literal: bytes) -> str:
    """Return the text of a quoted JSON string, as `decode_line` does. Raise ValueError if it is not a string."""
    if b"\\" not in literal:
        return literal[1:-1].decode("utf-8")
    return _LONE_SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.loads(literal))
