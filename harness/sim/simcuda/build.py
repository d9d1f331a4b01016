"""Builds the libraries of the simulated CUDA at their first use, and caches them.

``python -m harness.sim.simcuda.build`` builds them by hand. There is one set for each CUDA that torch is built for:
five with the names of CUDA's own libraries, and the operators. ``CMakeLists.txt`` has the build.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.sim.native import build as native
from harness.sim.native.build import BuildRecipe
from harness.sim.native.cmake import Progress
from harness.sim.native.toolchain import BuildError
from harness.sim.simcuda import toolchain
from harness.sim.simcuda.toolchain import NOUN, SimcudaToolchains

#: Paths of sources are relative to this folder, since some belong to the software device too.
ROOT = Path(__file__).parent.parent

OPERATORS = "libsimcuda_operators.so"

PARTS = ("simcuda/csrc/operators", "simcuda")

_SOURCES = ("simcuda", "softdevice/csrc/core", "softdevice/csrc/operators")


@dataclass(frozen=True, slots=True)
class SimcudaLibraries:
    """The libraries in `folder`. `runtime`: the libraries that replace CUDA's, in loading order."""

    folder: Path
    runtime: tuple[Path, ...]
    operators: Path


def build_simcuda(progress: Progress | None = None, *, environ: Mapping[str, str] = os.environ) -> SimcudaLibraries:
    """Return the libraries for this interpreter and its torch. Build them if they are not in the cache.

    See `harness.sim.native.build.build_libraries`. Raise BuildError, also for a folder from which nothing can be
    preloaded.
    """
    tools = toolchain.find_simcuda_toolchains(environ)
    made = simcuda_recipe(tools)
    cache = str(native.cache_folder(environ, made))
    if set(cache) & set(" :"):
        raise BuildError(
            f"cannot load {NOUN} from {cache!r}, since LD_PRELOAD allows neither spaces nor colons: set "
            "$HARNESS_CACHE_DIR to another folder"
        )
    folder = native.build_libraries(made, progress, environ=environ)
    return SimcudaLibraries(folder, tuple(folder / name for name in runtime_files(tools.major)), folder / OPERATORS)


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
    return f"libcudart.so.{major}", "libcuda.so.1", "libnvidia-ml.so.1", f"libcupti.so.{major}", "libnccl.so.2"


if __name__ == "__main__":
    sys.exit(native.build_from_command_line(lambda: build_simcuda().folder))
