"""The configuration modules of torch: `torch._dynamo.config`, `torch._inductor.config` and all others of this type.

`read` finds them among the imported modules. A reading has the values that are set and differ from the default, so a
module that the case was the first to import is compared with its own defaults.
"""

from __future__ import annotations

import contextvars
import copy
import sys
import types
from collections.abc import Iterator
from typing import Any

from harness.checks.state.section import (
    ABSENT,
    FlatSection,
    SectionValues,
    StateChange,
    are_readings_equal,
    are_values_equal,
)

_MACHINERY = "torch.utils._config_module"
#: Types of immutable values.
_IMMUTABLE = (bool, int, float, str, bytes, type(None), types.FunctionType, type)


class TorchConfigModules(FlatSection):
    """By name, the values in torch's configuration modules that differ from the defaults."""

    def __init__(self) -> None:
        self._seen = 0
        self._modules: dict[str, types.ModuleType] = {}
        #: Entries, by the context variable that has their value. In some releases of torch the entry itself has the
        #: value: see `_plain`.
        self._by_variable: dict[contextvars.ContextVar[Any], tuple[str, Any]] = {}
        self._plain: list[tuple[str, Any]] = []
        self._unset: object = ABSENT
        self._last: dict[str, object] = {}

    def read(self) -> SectionValues:
        if len(sys.modules) != self._seen:
            self._seen = len(sys.modules)
            self._find_modules()
        now = {
            name: value
            for name, entry, value in self._overrides()
            if not are_values_equal(value, _default(entry, self._unset))
        }
        if not are_readings_equal(self._last, now):
            # Copied, since lists and dictionaries are changed in place.
            self._last = {
                name: value if isinstance(value, _IMMUTABLE) else _copied(value) for name, value in now.items()
            }
        return self._last

    def _find_modules(self) -> None:
        machinery = sys.modules.get(_MACHINERY)
        kind = getattr(machinery, "ConfigModule", None)
        if kind is None:
            return
        self._unset = getattr(machinery, "_UNSET_SENTINEL", ABSENT)
        for name, module in sys.modules.copy().items():
            if name in self._modules or not name.endswith("config") or not isinstance(module, kind):
                continue
            self._modules[name] = module
            for key, entry in getattr(module, "_config", {}).items():
                if getattr(entry, "alias", None) is not None:
                    continue  # an alias of an entry that is read anyway
                held = getattr(entry, "user_override", ABSENT)
                if isinstance(held, contextvars.ContextVar):
                    self._by_variable[held] = (f"{name}.{key}", entry)
                else:
                    self._plain.append((f"{name}.{key}", entry))

    def _overrides(self) -> Iterator[tuple[str, Any, object]]:
        """Yield the values that are set.

        Walks only the variables that have a value, since there are a thousand entries.
        """
        if self._by_variable:
            for variable, value in contextvars.copy_context().items():
                if variable in self._by_variable and value is not self._unset:
                    yield *self._by_variable[variable], value
        for name, entry in self._plain:
            value = getattr(entry, "user_override", self._unset)
            if value is not self._unset:
                yield name, entry, value

    def changes(self, before: SectionValues, after: SectionValues, imported: frozenset[str]) -> list[StateChange]:  # noqa: ARG002
        if are_readings_equal(before, after):
            return []
        changes = []
        for name in {**before, **after}:
            old, new = self.value(before, name), self.value(after, name)
            if not are_values_equal(old, new):
                changes.append(StateChange(name, old, new))
        return changes

    def value(self, values: SectionValues, name: str) -> object:
        """Return the value as in `FlatSection`; for an entry that is not set, the default."""
        if name in values:
            return values[name]
        entries = dict(self._by_variable.values()) | dict(self._plain)
        return _default(entries[name], self._unset)

    def restore(self, change: StateChange) -> None:
        """Set the value through the module, which records what was changed."""
        for name, module in self._modules.items():
            if change.name.startswith(f"{name}."):
                target: Any = module
                *path, last = change.name.removeprefix(f"{name}.").split(".")
                for step in path:
                    target = getattr(target, step)
                setattr(target, last, _copied(change.old))


def _default(entry: Any, unset: object) -> object:
    """Return the value of an entry that is not set: from the environment, or the default."""
    for name in ("env_value_force", "env_value_default"):
        value: object = getattr(entry, name, unset)
        if value is not unset:
            return value
    return getattr(entry, "default", ABSENT)


def _copied(value: object) -> object:
    try:
        return copy.deepcopy(value)
    except (TypeError, RuntimeError):  # a value that cannot be copied cannot be compared with its old value either
        return value
