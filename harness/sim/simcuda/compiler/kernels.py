"""Compiles and keeps the kernels that Inductor generates for simulated devices, and launches them on streams."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from harness.core.atomic import write_atomically
from harness.core.cache import cache_root, code_cache
from harness.sim.native.build import sweep
from harness.sim.native.toolchain import find_torch_toolchain, short_digest
from harness.sim.simcuda.compiler import accesses
from harness.sim.simcuda.compiler.accesses import Accesses

# Shared libraries of kernels, compiled once per user, and cached by source, compiler and build of torch.
#
# Inductor's own cache of compiled C++ ends with the run, but most kernels of a run are also those of the previous run.

_NOUN = "a kernel of the simulated CUDA"
_KEPT = 30 * 86400.0  # seconds since the last use
_MODE = 0o600  # whatever the umask is, the group may not write code

#: The semantics are those of a GPU: no contraction of a product and a sum, zeros with a sign, infinities and NaN.
#: Compilation takes longer than a kernel's work on the small tensors of cases, so there is little optimisation.
_FLAGS = ("-O1", "-g0", "-w", "-fPIC", "-fopenmp", "-fno-trapping-math", "-ffp-contract=off")
_MACROS = ("TORCH_INDUCTOR_CPP_WRAPPER", "STANDALONE_TORCH_HEADER", "C10_USING_CUSTOM_GENERATED_MACROS", "NDEBUG")
_LIBRARIES = ("torch", "torch_cpu", "torch_python", "gomp")

#: Included before each kernel, and precompiled, because parsing it takes two seconds.
_PREFIX = """\
#include <torch/csrc/inductor/cpp_prefix.h>
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <functional>
#include <sstream>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_set>
#include <utility>
"""


class KernelError(RuntimeError):
    """A kernel cannot be compiled."""


def shared_library(source: str) -> Path:
    """Return the shared library of a kernel's source. Compile it if no process of this user has done so before.

    Raises KernelError, with the compiler's output, and BuildError if this machine cannot compile C++ for torch.
    """
    store = _store()
    library = store.folder / f"{short_digest([_PREFIX, source])}.so"
    try:
        os.utime(library)
    except OSError:
        _compile(store, source, library)
    return library


@dataclass(frozen=True, slots=True)
class _Store:
    """The folder of one toolchain's libraries. `command`: the compiler and its options.

    `header`: the file that a kernel includes first. Beside it is a precompiled one, if the compiler can use it.
    """

    folder: Path
    command: tuple[str, ...]
    header: Path
    libraries: tuple[str, ...]


@functools.cache
def _store() -> _Store:
    tools = find_torch_toolchain(os.environ, _NOUN)
    torch, python = tools.folders["TORCH"], tools.folders["PYTHON_INCLUDE"]
    includes = [torch / "include", torch / "include" / "torch" / "csrc" / "api" / "include", python]
    options = [
        *_FLAGS,
        f"-std=c++{tools.variables['TORCH_CXX_STANDARD']}",
        *(f"-D{name}" for name in _MACROS),
        "-DTORCH_INDUCTOR_PRECOMPILE_HEADERS",  # the prefix then has all headers that kernels use
        *tools.flags,
    ]
    folder = _folder(short_digest([tools.key(), options]))
    # A precompiled header refers to its source files by their paths.
    header = folder / f"prefix-{short_digest([_PREFIX, str(torch), str(python)])}.h"
    command = (*tools.compiler, *options, *(f"-I{path}" for path in includes))
    libraries = (f"-L{torch / 'lib'}", *(f"-l{name}" for name in _LIBRARIES))
    if not header.exists():
        write_atomically(header, _PREFIX.encode(), _MODE)
    # Clang compares the times of all headers with those in a precompiled header, so it needs one per installation.
    if "clang" not in tools.compiler_text:
        _precompile(command, header)
    return _Store(folder, command, header, libraries)


def _folder(name: str) -> Path:
    """Return the folder of this name in the user's cache. If the cache cannot be written to, return a temporary one.

    Raise CacheError if others could put kernels into it.
    """
    root = cache_root(os.environ)
    if root is not None:
        folder = root / "simcuda-kernels" / name
        try:
            code_cache(root, "simcuda-kernels", name)
            os.utime(folder)
            sweep(folder.parent, time.time() - _KEPT)
            sweep(folder, time.time() - _KEPT)
        except OSError:
            pass  # the check below finds a folder that is missing or not writable
        if os.access(folder, os.W_OK | os.X_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix="simcuda-kernels-"))


def _precompile(command: tuple[str, ...], header: Path) -> None:
    made = header.with_name(f"{header.name}.gch")
    if made.exists():
        for path in (made, header):
            with contextlib.suppress(OSError):  # the library may belong to another user, who then cleans it up
                os.utime(path)
        return
    from filelock import FileLock

    with FileLock(header.with_suffix(".lock")):
        if not made.exists():
            with tempfile.TemporaryDirectory() as folder:
                work = Path(folder) / made.name
                _call([*command, "-x", "c++-header", "-o", str(work), str(header)])
                write_atomically(made, work.read_bytes(), _MODE)


def _compile(store: _Store, source: str, library: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file, work = Path(folder) / "kernel.cpp", Path(folder) / "kernel.so"
        file.write_text(source, encoding="utf-8")
        _call([*store.command, "-include", str(store.header), "-shared", "-o", str(work), str(file), *store.libraries])
        write_atomically(library, work.read_bytes(), _MODE)


def _call(command: list[str]) -> None:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        raise KernelError(
            f"{_NOUN}: the C++ compiler {command[0]!r} ended with status {done.returncode}:\n{done.stderr}"
        )


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
