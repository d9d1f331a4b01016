"""Converts values of the code under test to JSON values. No such value raises an error here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from harness.core.text import truncate_middle

#: Limits: characters of one text, characters of all texts of a message, number of values, depth of nesting.
MOST_TEXT = 1 << 20
MOST_TEXTS = 8 << 20
#: A text up to this length is never cut, because it may be a name.
SHORT = 4096
MOST_VALUES = 100_000
DEEPEST = 50
#: Bits of the largest integers that are kept. By default Python refuses to parse more digits.
_MOST_BITS = 4096
_CUT = "…"


def to_plain_json(value: object) -> Any:
    """Return the value in types of JSON.

    A value that JSON lacks becomes its repr. Values beyond the limits are left out.
    """
    return _Conversion().of(value)


def safe_str(value: object, limit: int = MOST_TEXT) -> str:
    """Return ``str(value)``, or a placeholder for a value whose conversion raises."""
    try:
        return truncate_middle(value if type(value) is str else str.__str__(str(value)), limit)
    except BaseException as error:  # noqa: BLE001 - code of the case
        return _unshown(value, error)


def safe_repr(value: object) -> str:
    """Return ``repr(value)``, or a placeholder for a value whose conversion raises."""
    try:
        return truncate_middle(str.__str__(repr(value)), MOST_TEXT)
    except BaseException as error:  # noqa: BLE001 - code of the case
        return _unshown(value, error)


def _unshown(value: object, error: BaseException) -> str:
    return f"<a {_name(type(value))} that cannot be shown: it raised {_name(type(error))}>"


def _name(kind: type) -> str:
    # Not `kind.__name__`, which a metaclass may have replaced.
    return str.__str__(type.__dict__["__name__"].__get__(kind))


class _Conversion:
    def __init__(self) -> None:
        self._left = MOST_VALUES
        self._room = MOST_TEXTS
        self._holders: set[int] = set()

    def of(self, value: Any) -> Any:
        self._left -= 1
        kind = type(value)  # not isinstance, which calls code of the value
        if value is None or kind is bool:
            return value
        if issubclass(kind, str):
            return self._text(str.__str__(value))
        if issubclass(kind, int):
            whole = int.__index__(value)
            return whole if whole.bit_length() <= _MOST_BITS else f"an integer of {whole.bit_length()} bits"
        if issubclass(kind, float):
            return float.__float__(value)
        if issubclass(kind, list | tuple | dict):
            return self._inside(value)
        return self._text(safe_repr(value))

    def _text(self, text: str) -> str:
        kept = truncate_middle(text, max(SHORT, min(MOST_TEXT, self._room)))
        self._room = max(0, self._room - len(text))
        return kept

    def _inside(self, value: Any) -> Any:
        if id(value) in self._holders or len(self._holders) == DEEPEST:
            return _CUT
        self._holders.add(id(value))
        try:
            if issubclass(type(value), dict):
                return self._items(tuple(dict.items(value)))
            return self._entries((list if issubclass(type(value), list) else tuple).__getitem__(value, slice(None)))
        finally:
            self._holders.remove(id(value))

    def _entries(self, entries: Iterable[object]) -> list[Any]:
        converted = []
        for entry in entries:
            if self._left <= 0:
                converted.append(_CUT)
                break
            converted.append(self.of(entry))
        return converted

    def _items(self, items: Iterable[tuple[object, object]]) -> dict[str, Any]:
        converted = {}
        for key, entry in items:
            if self._left <= 0:
                converted[_CUT] = _CUT
                break
            converted[str.__str__(key) if issubclass(type(key), str) else safe_repr(key)] = self.of(entry)
        return converted
