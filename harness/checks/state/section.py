"""A part of the state of a process: read as names and values, compared by name, and restored where that is safe."""

from __future__ import annotations

import enum
import functools
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from harness.core.text import single_line

#: The values of one reading, by name. A reading never changes, so that it may be returned again.
SectionValues = Mapping[str, object]

_TEXT_LIMIT = 200


class _Absent(enum.Enum):
    ABSENT = "absent"


#: The value of a name that does not exist.
ABSENT: Final = _Absent.ABSENT


@dataclass(frozen=True, slots=True)
class StateChange:
    """A name whose value has changed. `ABSENT`: the name did not or does not exist."""

    name: str
    old: object
    new: object


class StateSection:
    """A part of the state that is read in one step. By default the keys of its readings are the names of changes."""

    #: pytest itself saves this state at the start of a phase (set-up, call, tear-down) and restores it at its end: a
    #: value read inside a phase does not last.
    restored_by_pytest = False

    def read(self) -> SectionValues:
        """Return the current values. Return the same object as before if nothing is known to have changed."""
        raise NotImplementedError

    def changes(self, before: SectionValues, after: SectionValues, imported: frozenset[str]) -> list[StateChange]:
        """Return the changes that are not to be ignored. `imported`: the modules that were imported in between."""
        if are_readings_equal(before, after):
            return []
        changes = [StateChange(n, self.value(before, n), self.value(after, n)) for n in {**before, **after}]
        return [c for c in changes if not are_values_equal(c.old, c.new) and not self.ignores(c, before, imported)]

    def ignores(self, change: StateChange, before: SectionValues, imported: frozenset[str]) -> bool:  # noqa: ARG002
        """Return whether a change is expected. `before`: the whole earlier reading."""
        return False

    def restore(self, change: StateChange) -> None:
        """Undo a change where that is safe; otherwise do nothing."""

    def value(self, values: SectionValues, name: str) -> object:
        """Return the value that a reading has for the name of a change; `ABSENT` if it has none."""
        return values.get(name, ABSENT)

    def expecting(self, values: SectionValues, name: str, value: object) -> SectionValues:
        """Return the reading with another value for the name of a change."""
        return with_value(values, name, value)


def with_value(values: SectionValues, name: str, value: object) -> dict[str, object]:
    """Return a copy with another value for one name; `ABSENT` removes the name."""
    others = {other: kept for other, kept in values.items() if other != name}
    return others if value is ABSENT else {**others, name: value}


#: Returns whether to ignore a change, from the old value, the new value, and the modules imported in between.
IgnoreChange = Callable[[object, object, frozenset[str]], bool]


@dataclass(frozen=True, slots=True)
class StateRow:
    """One setting. `restore`, if given, takes the old value.

    `initial`: the value in a process that has not changed the setting, if known. If the case was the first to import
    the library, the setting is compared with it. `derived`: the setting follows from others, and is reported only if no
    other setting has changed.
    """

    name: str
    read: Callable[[], object]
    restore: Callable[[Any], object] | None = None
    initial: object = ABSENT
    ignore: IgnoreChange | None = None
    derived: bool = False


class SettingsSection(StateSection):
    """A fixed list of settings, read one by one."""

    def __init__(self, find: Callable[[], Sequence[StateRow] | None]) -> None:
        """`find` returns the rows, or None while their library is not imported; then it is called again later."""
        self._find = find
        self._rows: dict[str, StateRow] | None = None
        self._names: tuple[str, ...] = ()
        self._readers: tuple[Callable[[], object], ...] = ()
        self._values: list[object] = []
        self._last: dict[str, object] = {}

    def read(self) -> SectionValues:
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
            # One setting cannot be read. Record that as its value, and read the others.
            values = [_attempt(read) for read in self._readers]
        if not are_values_equal(values, self._values):
            self._values = values
            self._last = dict(zip(self._names, values, strict=True))
        return self._last

    def changes(self, before: SectionValues, after: SectionValues, imported: frozenset[str]) -> list[StateChange]:
        if are_readings_equal(before, after):
            return []
        changes = []
        rows = self._rows or {}
        for name, new in after.items():
            row = rows[name]
            old = before.get(name, row.initial)
            # Accept a setting without an old value and without a known initial value, or one that this machine cannot
            # read at all.
            if (
                old is ABSENT
                or (name not in before and isinstance(new, Unreadable))
                or are_values_equal(old, new)
                or (row.ignore is not None and row.ignore(old, new, imported))
            ):
                continue
            changes.append(StateChange(name, old, new))
        return [change for change in changes if not rows[change.name].derived] or changes

    def restore(self, change: StateChange) -> None:
        row = (self._rows or {}).get(change.name)
        if row is not None and row.restore is not None:
            row.restore(change.old)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The value of a setting that cannot be read, with the reason."""

    reason: str


def _attempt(read: Callable[[], object]) -> object:
    try:
        return read()
    except (RuntimeError, AttributeError, TypeError, ValueError) as error:
        return Unreadable(single_line(f"{type(error).__name__}: {error}", _TEXT_LIMIT))


def are_readings_equal(before: SectionValues, after: SectionValues) -> bool:
    """Return whether two readings are equal, as far as one comparison shows."""
    return before is after or are_values_equal(before, after)


def are_values_equal(old: object, new: object) -> bool:
    """Return whether two values are identical or equal. Values that cannot be compared are not."""
    if old is new:
        return True
    try:
        return type(old) is type(new) and bool(old == new)
    except (RuntimeError, TypeError, ValueError):  # raised by arrays and tensors
        return False


def describe_change(change: StateChange) -> str:
    """Return a text for the change: the name, the new value, the old value."""
    return f"did not restore {change.name} ({_comparison(change.old, change.new)})"


def _comparison(old: object, new: object) -> str:
    if isinstance(old, tuple) and isinstance(new, tuple) and not all(isinstance(item, bool) for item in new + old):
        return _difference(old, new)
    shown, was = format_value(new), format_value(old)
    if shown == was:
        return f"now another object with the same description: {shown}"
    return f"now {shown}, was {was}"


def _difference(old: tuple[object, ...], new: tuple[object, ...]) -> str:
    added = _without(new, old)
    removed = _without(old, new)
    if not added and not removed:
        return f"now in another order: {_listed(new)}, was {_listed(old)}"
    parts = [f"{verb} {_listed(items)}" for verb, items in (("added", added), ("removed", removed)) if items]
    was = f"{len(old)}: {_listed(old)}" if old else "0"
    return f"{'; '.join(parts)}; now {len(new)} {'entry' if len(new) == 1 else 'entries'}, was {was}"


def _without(items: tuple[object, ...], others: tuple[object, ...]) -> tuple[object, ...]:
    """Return the items without those that equal an item of `others`, one for one."""
    left = list(others)
    extra = []
    for item in items:
        position = next((index for index, other in enumerate(left) if are_values_equal(other, item)), None)
        if position is None:
            extra.append(item)
        else:
            del left[position]
    return tuple(extra)


def _listed(items: Iterable[object]) -> str:
    shown = [format_value(item) for item in items]
    return ", ".join([*shown[:5], f"and {len(shown) - 5} more"] if len(shown) > 5 else shown)


def format_value(value: object) -> str:
    """Return a value as a report shows it, in one line. Call no code of a case."""
    if value is ABSENT:
        return "absent"
    if isinstance(value, Unreadable):
        return f"unreadable ({value.reason})"
    if isinstance(value, (types.FunctionType, types.BuiltinFunctionType, type)):
        return f"{getattr(value, '__module__', None) or 'builtins'}.{value.__qualname__}"
    if isinstance(value, types.MethodType):
        return f"the method {format_value(value.__func__)}"
    if isinstance(value, types.ModuleType):
        return f"the module {value.__name__!r} of {getattr(value, '__file__', None)!r}"
    if isinstance(value, functools.partial):
        return f"a partial of {format_value(value.func)}"
    if isinstance(value, (tuple, list, set, frozenset)):
        left, right = ("(", ")") if isinstance(value, tuple) else ("[", "]") if isinstance(value, list) else ("{", "}")
        items = sorted(map(format_value, value)) if isinstance(value, (set, frozenset)) else map(format_value, value)
        return single_line(f"{left}{', '.join(items)}{right}", _TEXT_LIMIT)
    if isinstance(value, dict):
        pairs = ", ".join(f"{format_value(name)}: {format_value(item)}" for name, item in value.items())
        return single_line(f"{{{pairs}}}", _TEXT_LIMIT)
    if value is None or isinstance(value, (bool, int, float, str, bytes, enum.Enum)) or _has_short_repr(type(value)):
        return single_line(repr(value), _TEXT_LIMIT) or "''"
    return f"a {type(value).__module__}.{type(value).__qualname__}"


def _has_short_repr(kind: type) -> bool:
    """Return whether the ``repr`` of this type is short and complete, and is not code of a case."""
    name = f"{kind.__module__.partition('.')[0]}.{kind.__name__}"
    return name in _SHORT or (kind.__module__.startswith("torch._C") and hasattr(kind, "__members__"))


_SHORT = frozenset({"torch.dtype", "torch.device", "torch.DispatchKeySet", "torch.DynamoStance", "re.Pattern"})


@dataclass(frozen=True, slots=True)
class FixtureChanges:
    """Changes that a fixture of a wider scope made, and must undo when it is torn down."""

    #: By position of the section and name: an increasing serial number, and the change.
    changes: dict[tuple[int, str], tuple[int, StateChange]] = field(default_factory=dict)
