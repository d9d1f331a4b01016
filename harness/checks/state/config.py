"""The configuration modules of torch: `torch._dynamo.config`, `torch._inductor.config` and every other of their make.

They are found among the modules that are imported already. Read is what is set, and differs from the default; so a
module that the case was the first to import is compared with its own defaults.
"""

from __future__ import annotations

import contextvars
import copy
import sys
import types
from collections.abc import Iterator
from typing import Any

from harness.checks.state.section import ABSENT, Change, Flat, Scene, Values, alike, same

_MACHINERY = "torch.utils._config_module"
#: Types of values that nobody can change in place.
_FIXED = (bool, int, float, str, bytes, type(None), types.FunctionType, type)


class Configurations(Flat):
    """What is set in torch's configuration modules, by name, as far as it differs from the defaults."""

    def __init__(self) -> None:
        self._seen = 0
        self._modules: dict[str, types.ModuleType] = {}
        #: Entries by the variable that holds what was set; without those of releases that hold it in the entry.
        self._by_variable: dict[contextvars.ContextVar[Any], tuple[str, Any]] = {}
        self._plain: list[tuple[str, Any]] = []
        self._unset: object = ABSENT
        self._last: dict[str, object] = {}

    def read(self) -> Values:
        if len(sys.modules) != self._seen:
            self._seen = len(sys.modules)
            self._find_modules()
        now = {name: value for name, entry, value in self._overrides() if not same(value, _default(entry, self._unset))}
        if not alike(self._last, now):
            # Copied, since lists and dictionaries are changed in place.
            self._last = {name: value if isinstance(value, _FIXED) else _copied(value) for name, value in now.items()}
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
                    continue  # another name for an entry that is read where it stands
                held = getattr(entry, "user_override", ABSENT)
                if isinstance(held, contextvars.ContextVar):
                    self._by_variable[held] = (f"{name}.{key}", entry)
                else:
                    self._plain.append((f"{name}.{key}", entry))

    def _overrides(self) -> Iterator[tuple[str, Any, object]]:
        """What is set. Only the variables that have a value are gone through: the entries are a thousand."""
        if self._by_variable:
            for variable, value in contextvars.copy_context().items():
                if variable in self._by_variable and value is not self._unset:
                    yield *self._by_variable[variable], value
        for name, entry in self._plain:
            value = getattr(entry, "user_override", self._unset)
            if value is not self._unset:
                yield name, entry, value

    def changes(self, before: Values, after: Values, scene: Scene) -> list[Change]:  # noqa: ARG002
        if alike(before, after):
            return []
        found = []
        for name in {**before, **after}:
            old, new = self.value(before, name), self.value(after, name)
            if not same(old, new):
                found.append(Change(name, old, new))
        return found

    def value(self, values: Values, name: str) -> object:
        """The default of an entry that is not set."""
        if name in values:
            return values[name]
        entries = dict(self._by_variable.values()) | dict(self._plain)
        return _default(entries[name], self._unset)

    def put_back(self, change: Change) -> None:
        """Through the module, which keeps an account of what was changed."""
        for name, module in self._modules.items():
            if change.name.startswith(f"{name}."):
                target: Any = module
                *path, last = change.name.removeprefix(f"{name}.").split(".")
                for step in path:
                    target = getattr(target, step)
                setattr(target, last, _copied(change.old))


def _default(entry: Any, unset: object) -> object:
    """What the entry is worth when nothing is set: the environment may have a say."""
    for name in ("env_value_force", "env_value_default"):
        value: object = getattr(entry, name, unset)
        if value is not unset:
            return value
    return getattr(entry, "default", ABSENT)


def _copied(value: object) -> object:
    try:
        return copy.deepcopy(value)
    except (TypeError, RuntimeError):  # what cannot be copied cannot be compared with its past either
        return value
