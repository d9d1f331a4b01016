"""Arguments of marks as plain JSON values, and back. No value is evaluated, and no pickle is used."""

from __future__ import annotations

import reprlib
from dataclasses import dataclass

_DEEPEST = 12
_LARGEST = 1 << 63
_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = 200


@dataclass(frozen=True, slots=True)
class OpaqueValue:
    """Stands for a value that is not plain. `text` is its repr, shortened."""

    text: str

    def __repr__(self) -> str:
        return f"<not plain: {self.text}>"


def encode_plain(value: object) -> object:
    """Return a JSON value for `value`. An instance of a subclass of a plain type keeps its value, not its class."""
    return _encode(value, 0)


def _encode(value: object, depth: int) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, int) and -_LARGEST <= value < _LARGEST:
        return int.__index__(value)
    if depth < _DEEPEST:
        if type(value) is list:
            return [_encode(entry, depth + 1) for entry in value]
        if type(value) is tuple:
            return {"tuple": [_encode(entry, depth + 1) for entry in value]}
        if type(value) is dict and all(isinstance(key, str) for key in value):
            return {"dict": {str.__str__(key): _encode(entry, depth + 1) for key, entry in value.items()}}
    return {"repr": _SHORT.repr(value)}


def decode_plain(value: object) -> object:
    """Return the value that was passed to `encode_plain`. Each value that is not plain is an `OpaqueValue`."""
    match value:
        case list():
            return [decode_plain(entry) for entry in value]
        case {"tuple": list(entries)}:
            return tuple(decode_plain(entry) for entry in entries)
        case {"dict": dict(entries)}:
            return {key: decode_plain(entry) for key, entry in entries.items()}
        case {"repr": str(text)}:
            return OpaqueValue(text)
        case _:
            return value
