"""Makes Inductor generate code for simulated devices, from its first import on.

Python calls the finder for each import, and the finder handles two modules. A process that never compiles pays only for
a comparison per import, and Inductor is imported only when the process itself imports it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

SETTINGS = {
    # With this name, Inductor chooses as for the CPU wherever it chooses between Triton and other generators.
    "cuda_backend": "cpp",
    # Both are for generators that identify a group of nodes by its numbers of elements. The generator for the CPU uses
    # sizes.
    "loop_ordering_after_fusion": False,
    "loop_reindexing_after_fusion": False,
    # Inductor starts processes that compile Triton's kernels before there is any. Kernels here are compiled by the
    # process that loads them.
    "compile_threads": 1,
    # It launches Triton's kernels without Triton, from their machine code.
    "use_static_cuda_launcher": False,
}


def apply_settings() -> None:
    """Make the settings the defaults, as far as this release of torch has them.

    A value that is set, instead of a default, holds for one thread, and a backward pass compiles in its own thread.
    """
    import torch._inductor.config as config

    entries: dict[str, Any] = config._config  # type: ignore[attr-defined]
    for name, value in SETTINGS.items():
        if name in entries:
            entries[name].default = value


def _register() -> None:
    from harness.sim.simcuda.compiler import scheduling

    scheduling.register_scheduling()


def _install_driver() -> None:
    from harness.sim.simcuda.triton_kernels import driver

    driver.install()


#: The action after a module has run. In the second module, Inductor looks up the code generators of a device. When that
#: module has run, all base classes of the simulated generator exist.
_AFTERWARDS: dict[str, Callable[[], None]] = {
    "torch._inductor.config": apply_settings,
    "torch._inductor.graph": _register,
    "triton": _install_driver,
}


class _Loader(importlib.abc.Loader):
    """Loads a module like another loader, and then runs an action."""

    def __init__(self, loader: importlib.abc.Loader, afterwards: Callable[[], None]) -> None:
        self._loader = loader
        self._afterwards = afterwards

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._afterwards()


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        afterwards = _AFTERWARDS.get(fullname)
        if afterwards is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.loader is None:
            return None
        spec.loader = _Loader(spec.loader, afterwards)
        return spec


def install_import_hook() -> None:
    """Configure Inductor when it is imported, or now if it already is. The hook stays for the rest of the process."""
    sys.meta_path.insert(0, _Finder())
    for name, afterwards in _AFTERWARDS.items():
        if name in sys.modules:
            afterwards()
