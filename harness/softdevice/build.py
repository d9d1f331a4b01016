"""Builds the library of the software device at its first use, and caches it.

``python -m harness.softdevice.build`` builds it by hand.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from harness.native import build as native
from harness.native import toolchain
from harness.native.build import Library, Plan, Progress, Recipe
from harness.native.toolchain import Toolchain

CSRC = Path(__file__).with_name("csrc")
#: The name of the module in the library; Python calls its function ``PyInit__softdevice``.
MODULE = "_softdevice"

_NOUN = "the software device"
#: Those whose files take longest to compile come first. `operators` serves the simulated CUDA too, with other headers.
_FOLDERS = ("operators", "aten", "core")
_INCLUDE = ("aten", "operators")


def recipe(tools: Toolchain, csrc: Path = CSRC) -> Recipe:
    """What is built with this toolchain."""
    return Recipe(_NOUN, "softdevice", csrc, (Library(f"{MODULE}.so", _FOLDERS, tools, _INCLUDE),))


def build(
    progress: Progress | None = None,
    *,
    environ: Mapping[str, str] = os.environ,
    csrc: Path = CSRC,
    tools: Toolchain | None = None,
) -> Path:
    """The library for this interpreter and its torch, built now if it is not in the cache.

    If several processes call this at once, one builds and the others wait. `progress` gets lines about the progress; by
    default they go to stderr. Raises BuildError, with the first error lines of the compiler, if any.
    """
    tools = toolchain.find(environ, _NOUN) if tools is None else tools
    return native.build(recipe(tools, csrc), progress, environ=environ) / f"{MODULE}.so"


def plan_for(tools: Toolchain, csrc: Path) -> Plan:
    """The plan for all sources in `csrc`. Raises BuildError if there are none, or an included file is missing."""
    return native.plan_for(recipe(tools, csrc))


def describe(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Compiler and key of the library that `build` returns, for reports. Raises BuildError."""
    tools = toolchain.find(environ, _NOUN)
    return {"compiler": tools.compiler_text, "key": plan_for(tools, CSRC).key}


if __name__ == "__main__":
    sys.exit(native.run_by_hand(build))
