"""Loads the simulated CUDA into a process: makes the environment for it, and checks the result.

torch's wheels find CUDA's libraries by DT_RPATH, which has priority over all search paths, but not over a library of
the same soname that is already loaded: by LD_PRELOAD at the start of a process, or by hand before torch is imported.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping

from harness.backends import simulation
from harness.core.errors import HarnessError
from harness.sim.simcuda import autoload
from harness.sim.simcuda.build import SimcudaLibraries

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
