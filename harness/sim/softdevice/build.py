"""Builds the library of the software device at its first use, and caches it. ``CMakeLists.txt`` has the build.

``python -m harness.sim.softdevice.build`` builds it by hand.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from harness.sim.native import build as native
from harness.sim.native import toolchain
from harness.sim.native.build import BuildRecipe
from harness.sim.native.cmake import Progress
from harness.sim.native.toolchain import Toolchain

#: Paths of sources are relative to this folder, since the simulated CUDA shares some of them.
ROOT = Path(__file__).parent.parent
CSRC = Path(__file__).with_name("csrc")
#: The name of the module in the library; Python calls its function ``PyInit__softdevice``.
MODULE = "_softdevice"
PARTS = ("softdevice",)

_NOUN = "the software device"


def build_softdevice(progress: Progress | None = None, *, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the library for this interpreter and its torch. Build it if it is not in the cache.

    See `harness.sim.native.build.build_libraries`. Raise BuildError.
    """
    made = softdevice_recipe(toolchain.find_torch_toolchain(environ, _NOUN))
    return native.build_libraries(made, progress, environ=environ) / f"{MODULE}.so"


def describe_build(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return compiler and key of the library that `build_softdevice` returns, for reports. Raise BuildError."""
    tools = toolchain.find_torch_toolchain(environ, _NOUN)
    return {"compiler": tools.compiler_text, "key": native.cache_key(softdevice_recipe(tools))}


def softdevice_recipe(tools: Toolchain, root: Path = ROOT) -> BuildRecipe:
    """Return the recipe of the library for this toolchain."""
    return BuildRecipe(_NOUN, "softdevice", root, ("softdevice",), PARTS, (f"{MODULE}.so",), tools)


if __name__ == "__main__":
    sys.exit(native.build_from_command_line(build_softdevice))
