"""A part of a process's state: read as plain names and values, compared name by name, put back where that is safe."""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from harness.text import one_line

#: What was read, by name. Never changed once it has been read, so that a reading may be handed out again.
Values = Mapping[str, object]

_TEXT_LIMIT = 200


class _Absent(enum.Enum):
    ABSENT = "absent"


#: Stands for the value of a name that is not there.
ABSENT: Final = _Absent.ABSENT


@dataclass(frozen=True, slots=True)
class Change:
    """A name whose value is another; `ABSENT` stands for a name that is not there."""

    name: str
    old: object
    new: object


@dataclass(frozen=True, slots=True)
class Scene:
    """What else happened between two readings: the modules that were imported."""

    imported: frozenset[str] = frozenset()


class Section(Protocol):
    """A part of the state that is read at one go.

    `undone_by_pytest` is true where pytest itself saves the state at the start of a phase (set-up, call, tear-down)
    and puts it back at its end: what is read inside a phase says nothing of what lasts.
    """

    undone_by_pytest: bool

    def read(self) -> Values:
        """What is there now; the same object as the last time when it can tell that nothing changed."""

    def changes(self, before: Values, after: Values, scene: Scene) -> list[Change]:
        """What is not as it was, without what is nobody's fault."""

    def put_back(self, change: Change) -> None:
        """Undo a change where that is safe; do nothing where it is not."""

    def value(self, values: Values, name: str) -> object:
        """The value of a change's name in a reading, `ABSENT` when it is not there."""

    def expecting(self, values: Values, name: str, value: object) -> Values:
        """The reading as it would be with another value for a change's name."""


class Flat:
    """The part that is the same for sections whose readings go by the names of changes."""

    undone_by_pytest = False

    def value(self, values: Values, name: str) -> object:
        return values.get(name, ABSENT)

    def expecting(self, values: Values, name: str, value: object) -> Values:
        return with_value(values, name, value)


def with_value(values: Values, name: str, value: object) -> dict[str, object]:
    """A copy with another value for one name; `ABSENT` takes the name away."""
    others = {other: kept for other, kept in values.items() if other != name}
    return others if value is ABSENT else {**others, name: value}


#: Whether a change is nobody's fault, from the old value, the new one and what else happened.
Excuse = Callable[[object, object, Scene], bool]


@dataclass(frozen=True, slots=True)
class Row:
    """One setting. `put_back`, where there is one, takes the old value.

    `fresh` is the value it has in a process that has not touched it, where that is known: what a setting is compared
    with when the library that has it was first imported by the case. An `echo` follows from other settings, and is
    told only when none of these is.
    """

    name: str
    read: Callable[[], object]
    put_back: Callable[[Any], object] | None = None
    fresh: object = ABSENT
    excuse: Excuse | None = None
    echo: bool = False


class Settings(Flat):
    """A fixed list of settings, read one by one."""

    def __init__(self, find: Callable[[], Sequence[Row] | None]) -> None:
        """`find` gives the rows, or None while what they are about is not there; it is then asked again."""
        self._find = find
        self._rows: dict[str, Row] | None = None
        self._names: tuple[str, ...] = ()
        self._readers: tuple[Callable[[], object], ...] = ()
        self._values: list[object] = []
        self._last: dict[str, object] = {}

    def read(self) -> Values:
        if self._rows is None:
            rows = self._find()
            if rows is None:
                return {}
            self._rows = {row.name: row for row in rows}
            self._names = tuple(self._rows)
            self._readers = tuple(row.read for row in self._rows.values())
        try:
            values = [read() for read in self._readers]
        except (RuntimeError, AttributeError, TypeError, ValueError):
            # One setting is in such disorder that it cannot be read, which is a fact about it; the others still can.
            values = [_attempt(read) for read in self._readers]
        if not same(values, self._values):
            self._values = values
            self._last = dict(zip(self._names, values, strict=True))
        return self._last

    def changes(self, before: Values, after: Values, scene: Scene) -> list[Change]:
        if alike(before, after):
            return []
        found = []
        rows = self._rows or {}
        for name, new in after.items():
            row = rows[name]
            old = before.get(name, row.fresh)
            # Not there before, and no known start or not to be read at all on this machine: taken as it was found.
            if (
                old is ABSENT
                or (name not in before and isinstance(new, Unreadable))
                or same(old, new)
                or (row.excuse is not None and row.excuse(old, new, scene))
            ):
                continue
            found.append(Change(name, old, new))
        return [change for change in found if not rows[change.name].echo] or found

    def put_back(self, change: Change) -> None:
        row = (self._rows or {}).get(change.name)
        if row is not None and row.put_back is not None:
            row.put_back(change.old)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a value that cannot be read, with the reason."""

    reason: str


def _attempt(read: Callable[[], object]) -> object:
    try:
        return read()
    except (RuntimeError, AttributeError, TypeError, ValueError) as error:
        return Unreadable(one_line(f"{type(error).__name__}: {error}", _TEXT_LIMIT))


def alike(before: Values, after: Values) -> bool:
    """Whether two readings are the same as far as one comparison can tell."""
    return before is after or same(before, after)


def same(old: object, new: object) -> bool:
    """Whether two values are the same one or equal; values that cannot say so are not."""
    if old is new:
        return True
    try:
        return type(old) is type(new) and bool(old == new)
    except (RuntimeError, TypeError, ValueError):  # what an array or a tensor says to this question
        return False


def describe(change: Change) -> str:
    """The change in words: what, the new value, the old one."""
    old, new = change.old, change.new
    if new is ABSENT:
        return f"removed {change.name} (was {show(old)})"
    if old is ABSENT:
        return f"left {change.name} at {show(new)} (was absent)"
    if isinstance(old, tuple) and isinstance(new, tuple) and not all(isinstance(item, bool) for item in new + old):
        return f"left {change.name} {_difference(old, new)}"
    shown, was = show(new), show(old)
    if shown == was:
        return f"left another {change.name}: {shown} (was another of that description)"
    return f"left {change.name} at {shown} (was {was})"


def _difference(old: tuple[object, ...], new: tuple[object, ...]) -> str:
    added = _without(new, old)
    removed = _without(old, new)
    if not added and not removed:
        return f"in another order: {_listed(new)} (was {_listed(old)})"
    parts = [f"{word} {_listed(items)}" for word, items in (("with", added), ("without", removed)) if items]
    return f"{' and '.join(parts)} ({len(new)} in all, was {len(old)}: {_listed(old)})"


def _without(items: tuple[object, ...], others: tuple[object, ...]) -> tuple[object, ...]:
    """The items that are not matched, one for one, by an item of the others."""
    left = list(others)
    extra = []
    for item in items:
        position = next((index for index, other in enumerate(left) if same(other, item)), None)
        if position is None:
            extra.append(item)
        else:
            del left[position]
    return tuple(extra)


def _listed(items: Iterable[object]) -> str:
    shown = [show(item) for item in items]
    return ", ".join([*shown[:5], f"and {len(shown) - 5} more"] if len(shown) > 5 else shown) or "nothing"


def show(value: object) -> str:
    """A value as a report shows it: one line, without calling code that a case may have brought."""
    if value is ABSENT:
        return "absent"
    if isinstance(value, Unreadable):
        return f"what cannot be read ({value.reason})"
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)):
        return f"{getattr(value, '__module__', None) or 'builtins'}.{value.__qualname__}"
    if isinstance(value, types.MethodType):
        return f"the method {show(value.__func__)}"
    if isinstance(value, types.ModuleType):
        return f"the module {value.__name__!r} of {getattr(value, '__file__', None)!r}"
    if isinstance(value, functools.partial):
        return f"a partial of {show(value.func)}"
    if isinstance(value, (tuple, list, set, frozenset)):
        left, right = ("(", ")") if isinstance(value, tuple) else ("[", "]") if isinstance(value, list) else ("{", "}")
        items = sorted(map(show, value)) if isinstance(value, (set, frozenset)) else map(show, value)
        return one_line(f"{left}{', '.join(items)}{right}", _TEXT_LIMIT)
    if isinstance(value, dict):
        pairs = ", ".join(f"{show(name)}: {show(item)}" for name, item in value.items())
        return one_line(f"{{{pairs}}}", _TEXT_LIMIT)
    if value is None or isinstance(value, (bool, int, float, str, bytes, enum.Enum)) or _has_short_repr(type(value)):
        return one_line(repr(value), _TEXT_LIMIT) or "''"
    return f"a {type(value).__module__}.{type(value).__qualname__}"


def _has_short_repr(kind: type) -> bool:
    """Whether it is one of the types whose ``repr`` is short, says all, and is no code of a case's."""
    name = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    return name in _SHORT or (kind.__module__.startswith("torch._C") and hasattr(kind, "__members__"))


_SHORT = frozenset({"torch.dtype", "torch.device", "torch.DispatchKeySet", "torch.DynamoStance", "re.Pattern"})


@dataclass(frozen=True, slots=True)
class Held:
    """Changes that an owner, a fixture of a wider scope, made on purpose and is to undo when it is torn down."""

    label: str
    #: By position of the section and name: when it was changed, a number that grows, and the change.
    changes: dict[tuple[int, str], tuple[int, Change]] = field(default_factory=dict)
