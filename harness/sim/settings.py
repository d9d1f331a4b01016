"""Prints the settings with which ``CMakeLists.txt`` builds everything that this machine can build, by hand.

``CMakeLists.txt`` calls ``python -m harness.sim.settings`` itself, unless the harness builds.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from harness.sim.interposer import front as interposer
from harness.sim.native import toolchain
from harness.sim.native.toolchain import BuildError
from harness.sim.simcuda import build as simcuda
from harness.sim.simcuda import toolchain as cuda
from harness.sim.softdevice import build as softdevice

_TESTS = ("softdevice/csrc/core/tests",)
_CUDA_TESTS = ("simcuda/csrc/runtime/tests", "simcuda/csrc/cupti/tests", "simcuda/csrc/nccl/tests")


def cmake_settings() -> Iterator[str]:
    """Yield the settings as lines of CMake. Raise BuildError if nothing can be built here."""
    tools = toolchain.find_torch_toolchain()
    parts = [*softdevice.PARTS, *_TESTS]
    try:
        tools = cuda.find_simcuda_toolchains().operators
        parts += [*simcuda.PARTS, *interposer.PARTS, *_CUDA_TESTS]
    except BuildError as error:
        print(f"Left out: {error}", file=sys.stderr)
    values = {**tools.variables, **{name: str(folder) for name, folder in tools.folders.items()}}
    yield f'set(PARTS "{";".join(parts)}")'
    yield from (f"set({name} [==[{value}]==])" for name, value in values.items())


if __name__ == "__main__":
    try:
        print("\n".join(cmake_settings()))
    except BuildError as error:
        sys.exit(f"error: {error}")
