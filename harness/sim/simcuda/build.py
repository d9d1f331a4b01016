"""Builds the libraries of the simulated CUDA at their first use, caches them, and gets them into processes.

``python -m harness.sim.simcuda.build`` builds them by hand. There is one set for each CUDA that torch is built for:
six with the names of CUDA's own libraries, and the operators. ``CMakeLists.txt`` has the build.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.backends import simulation
from harness.core.errors import HarnessError
from harness.devices import software
from harness.sim.native import build as native
from harness.sim.native.build import BuildRecipe, Progress
from harness.sim.native.provider import ProvidedDevice
from harness.sim.simcuda import autoload, toolchain
from harness.sim.simcuda.device_code import toolkit
from harness.sim.simcuda.toolchain import NOUN, SimcudaToolchains

#: Paths of sources are relative to this folder, since some belong to the software device too.
ROOT = Path(__file__).parent.parent

OPERATORS = "libsimcuda_operators.so"

PARTS = ("simcuda/csrc/operators", "simcuda")

_SOURCES = ("simcuda", "softdevice/csrc/core", "softdevice/csrc/operators")


@dataclass(frozen=True, slots=True)
class SimcudaLibraries:
    """The libraries in `folder`. `runtime`: the libraries that replace CUDA's, in loading order.

    `major`: the major version of that CUDA. `toolkit`: the folder of the compiler for device code.
    """

    folder: Path
    runtime: tuple[Path, ...]
    operators: Path
    major: int
    toolkit: Path


def build_simcuda(progress: Progress | None = None, *, environ: Mapping[str, str] = os.environ) -> SimcudaLibraries:
    """Return the libraries for this interpreter and its torch. Build them if they are not in the cache.

    See `harness.sim.native.build.build_libraries`. Raise BuildError, also for a folder from which nothing can be
    preloaded.
    """
    tools = toolchain.find_simcuda_toolchains(environ)
    made = simcuda_recipe(tools)
    native.check_preloadable(str(native.writable_cache_root(environ, NOUN) / made.folder), NOUN)
    folder = native.build_libraries(made, progress, environ=environ)
    detected = software.torch_cuda_version().value
    release = ".".join(map(str, detected)) if isinstance(detected, tuple) else f"{tools.major}.0"
    kit = toolkit.make_toolkit(tools, folder, release, environ)
    runtime = tuple(folder / name for name in runtime_files(tools.major))
    return SimcudaLibraries(folder, runtime, folder / OPERATORS, tools.major, kit)


def describe_build(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return compiler and key of the libraries that `build_simcuda` returns, for reports. Raise BuildError."""
    tools = toolchain.find_simcuda_toolchains(environ)
    return {"compiler": tools.runtime.compiler_text, "key": native.cache_key(simcuda_recipe(tools))}


def simcuda_recipe(tools: SimcudaToolchains, root: Path = ROOT) -> BuildRecipe:
    """Return the recipe of the libraries for these toolchains."""
    files = (*runtime_files(tools.major), OPERATORS)
    return BuildRecipe(NOUN, "simcuda", root, _SOURCES, PARTS, files, tools.operators)


def runtime_files(major: int) -> tuple[str, ...]:
    """Return the names of the libraries that replace those of this major version of CUDA."""
    return (
        f"libcudart.so.{major}",
        "libcuda.so.1",
        "libnvidia-ml.so.1",
        f"libcupti.so.{major}",
        "libnccl.so.2",
        f"libnvrtc.so.{major}",
    )


# Loads the simulated CUDA into a process: makes the environment for it, and checks the result.
#
# torch's wheels find CUDA's libraries by DT_RPATH, which has priority over all search paths, but not over a library of
# the same soname that is already loaded: by LD_PRELOAD at the start of a process, or by hand before torch is imported.

PRELOAD = "LD_PRELOAD"
#: Torch loads no entry point if this is 0.
_TORCH_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
#: Unless this is 1, torch replaces some operators for CUDA by kernels in Triton and CuTe, which only a GPU can run.
_TORCH_WITHOUT_JIT = "TORCH_DISABLE_NATIVE_JIT"
#: The folder in which Triton looks for the driver to link against. It asks ldconfig otherwise, and not the process.
_TRITON_DRIVER = "TRITON_LIBCUDA_PATH"


class SimcudaLoadError(HarnessError):
    """The simulated CUDA is not in this process, or cannot be loaded into it."""


def simcuda_environment(built: SimcudaLibraries, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a process on simulated devices must have at its start, in addition to `environ`."""
    own = ":".join(str(library) for library in built.runtime)
    outer = environ.get(PRELOAD, "")
    if own not in outer:  # otherwise a parent on simulated devices has set it
        outer = f"{own}:{outer}" if outer else own
    return {
        PRELOAD: outer,
        autoload.VARIABLE: str(built.operators),
        _TORCH_AUTOLOAD: "1",
        _TORCH_WITHOUT_JIT: "1",
        _TRITON_DRIVER: str(built.folder),
        **toolkit.toolkit_environment(built.toolkit, built.major, environ),
    }


def check_simcuda_loaded(operators: str) -> None:
    """Raise SimcudaLoadError unless this process has the simulated CUDA, and its operators if torch is imported."""
    if simulation.simulated_runtime() is None:
        raise SimcudaLoadError(f"the simulated CUDA is not in this process: {PRELOAD} is {os.environ.get(PRELOAD)!r}")
    if "torch" in sys.modules and autoload.loaded_operators() != operators:
        raise SimcudaLoadError(
            "the operators of the simulated CUDA are not in this process: torch found no entry point 'simcuda' in the "
            "group 'torch.backends'; install the harness again (`pip install -e .`)"
        )


def load_into_this_process(wanted: Mapping[str, str]) -> None:
    """Load the libraries that `simcuda_environment` would have loaded at the start of this process.

    Set the variables for its children. Raise SimcudaLoadError if torch was imported before, or if a library cannot be
    loaded.
    """
    if simulation.simulated_runtime() is None:
        if "torch" in sys.modules:
            raise SimcudaLoadError(
                "the simulated CUDA cannot be loaded into a process that has imported torch: leave out the plugin or "
                "conftest that imports it, or run with --isolation=batch"
            )
        for library in wanted[PRELOAD].split(":"):
            try:
                ctypes.CDLL(library, ctypes.RTLD_GLOBAL)
            except OSError as error:
                raise SimcudaLoadError(f"the simulated CUDA: {library!r} cannot be loaded ({error})") from None
    os.environ.update(wanted)


def provide() -> ProvidedDevice:
    """Build the libraries unless the cache has them. Raise BuildError."""
    built = build_simcuda()
    facts = {**describe_build(), "library": str(built.folder)}
    return ProvidedDevice(str(built.operators), facts, simcuda_environment(built, os.environ))


def enter(library: str) -> None:
    """Check that this executor has the simulated CUDA, which is loaded at the start of the process.

    Raise SimcudaLoadError.
    """
    check_simcuda_loaded(library)


def enter_inline(library: str) -> None:
    """Check that this process has the simulated CUDA, see `enter`."""
    check_simcuda_loaded(library)


def prepare(variables: Mapping[str, str]) -> None:
    """Load CUDA's libraries into this process, before it imports torch. Raise SimcudaLoadError."""
    load_into_this_process(variables)


if __name__ == "__main__":
    sys.exit(native.build_from_command_line(lambda: build_simcuda().folder))
