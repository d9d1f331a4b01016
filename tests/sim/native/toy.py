"""A small CMake project, and builds of it in this process and in others."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from harness.sim.native import build, toolchain
from harness.sim.native.build import BuildRecipe
from harness.sim.native.toolchain import Toolchain

_SOURCES = {
    "CMakeLists.txt": """
cmake_minimum_required(VERSION 3.20)
project(toy CXX)
if(DEFINED TREE)
  set(CMAKE_DEPFILE_FLAGS_CXX "-MMD -MT <DEP_TARGET> -MF <DEP_FILE>")
endif()
add_subdirectory(${PARTS})
""",
    "parts/toy/CMakeLists.txt": """
file(GLOB sources CONFIGURE_DEPENDS csrc/*.cpp)
add_library(toy SHARED ${sources})
target_include_directories(toy SYSTEM PRIVATE ${OUTSIDE})
""",
    "parts/toy/csrc/one.cpp": '#include "one.h"\n#include <outside.h>\nextern "C" int one() { return ONE; }\n',
    "parts/toy/csrc/one.h": "#define ONE 1\n",
    "parts/toy/csrc/two.cpp": '#include "../two.def"\nextern "C" int two() { return TWO; }\n',
    "parts/toy/two.def": "#define TWO 2\n",
    "parts/toy/csrc/tests/three.cpp": "not built\n",
    "parts/toy/csrc/notes.txt": "not read\n",
}
#: Records each compilation in the file $CALLS. With $HELD, the path of a pipe, it reports its start there, and then
#: waits for a line from the pipe $HELD.go. CMake's own compilations to detect the compiler do not count.
_LAUNCHER = """#!/bin/sh
for word; do case "$word" in *.cpp) source=$word;; esac; done
case "$source" in */CMakeCXX*) exec "$@";; esac
if [ -n "$HELD" ]; then echo begun > "$HELD"; read -r word < "$HELD.go"; fi
echo "${source##*/}" >> "$CALLS"
exec "$@"
"""


class Toy:
    """The project below `root`. Several can share `cache`."""

    def __init__(self, root: Path, cache: Path) -> None:
        self.root = root
        self.cache = cache
        self.outside = root / "outside"
        self.calls = root / "calls"
        root.mkdir(exist_ok=True)
        self.calls.touch()
        launcher = cache.with_name("launcher")
        launcher.write_text(_LAUNCHER)
        launcher.chmod(0o755)
        for name, text in _SOURCES.items():
            self.write(name, text)
        self.outside.mkdir()
        (self.outside / "outside.h").write_text("\n")
        self.environ = {
            **os.environ,
            "HARNESS_CACHE_DIR": str(cache),
            "CALLS": str(self.calls),
            "CMAKE_CXX_COMPILER_LAUNCHER": str(launcher),
        }
        plain = toolchain.find_cpp_toolchain({**os.environ, "CXXFLAGS": "-O0"}, "the toy")
        self.tools = replace(plain, folders={"OUTSIDE": self.outside}, variables={"SETTING": "1"})
        self.said: list[str] = []

    def write(self, name: str, text: str) -> None:
        file = self.root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def recipe(self, tools: Toolchain | None = None) -> BuildRecipe:
        return BuildRecipe(
            "the toy", "toy", self.root, ("parts/toy",), ("parts/toy",), ("libtoy.so",), tools or self.tools
        )

    def key(self, tools: Toolchain | None = None) -> str:
        return build.cache_key(self.recipe(tools))

    def build(self, tools: Toolchain | None = None) -> Path:
        return build.build_libraries(self.recipe(tools), self.said.append, environ=self.environ) / "libtoy.so"

    def compiled(self) -> list[str]:
        """Return the sources compiled since the last call."""
        calls = self.calls.read_text().split()
        self.calls.write_text("")
        return sorted(calls)

    def start(self, **environ: str) -> subprocess.Popen[str]:
        """Start another process that builds, with one compiler at a time, and prints its messages and the folder."""
        script = (
            "from pathlib import PosixPath\n"
            "import signal\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # in case the tests ignore it
            "from harness.sim.native.build import BuildRecipe, build_libraries\n"
            "from harness.sim.native.toolchain import Toolchain\n"
            f"print(build_libraries({self.recipe()!r}, lambda line: print(line, flush=True)))"
        )
        return subprocess.Popen(
            [sys.executable, "-c", script],
            env={**self.environ, "MAX_JOBS": "1", **environ},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )


def call(library: Path, name: str) -> int:
    """Return the result of a function of the library."""
    return int(ctypes.CDLL(str(library))[name]())
