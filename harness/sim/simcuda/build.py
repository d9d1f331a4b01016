"""Builds the libraries of the simulated CUDA at their first use, and caches them.

``python -m harness.sim.simcuda.build`` builds them by hand. There is one set for each CUDA that torch is built for:
four with the names of CUDA's own, and the operators. ``CMakeLists.txt`` says how they are built.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.sim.native import build as native
from harness.sim.native.build import Recipe
from harness.sim.native.cmake import Progress
from harness.sim.native.toolchain import BuildError
from harness.sim.simcuda import toolchain
from harness.sim.simcuda.toolchain import NOUN, Toolchains

#: Sources are named from here, since some belong to the software device too.
ROOT = Path(__file__).parent.parent

OPERATORS = "libsimcuda_operators.so"

PARTS = ("simcuda/csrc/operators", "simcuda")

_SOURCES = ("simcuda", "softdevice/csrc/core", "softdevice/csrc/operators")


@dataclass(frozen=True, slots=True)
class Built:
    """The libraries in `folder`. `runtime` are those that replace CUDA's, in the order in which they are loaded."""

    folder: Path
    runtime: tuple[Path, ...]
    operators: Path


def build(progress: Progress | None = None, *, environ: Mapping[str, str] = os.environ) -> Built:
    """The libraries for this interpreter and its torch, built now if they are not in the cache.

    See `harness.sim.native.build.build`. Raises BuildError, also for a folder that cannot be preloaded from.
    """
    tools = toolchain.find(environ)
    made = recipe(tools)
    cache = str(native.cache_folder(environ, made))
    if set(cache) & set(" :"):
        raise BuildError(
            f"cannot load {NOUN} from {cache!r}, since LD_PRELOAD allows neither spaces nor colons: set "
            "$HARNESS_CACHE_DIR to another folder"
        )
    folder = native.build(made, progress, environ=environ)
    return Built(folder, tuple(folder / name for name in runtime_files(tools.major)), folder / OPERATORS)


def describe(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Compiler and key of what `build` returns, for reports. Raises BuildError."""
    tools = toolchain.find(environ)
    return {"compiler": tools.runtime.compiler_text, "key": native.key(recipe(tools))}


def recipe(tools: Toolchains, root: Path = ROOT) -> Recipe:
    """What is built with these toolchains."""
    files = (*runtime_files(tools.major), OPERATORS)
    return Recipe(NOUN, "simcuda", root, _SOURCES, PARTS, files, tools.operators)


def runtime_files(major: int) -> tuple[str, ...]:
    """The names of the libraries that replace those of this major version of CUDA."""
    return f"libcudart.so.{major}", "libcuda.so.1", "libnvidia-ml.so.1", f"libcupti.so.{major}"


if __name__ == "__main__":
    sys.exit(native.run_by_hand(lambda: build().folder))
