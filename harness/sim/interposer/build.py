"""Builds and caches the interposer, the library in front of a CUDA runtime, at its first use.

``CMakeLists.txt`` has the build. ``python -m harness.sim.interposer.build`` builds the library by hand.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from harness.sim.native import build as native
from harness.sim.native.build import BuildRecipe
from harness.sim.native.cmake import Progress
from harness.sim.simcuda import toolchain
from harness.sim.simcuda.toolchain import SimcudaToolchains

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
