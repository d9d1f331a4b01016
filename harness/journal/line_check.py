"""Checks whether readers will accept a line of the journal, before it is written.

Readers drop an invalid line with all its contents, for example a verdict. Therefore a value that the models of
`harness.journal.events` refuse is left out of its line, and the line names the field.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pydantic import ValidationError

#: Lists of ids as collected by pytest, with up to a million entries.
_IDS = frozenset({"ids", "selected", "deselected", "unread"})
_MOMENTS = frozenset({"t", "since"})
#: Fields of a `finish` line with contents from a case.
_TEXTS = frozenset({"detail", "keeps", "log", "message", "stderr", "stdout"})
_NUMBERS: Mapping[str, type] = {"phases": float, "struck": int, "values": int}
_MOST_SECONDS, _LAST_MOMENT = 1e9, 2.5e11
#: Replacements for required values of a line.
_INSTEAD: Mapping[tuple[str, str], object] = {("finish", "duration"): 0.0, ("levels", "values"): {}}
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def is_plain_event(event: Mapping[str, Any]) -> bool:
    """Return whether a line has only values that the harness itself produces. Such lines need no validation by a model.

    The check cannot detect a mistake in the harness: a name that the model does not have, or a text instead of a
    number.
    """
    return all(_is_plain(name, value) for name, value in event.items())


def _is_plain(name: str, value: Any) -> bool:
    kind = type(value)
    if name in _TEXTS:
        return kind is str
    if name in _NUMBERS:
        wanted, numbers = _NUMBERS[name], value.values() if kind is dict else ()
        return kind is dict and all(type(key) is str for key in value) and all(map(_fits(wanted), numbers))
    if name == "notes":
        return (kind is list or kind is tuple) and all(type(entry) is str for entry in value)
    if kind is float or name == "duration":
        return kind is float and bool(0.0 <= value <= (_LAST_MOMENT if name in _MOMENTS else _MOST_SECONDS))
    if value is None or kind is str or kind is bool or kind is int:
        return value != "" or name != "case"
    if kind is dict:
        return all(type(key) is str and _is_plain("", entry) for key, entry in value.items())
    return (kind is list or kind is tuple) and (name in _IDS or all(type(entry) is str for entry in value))


def _fits(wanted: type) -> Callable[[Any], bool]:
    if wanted is float:
        return lambda value: type(value) is float and 0.0 <= value <= _MOST_SECONDS
    return lambda value: type(value) is wanted


def repaired_event(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the event, which must be JSON, without the values that readers refuse.

    Raise ValueError if a required value of the line is refused.
    """
    left = dict(event)
    refused: list[str] = []
    while errors := _refused(left):
        fields = {name for name in (_field(where) for where in errors) if name in left}
        if not fields:
            raise ValueError(f"readers would refuse this line because of {_listed(errors)}")
        for name in fields:
            del left[name]
            if (instead := _INSTEAD.get((str(event["event"]), name))) is not None and name not in refused:
                left[name] = instead
            refused.append(name)
    if refused and event["event"] == "finish":
        text = f"not recorded, because their values are invalid in a journal: {', '.join(sorted({*refused}))}"
        left["notes"] = [*left.get("notes", ()), text]
    return left


def _field(where: Sequence[object]) -> str:
    """Return the field name for the place of an error; the first entry of a place is the kind of the line."""
    return str(where[1]) if len(where) > 1 else ""


def _listed(errors: Sequence[Sequence[object]]) -> str:
    return ", ".join(".".join(map(str, where)) for where in errors)


def _refused(event: Mapping[str, Any]) -> list[tuple[object, ...]]:
    """Return the places in an event that a reader refuses. An unknown kind is not refused."""
    from pydantic import ValidationError

    from harness.journal.events import EVENT

    try:
        EVENT.validate_json(without_surrogates(json.dumps(event).encode("ascii")))
    except ValidationError as error:
        return [] if unknown_kind(error) is not None else [detail["loc"] for detail in error.errors(include_url=False)]
    return []


def without_surrogates(line: bytes) -> bytes:
    """Return the line with lone surrogates as visible escapes. The models accept only text that UTF-8 can encode."""
    if b"\\ud" not in line and b"\\uD" not in line:
        return line
    try:
        text = json.dumps(json.loads(line), ensure_ascii=False)
    except (ValueError, RecursionError):
        return line  # the validation that follows reports the error
    return _LONE_SURROGATE.sub(lambda match: f"\\\\u{ord(match[0]):04x}", text).encode("utf-8")


def unknown_kind(error: ValidationError) -> str | None:
    """Return the kind of a line that was refused only because its kind is unknown."""
    first = error.errors(include_url=False)[0]
    return str(first["ctx"]["tag"]) if first["type"] == "union_tag_invalid" else None


def text_of(literal: bytes) -> str:
    """Return the text of a quoted JSON string, as `read_journal` does. Raise ValueError if it is not a string."""
    if b"\\" not in literal:
        return literal[1:-1].decode("utf-8")
    return _LONE_SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.loads(literal))
