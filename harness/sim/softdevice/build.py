"""Builds the library of the software device at its first use, and caches it.

``python -m harness.sim.softdevice.build`` builds it by hand.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from harness.sim.native import build as native
from harness.sim.native import toolchain
from harness.sim.native.build import Library, Progress, Recipe

CSRC = Path(__file__).with_name("csrc")
#: The name of the module in the library; Python calls its function ``PyInit__softdevice``.
MODULE = "_softdevice"

_NOUN = "the software device"
#: Those that take longest to compile come first. `operators` serves the simulated CUDA too, with other headers.
_SOURCES = ("operators/operators.cpp", "operators/pointwise.cpp", "aten/module.cpp", "core")
_TOGETHER = ("operators", "aten")
_INCLUDE = ("aten", "operators")


def build(progress: Progress | None = None, *, environ: Mapping[str, str] = os.environ) -> Path:
    """The library for this interpreter and its torch, built now if it is not in the cache.

    See `harness.sim.native.build.build`. Raises BuildError.
    """
    return native.build(_recipe(environ), progress, environ=environ) / f"{MODULE}.so"


def describe(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Compiler and key of the library that `build` returns, for reports. Raises BuildError."""
    made = _recipe(environ)
    return {"compiler": made.libraries[0].tools.compiler_text, "key": native.plan_for(made).key}


def _recipe(environ: Mapping[str, str]) -> Recipe:
    tools = toolchain.find(environ, _NOUN)
    return Recipe(_NOUN, "softdevice", CSRC, (Library(f"{MODULE}.so", _SOURCES, tools, _TOGETHER, _INCLUDE),))


if __name__ == "__main__":
    sys.exit(native.run_by_hand(build))
