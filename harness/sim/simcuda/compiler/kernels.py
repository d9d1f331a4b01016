"""Compiles the kernels that Inductor generates for simulated devices, and launches them in the order of a stream."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from torch._inductor.codecache import CppPythonBindingsCodeCache

from harness.sim.simcuda.compiler import vectors

#: Options for kernels without vector instructions. Releases of torch before 2.13 look into the source for that.
_PLAIN = {
    name: False
    for name in inspect.signature(CppPythonBindingsCodeCache.load_pybinding_async).parameters
    if name in ("needs_vec_isa", "kernel_needs_vec_isa")
}
_LAUNCH = Path(__file__).with_name("launch.h")


class _Cache(CppPythonBindingsCodeCache):
    """Compiled kernels with bindings that queue a call of the kernel; Inductor's own call it.

    Addresses and numbers are taken when the call is queued. Tensors are not kept: as on CUDA, the allocator gives their
    memory away in the order of the stream.
    """

    cache: dict[str, Any] = {}  # noqa: RUF012  (every class of these has its own)
    call_entry_function = "return simcuda::launch(args, kernel);"

    @classmethod
    def _load_library_inner(cls, path: str, key: str) -> ModuleType:
        # Inductor takes its modules out of `sys.modules` when it drops its caches, at any later time. Nothing looks for
        # them there.
        module = super()._load_library_inner(path, key)
        sys.modules.pop(module.__name__, None)
        getattr(cls, "_loaded_module_names", set()).discard(module.__name__)  # since torch 2.13
        return module


def load_kernel(name: str, types: Sequence[str], source: str) -> SimpleNamespace:
    """Return an object whose attribute `name` launches the kernel on arguments of these types and a stream.

    That is how Inductor calls kernels for CUDA that are not Triton's.
    """
    # The bindings are a template in which braces are doubled.
    _Cache.extra_parse_arg = _LAUNCH.read_text(encoding="utf-8").replace("{", "{{").replace("}", "}}")
    with vectors.no_vectors():
        entry = _Cache.load_pybinding(["const char*", *types, "uintptr_t"], source, **_PLAIN)

    def launch(*arguments: Any) -> None:
        *own, stream = arguments
        entry(name, *own, stream.value or 0)

    return SimpleNamespace(**{name: launch})
