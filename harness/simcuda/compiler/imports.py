"""Has Inductor generate code for simulated devices, from its first import on.

The finder is asked for each module that is imported, and answers for one. So a process that never compiles pays for a
comparison, and Inductor is not imported before the process does it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from types import ModuleType

#: The module in which Inductor asks for the code generators of a device. When it has run, all they build on is there.
_MODULE = "torch._inductor.graph"


class _Loader(importlib.abc.Loader):
    """Loads the module as another loader does, and registers the code generator then."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader  # what the module and its users find there is the real one
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        from harness.simcuda.compiler import scheduling

        scheduling.register()


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        sys.meta_path.remove(self)
        spec.loader = _Loader(spec.loader)
        return spec


def watch() -> None:
    """Register the code generator when Inductor is imported."""
    if _MODULE in sys.modules:
        from harness.simcuda.compiler import scheduling

        scheduling.register()
    else:
        sys.meta_path.insert(0, _Finder())
