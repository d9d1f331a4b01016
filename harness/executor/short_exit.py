"""The short exit of an executor: the interpreter's finalisation, but only of objects made since the fork.

The finalisation of a process that has imported torch takes 0.15 s. Nearly all of this time is spent on objects from
before the fork, which are the same for every case.
"""

from __future__ import annotations

import types
from gc import collect  # imported by name: a case may have replaced it
from itertools import takewhile
from sys import modules
from typing import Any

from harness import _compat
from harness.executor.session import CollectedSession


def clear_new_modules(collected: CollectedSession) -> None:
    """End threads, run exit callbacks, clear the globals of new modules: CPython's order, before C's exit handlers."""
    _compat.join_threads()
    _compat.run_exit_callbacks(collected.last_finalizer)
    # New modules are last in the dictionary. A scan of the whole dictionary would copy the memory pages of every
    # module's name.
    made = takewhile(lambda name: name not in collected.modules, reversed(modules))
    for name in [*made, *collected.case_modules]:
        if issubclass(type(module := modules.get(name)), types.ModuleType):
            _drop_values(vars(module))
    collect()


def _drop_values(namespace: dict[str, Any]) -> None:
    """Drop the values of a module. Modules, functions and classes stay, because a ``__del__`` may use them."""
    kept = (types.ModuleType, types.FunctionType, types.BuiltinFunctionType, type)
    # Not isinstance, which reads the class of an object and so would load lazily loaded modules.
    left = [key for key, value in namespace.items() if not key.startswith("__") and not issubclass(type(value), kept)]
    for name in left:
        namespace[name] = None
