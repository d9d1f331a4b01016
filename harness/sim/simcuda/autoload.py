"""Loads the operators of the simulated CUDA into a process that imports torch.

torch calls `load` at the end of its import, since it is an entry point of the group ``torch.backends``. Therefore the
operators are in every process of a run on simulated devices, including those that cases start. In all other processes
the function does nothing, and imports nothing.
"""

from __future__ import annotations

import os
import sys

#: The library of the operators. Set only in processes of a run on simulated devices.
VARIABLE = "SIMCUDA_OPERATORS"

_loaded: str | None = None


def load() -> None:
    """Register the operators for CUDA tensors, if the environment names their library.

    Raise RuntimeError if the process has another CUDA runtime, since the operators would then compute on addresses of a
    GPU, and if this torch does not accept the operators. Raise OSError if the library cannot be loaded.
    """
    global _loaded
    library = os.environ.get(VARIABLE)
    if not library or _loaded is not None:
        return
    import ctypes

    from harness.backends import simulation
    from harness.sim.simcuda.compiler import imports

    if simulation.simulated_runtime() is None:
        raise RuntimeError(
            f"{VARIABLE} is set, but the CUDA runtime of this process is not that of the simulated CUDA: a program "
            "that sets LD_PRELOAD must keep its earlier value"
        )
    if ctypes.CDLL(library).simcuda_install_operators():
        raise RuntimeError(
            f"the operators of the simulated CUDA in {library!r} cannot be registered with this torch: see standard "
            "error"
        )
    imports.install_import_hook()
    _without_fuser()
    _loaded = library


def _without_fuser() -> None:
    """Keep TorchScript from compiling kernels for the GPU, which it does from the second call of a function on."""
    torch = sys.modules.get("torch")  # it is being imported now
    if torch is not None:
        torch._C._jit_override_can_fuse_on_gpu(False)


def loaded_operators() -> str | None:
    """Return the library that `load` has loaded into this process, or None."""
    return _loaded
