"""Modules, and the names in them that must keep their meaning.

Three things are checked: `sys.modules`, the configuration modules of torch, and the functions, classes and modules in
the namespaces of `_MODULES` and `_CLASSES`. Data in a module is not checked, since most of it is caches and counters.
Attributes of other modules are not checked either.
"""

from __future__ import annotations

import contextvars
import copy
import gc
import operator
import sys
import types
import weakref
from collections.abc import Iterator
from itertools import repeat
from typing import Any

from harness import _compat
from harness.checks.state.section import (
    ABSENT,
    SectionValues,
    StateChange,
    StateSection,
    are_readings_equal,
    are_values_equal,
    with_value,
)

#: Tests often replace functions and classes of these modules.
_MODULES = (
    *("builtins", "importlib", "math", "os", "random", "socket", "subprocess", "tempfile", "threading", "time"),
    *("numpy", "torch", "torch.autograd", "torch.autograd.graph", "torch.autograd.profiler", "torch.backends.cudnn"),
    *("torch.cuda", "torch.cuda.amp", "torch.cuda.graphs", "torch.cuda.memory", "torch.cuda.streams", "torch.fft"),
    *("torch.functional", "torch.jit", "torch.linalg", "torch.multiprocessing", "torch.nn", "torch.nn.functional"),
    *("torch.nn.init", "torch.optim", "torch.profiler", "torch.random", "torch.serialization", "torch.special"),
    *("torch.utils.data",),
)
#: Tests often replace methods of these classes of torch.
_CLASSES = (
    *("Tensor", "Generator", "autograd.Function", "autograd.function.Function", "autograd.profiler.profile"),
    *("cuda.Event", "cuda.Stream", "cuda.CUDAGraph", "nn.Module", "nn.Parameter", "optim.Optimizer"),
)
#: Names that follow from a setting with its own row.
_DERIVED = frozenset({"torch.Storage"})
#: Names that Python itself adds to the built-ins.
_OF_THE_INTERPRETER = frozenset({"_", "__warningregistry__"})


class _Copy:
    """A copy of a dictionary, renewed only when the dictionary has changed.

    The dictionary's version, if Python provides one, saves the comparison. In a forked process this also avoids copying
    every memory page that has one of the names.
    """

    def __init__(self, source: dict[str, Any]) -> None:
        self.source = source
        self.version = _compat.dict_version(source)
        self._copy: dict[str, object] = {}
        self._seen: int | None = None

    def read(self) -> SectionValues:
        seen = None if self.version is None else self.version.value
        if seen is None or seen != self._seen:
            fresh = self.source.copy()
            if not _identical(self._copy, fresh):
                self._copy = fresh
            self._seen = seen
        return self._copy


def _identical(first: dict[str, object], second: dict[str, object]) -> bool:
    return len(first) == len(second) and all(map(operator.is_, map(second.get, first, repeat(ABSENT)), first.values()))


class ModulesSection(StateSection):
    """`sys.modules`: an old entry must stay the same; new entries are imports.

    Weak proxies are ignored: such an entry disappears with its module, as with jinja2's loader of compiled templates.
    """

    def __init__(self) -> None:
        self._modules = sys.modules
        self._copy = _Copy(sys.modules)

    def read(self) -> SectionValues:
        return self._copy.read()

    def imported(self, before: SectionValues, after: SectionValues) -> frozenset[str]:
        """Return the modules that were imported between two readings."""
        return frozenset() if before is after else frozenset(after.keys() - before.keys())

    def changes(self, before: SectionValues, after: SectionValues, imported: frozenset[str]) -> list[StateChange]:  # noqa: ARG002
        if before is after:
            return []
        return [
            StateChange(f"sys.modules[{name!r}]", value, after.get(name, ABSENT))
            for name, value in before.items()
            if after.get(name, ABSENT) is not value and type(value) not in weakref.ProxyTypes
        ]

    def restore(self, change: StateChange) -> None:
        if isinstance(change.old, types.ModuleType):
            self._modules[_module_name(change.name)] = change.old

    def value(self, values: SectionValues, name: str) -> object:
        return values.get(_module_name(name), ABSENT)

    def expecting(self, values: SectionValues, name: str, value: object) -> SectionValues:
        return with_value(values, _module_name(name), value)


def _module_name(name: str) -> str:
    """Return the name of the module in the name of a change."""
    return name[len("sys.modules['") : -len("']")]


class NamespacesSection(StateSection):
    """The functions, classes and modules in some modules and classes. A replaced or removed one is a change.

    A new name is a change among the built-ins, and in a class that had inherited the name. Elsewhere it is no change:
    modules get new names as they are used. A reading has a copy of each namespace, by the name of its owner.
    """

    def __init__(self) -> None:
        self._copies: dict[str, _Copy] = {}
        self._owners: dict[str, types.ModuleType | type] = {}
        self._seen: list[int] | None = None
        self._last: tuple[list[SectionValues], dict[str, object]] = ([], {})
        self._watched_modules = 0

    def read(self) -> SectionValues:
        if len(self._owners) < len(_MODULES) + len(_CLASSES) and len(sys.modules) != self._watched_modules:
            self._watched_modules = len(sys.modules)
            self._find_owners()
        seen = [copy.version.value for copy in self._copies.values() if copy.version is not None]
        if seen and seen == self._seen:
            return self._last[1]
        self._seen = seen
        copies = [copy.read() for copy in self._copies.values()]
        if len(copies) != len(self._last[0]) or any(
            now is not was for now, was in zip(copies, self._last[0], strict=True)
        ):
            self._last = (copies, dict(zip(self._copies, copies, strict=True)))
        return self._last[1]

    def _find_owners(self) -> None:
        for name in _MODULES:
            if name not in self._owners and isinstance(module := sys.modules.get(name), types.ModuleType):
                self._owners[name] = module
                self._copies[name] = _Copy(vars(module))
        torch = sys.modules.get("torch")
        if torch is None:
            return
        for path in _CLASSES:
            name = f"torch.{path}"
            owner: object = torch
            for step in path.split("."):
                owner = getattr(owner, step, None)
            if name not in self._owners and isinstance(owner, type):
                # The dictionary behind the read-only view, which has a version.
                behind = [referent for referent in gc.get_referents(owner.__dict__) if isinstance(referent, dict)]
                self._owners[name] = owner
                self._copies[name] = _Copy(behind[0])

    def changes(self, before: SectionValues, after: SectionValues, imported: frozenset[str]) -> list[StateChange]:  # noqa: ARG002
        changes = []
        for owner, names in after.items():
            was = before.get(owner)
            if not isinstance(was, dict) or not isinstance(names, dict) or was is names:
                continue
            for name, old in was.items():
                new = names.get(name, ABSENT)
                if (
                    new is not old
                    and _is_compared(old)
                    and f"{owner}.{name}" not in _DERIVED
                    and not _wrapped_by_library(owner, old, new)
                ):
                    changes.append(StateChange(f"{owner}.{name}", old, new))
            changes += [
                StateChange(f"{owner}.{name}", ABSENT, new)
                for name, new in names.items()
                if name not in was and self._hides(owner, name)
            ]
        return changes

    def _hides(self, owner: str, name: str) -> bool:
        """Return whether a new name hides another one: a built-in of all modules, or an inherited name of a class."""
        if owner == "builtins":
            return name not in _OF_THE_INTERPRETER and not name.startswith("__pybind11")
        kind = self._owners[owner]
        if not isinstance(kind, type):
            return False
        return any(_is_compared(vars(base).get(name)) for base in kind.__mro__[1:] if base is not object)

    def restore(self, change: StateChange) -> None:
        path, _, name = change.name.rpartition(".")
        owner = self._owners[path]
        if change.old is ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, change.old)

    def value(self, values: SectionValues, name: str) -> object:
        owner, _, last = name.rpartition(".")
        names = values.get(owner)
        return names.get(last, ABSENT) if isinstance(names, dict) else ABSENT

    def expecting(self, values: SectionValues, name: str, value: object) -> SectionValues:
        owner, _, last = name.rpartition(".")
        names = values.get(owner)
        return with_value(values, owner, with_value(names if isinstance(names, dict) else {}, last, value))


def _is_compared(value: object) -> bool:
    return isinstance(value, types.ModuleType) or callable(value)


def _wrapped_by_library(owner: str, old: object, new: object) -> bool:
    """Return whether a library wrapped its own function, as torch's compiler does at its first use.

    In this case the code of the wrapper is in a file of the library, and the wrapper refers to the old function.
    """
    package = sys.modules.get(owner.partition(".")[0])
    code = getattr(new, "__code__", None)
    if code is None or package is None or not hasattr(package, "__path__"):
        return False
    cells = [cell.cell_contents for cell in getattr(new, "__closure__", None) or ()]
    inside = [getattr(new, "__wrapped__", None), getattr(new, "_torchdynamo_orig_callable", None), *cells]
    return any(candidate is old for candidate in inside) and code.co_filename.startswith(tuple(package.__path__))


_MACHINERY = "torch.utils._config_module"
#: Types of immutable values.
_IMMUTABLE = (bool, int, float, str, bytes, type(None), types.FunctionType, type)


class TorchConfigModules(StateSection):
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

    def value(self, values: SectionValues, name: str) -> object:
        """Return the value as in `StateSection`; for an entry that is not set, the default."""
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
