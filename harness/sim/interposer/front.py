"""The interposer: its build, and the environment that puts this injector of faults in front of a CUDA runtime."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.backends import cuda, simulation
from harness.backends.backend import Backend
from harness.core.errors import HarnessError
from harness.sim.native import build as native
from harness.sim.native import faults
from harness.sim.native.build import BuildRecipe, Progress
from harness.sim.native.provider import ProvidedDevice
from harness.sim.simcuda import toolchain
from harness.sim.simcuda.toolchain import SimcudaToolchains

#: The variable with the libraries that the dynamic linker loads at the start of a process. Symbols of the first one
#: have priority.
PRELOAD = "LD_PRELOAD"


class InterposerError(HarnessError):
    """The library that injects faults is not in this process."""


def interposer_environment(
    injections: Sequence[str], before: Mapping[str, str], environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return `before` with variables that inject these faults into processes; unchanged without injections.

    `before`: variables that these processes need in addition to `environ`. Raise BuildError.
    """
    wanted = interposer_preload(injections, before, environ)
    return {**wanted, cuda.INJECT: faults.join_injections(injections)} if injections else wanted


def interposer_preload(
    injections: Sequence[str], before: Mapping[str, str], environ: Mapping[str, str] = os.environ
) -> dict[str, str]:
    """Return `before` with the library in front of all other preloaded ones, if there are injections.

    The library does not inject faults yet. It is built now if it is not in the cache. Raise BuildError.
    """
    if not injections:
        return dict(before)
    library = str(build_interposer(environ=environ))
    native.check_preloadable(library, _NOUN)
    others = before.get(PRELOAD, environ.get(PRELOAD, ""))
    return {**before, PRELOAD: f"{library}:{others}" if others else library}


def inject_into_this_process(injections: Sequence[str]) -> None:
    """Inject the faults into this process, in which the interposer was loaded before the environment had the faults.

    Raise InterposerError if it was not loaded.
    """
    library = simulation.loaded_interposer()
    if library is None or library.interposerInject(faults.join_injections(injections).encode()):
        raise InterposerError("the library that injects faults is not in this process, or does not support them")


def add_interposer(
    device: ProvidedDevice | None, backend: Backend, inject: Sequence[str], *, inline: bool
) -> ProvidedDevice | None:
    """Return the device of a run with these faults: `device`, with the interposer in front of it for faults of CUDA.

    `device`: None for GPUs. `inline`: cases run in pytest's own process. Raise BuildError, InterposerError.
    """
    if not inject or backend.faults_variable != cuda.INJECT:
        return device
    if device is None and inline:
        raise InterposerError(
            "--inject needs processes that are started for it: leave out --isolation=none and --pdb, or use "
            "--device=simcuda"
        )
    wanted = interposer_environment(inject, device.variables if device else {})
    if device is None:
        return ProvidedDevice(None, {}, wanted)
    return replace(device, facts={**device.facts, "interposer": wanted[PRELOAD].partition(":")[0]}, variables=wanted)


def check_interposer(environ: Mapping[str, str] = os.environ) -> None:
    """Raise InterposerError if the environment asks for faults in front of CUDA, but the interposer is not loaded."""
    if environ.get(cuda.INJECT) and simulation.loaded_interposer() is None:
        raise InterposerError(
            f"{cuda.INJECT} is {environ[cuda.INJECT]!r}, but the library that injects faults is not in this process: "
            f"{PRELOAD} is {environ.get(PRELOAD)!r}"
        )


# Builds and caches the interposer, the library in front of a CUDA runtime, at its first use.
#
# ``CMakeLists.txt`` has the build. ``python -m harness.sim.interposer.front`` builds the library by hand.

#: Paths of sources are relative to this folder, because the code for injections belongs to the software device, and the
#: headers to the simulated CUDA.
ROOT = Path(__file__).parent.parent
FILE = "libcudafaults.so"

PARTS = ("interposer",)

_SOURCES = ("interposer", "softdevice/csrc/core", "simcuda/csrc/include", "simcuda/csrc/nccl/faults.def")
_NOUN = "the interposer"


def build_interposer(progress: Progress | None = None, *, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the library for the CUDA that torch is built for. Build it if it is not in the cache.

    See `harness.sim.native.build.build_libraries`. Raise BuildError.
    """
    return (
        native.build_libraries(interposer_recipe(toolchain.find_simcuda_toolchains(environ)), progress, environ=environ)
        / FILE
    )


def interposer_recipe(tools: SimcudaToolchains, root: Path = ROOT) -> BuildRecipe:
    """Return the recipe of the library for these toolchains."""
    return BuildRecipe(_NOUN, "interposer", root, _SOURCES, PARTS, (FILE,), tools.runtime)


if __name__ == "__main__":
    sys.exit(native.build_from_command_line(build_interposer))
