"""Builds the libraries of the simulated CUDA at their first use, and caches them.

``python -m harness.sim.simcuda.build`` builds them by hand. There is one set for each CUDA that torch is built for:
four with the names of CUDA's own, and the operators.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.sim.native import build as native
from harness.sim.native.build import Library, Progress, Recipe
from harness.sim.native.toolchain import BuildError
from harness.sim.simcuda import toolchain
from harness.sim.simcuda.toolchain import NOUN, Toolchains

#: Sources are named from here, since some belong to the software device too.
ROOT = Path(__file__).parent.parent

OPERATORS = "libsimcuda_operators.so"

_CSRC = "simcuda/csrc"
_SHARED = "softdevice/csrc"
_INCLUDE = (f"{_CSRC}/include",)
#: In the version script of a folder (its file ``*.map``), it stands for the major version of CUDA.
_MAJOR = "@MAJOR@"


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
    made = recipe(toolchain.find(environ))
    cache = str(native.cache_folder(environ, made))
    if set(cache) & set(" :"):
        raise BuildError(
            f"cannot load {NOUN} from {cache!r}, since LD_PRELOAD allows neither spaces nor colons: set "
            "$HARNESS_CACHE_DIR to another folder"
        )
    folder = native.build(made, progress, environ=environ)
    runtime = tuple(folder / library.file for library in made.libraries if library.file != OPERATORS)
    return Built(folder, runtime, folder / OPERATORS)


def describe(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Compiler and key of what `build` returns, for reports. Raises BuildError."""
    tools = toolchain.find(environ)
    return {"compiler": tools.runtime.compiler_text, "key": native.plan_for(recipe(tools)).key}


def recipe(tools: Toolchains, root: Path = ROOT) -> Recipe:
    """What is built with these toolchains."""
    runtime = f"libcudart.so.{tools.major}"

    def library(file: str, folder: str, *shared: str, needs: tuple[str, ...] = (runtime,)) -> Library:
        exports = [file.read_text(encoding="utf-8") for file in (root / _CSRC / folder).glob("*.map")]
        return Library(
            file,
            (f"{_CSRC}/{folder}", *shared),
            tools.runtime,
            include=_INCLUDE,
            soname=True,
            exports="".join(exports).replace(_MAJOR, str(tools.major)),
            needs=needs,
        )

    operators = Library(
        OPERATORS,
        (f"{_SHARED}/operators/operators.cpp", f"{_SHARED}/operators/pointwise.cpp"),
        tools.operators,
        (f"{_SHARED}/operators", f"{_CSRC}/operators"),
        # Ours come first: what the shared operators include by name is then that of this device.
        include=(f"{_CSRC}/operators", f"{_SHARED}/operators", *_INCLUDE),
        needs=(runtime,),
    )
    return Recipe(
        NOUN,
        "simcuda",
        root,
        (
            library(runtime, "runtime", f"{_SHARED}/core/queue.cpp", needs=()),
            library("libcuda.so.1", "driver"),
            library("libnvidia-ml.so.1", "nvml", needs=()),
            library(f"libcupti.so.{tools.major}", "cupti"),
            operators,
        ),
    )


if __name__ == "__main__":
    sys.exit(native.run_by_hand(lambda: build().folder))
