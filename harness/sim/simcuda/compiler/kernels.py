"""Loads the kernels that Inductor generates for simulated devices, and launches them in the order of a stream."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from harness.sim.simcuda.compiler import accesses
from harness.sim.simcuda.compiler.accesses import Accesses
from harness.sim.simcuda.compiler.binaries import shared_library

_LAUNCH = Path(__file__).with_name("launch.h")
_Entry = Callable[[tuple[Any, ...]], None]
_loaded: dict[str, _Entry] = {}


def load_kernel(name: str, source: str, uses: Accesses) -> SimpleNamespace:
    """Return an object whose attribute `name` launches the kernel on its arguments and a stream.

    `uses`: what the kernel does with the memory of its arguments.

    Inductor calls CUDA kernels that are not Triton's in this way. Addresses and numbers are read when the call is
    queued. Tensors are not kept alive: as on CUDA, the allocator reuses their memory in the order of the stream.
    """
    entry, checked = _entry(source), accesses.is_checked()

    def launch(*arguments: Any) -> None:
        *own, stream = arguments
        if checked:
            accesses.declare(own, uses)
        entry((name, *own, stream.value or 0))

    return SimpleNamespace(**{name: launch})


def _entry(source: str) -> _Entry:
    """Return a function that queues a call of the kernel, given the kernel's name, its arguments and the stream."""
    if source not in _loaded:
        library = ctypes.PyDLL(str(shared_library(f"{source}\n{_LAUNCH.read_text(encoding='utf-8')}")))
        library.simcuda_bind.argtypes = [ctypes.c_void_p]
        library.simcuda_bind.restype = None
        library.simcuda_bind(torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr)  # type: ignore[attr-defined]
        launch = library.simcuda_launch
        launch.argtypes, launch.restype = [ctypes.py_object], ctypes.py_object
        _loaded[source] = launch
    return _loaded[source]
