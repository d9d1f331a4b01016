"""Whether a reader takes a line of the journal, asked before the line is written.

A line that no reader takes loses all that it says, a verdict for example. So a value that the models of
`harness.journal.events` refuse is left out of its line, and the line says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

#: Lists of ids as pytest has collected them, with up to a million entries.
_IDS = frozenset({"ids", "selected", "deselected"})
_MOMENTS = frozenset({"t", "since"})
#: Fields of the end of an attempt that have what came from a case.
_TEXTS = frozenset({"detail", "keeps", "log", "message", "stderr", "stdout"})
_NUMBERS: Mapping[str, type] = {"phases": float, "struck": int, "values": int}
_MOST_SECONDS, _LAST_MOMENT = 1e9, 2.5e11
#: What stands for a value without which a line of a kind is none.
_INSTEAD: Mapping[tuple[str, str], object] = {("finish", "duration"): 0.0, ("levels", "values"): {}}


def is_plain_event(event: Mapping[str, Any]) -> bool:
    """Whether a line has only such values as our own code writes. Then no model is needed, nor the import of it.

    What remains possible is a mistake of ours: a name that the model does not have, or a text where it wants a number.
    """
    return all(_is_plain(name, value) for name, value in event.items())


def _is_plain(name: str, value: Any) -> bool:
    kind = type(value)
    if name in _TEXTS:
        return kind is str
    if name in _NUMBERS:
        wanted, known = _NUMBERS[name], value.values() if kind is dict else ()
        return kind is dict and all(type(key) is str for key in value) and all(map(_fits(wanted), known))
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


def mended_event(event: Mapping[str, Any], validate: Any) -> dict[str, Any]:
    """Returns the event without the values that no reader takes. `validate` raises for an event what the models raise.

    Raises ValueError if a value is refused without which there is no such line.
    """
    left = dict(event)
    refused: list[str] = []
    while errors := validate(left):
        found = {name for name in (_field(where) for where in errors) if name in left}
        if not found:
            raise ValueError(f"no reader takes this line, because of {_listed(errors)}")
        for name in found:
            del left[name]
            if (instead := _INSTEAD.get((str(event["event"]), name))) is not None and name not in refused:
                left[name] = instead
            refused.append(name)
    if refused and event["event"] == "finish":
        text = f"not recorded, because of values that the journal cannot have: {', '.join(sorted({*refused}))}"
        left["notes"] = [*left.get("notes", ()), text]
    return left


def _field(where: Sequence[object]) -> str:
    """The name of the field in the place of an error; the first entry is the kind of the line."""
    return str(where[1]) if len(where) > 1 else ""


def _listed(errors: Sequence[Sequence[object]]) -> str:
    return ", ".join(".".join(map(str, where)) for where in errors)
