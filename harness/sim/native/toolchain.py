"""Toolchains for C++ libraries: compiler, flags, and the headers of torch, Python and CUDA. Does not import torch."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shlex
import shutil
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from harness.backends.backend import Backend
from harness.core.errors import HarnessError
from harness.devices import software
from harness.devices.device import DeviceError

_CXX20_SINCE = (2, 12)  # since this release, torch compiles its own extensions, and so its headers, as C++20
_LIBRARIES = ("torch", "torch_cpu", "torch_python", "c10")


class BuildError(HarnessError):
    """A library cannot be built on this machine."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """The tools and settings with which sources are compiled.

    - `compiler`: a command. `compiler_text`: its path and version, for reports.
    - `flags`: flags of the user, from ``$CXXFLAGS``. They come after those of ``CMakeLists.txt``.
    - `variables`: settings for ``CMakeLists.txt``.
    - `folders`: the same, for folders outside the project.
    - `identity`: everything else that can change a library. It contains no paths: `folders` with equal contents are
      equal.
    """

    compiler: tuple[str, ...]
    compiler_text: str
    identity: tuple[str, ...]
    flags: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[str, Path] = field(default_factory=dict)

    def key(self) -> str:
        """Return a text that is equal for toolchains that make the same library of the same sources, on any path."""
        return short_digest([self.compiler[1:], self.identity, self.flags, sorted(self.variables.items())])


def short_digest(value: object) -> str:
    """Return a short hash of plain values, for the name of a file."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:24]


def find_cpp_toolchain(environ: Mapping[str, str], noun: str) -> Toolchain:
    """Return the toolchain for a library that needs neither torch nor Python.

    `noun`: the name of the library in error messages. Raise BuildError if there is no usable compiler.
    """
    compiler = _compiler(environ, noun)
    version = _version(compiler, environ)
    place = shutil.which(compiler[0], path=environ.get("PATH")) or compiler[0]
    return Toolchain(
        compiler=(os.path.abspath(place), *compiler[1:]),
        compiler_text=f"{os.path.realpath(place)}: {version}",
        identity=(version, platform.machine(), os.confstr("CS_GNU_LIBC_VERSION") or ""),
        flags=tuple(_words(environ, "CXXFLAGS")),
    )


def find_torch_toolchain(environ: Mapping[str, str] = os.environ, noun: str = "the software device") -> Toolchain:
    """Return the toolchain of this interpreter, its torch, and the compiler that torch would use.

    `noun`: the name of the library in error messages. Raise BuildError if something is missing.
    """
    tools = find_cpp_toolchain(environ, noun)
    folder = torch_folder()
    if not (folder / "include" / "c10" / "core" / "Device.h").is_file():
        raise BuildError(f"torch in {str(folder)!r} has no C++ headers: install torch from a wheel")
    python_include = Path(sysconfig.get_paths()["include"])
    if not (python_include / "Python.h").is_file():
        raise BuildError(
            f"Python's C headers are not in {str(python_include)!r}: install them (python3-dev or python3-devel)"
        )
    release = software.parse_release(software.torch_build() or "")
    return replace(
        tools,
        identity=(*tools.identity, str(sysconfig.get_config_var("SOABI")), _torch_identity(folder)),
        variables={"TORCH_CXX_STANDARD": "20" if release is None or release >= _CXX20_SINCE else "17"},
        folders={"TORCH": folder, "PYTHON_INCLUDE": python_include},
    )


def require_compiler(backend: Backend) -> None:
    """Raise DeviceError unless there is a C++ compiler to build these software devices."""
    compiler = software.cpp_compiler_version()
    if compiler.value is None:
        missing = f"no C++ compiler to build {backend.noun}: {compiler.detail}; install g++ or set CXX"
        raise DeviceError(f"--device={backend.kind}: {missing}")


def torch_folder() -> Path:
    """Return the folder of the installed torch. Raise BuildError if torch is not installed."""
    folder = software.torch_folder()
    if folder is None:
        raise BuildError("torch is not installed")
    return folder


def _torch_identity(folder: Path) -> str:
    """Return version, commit and CUDA from torch's ``version.py``, and the sizes of its libraries."""
    try:
        version = (folder / "version.py").read_text(errors="replace")
        sizes = [(folder / "lib" / f"lib{name}.so").stat().st_size for name in _LIBRARIES]
    except OSError as error:
        raise BuildError(f"cannot read {error.filename!r} of the installed torch ({error.strerror})") from None
    return f"{version}\n{sizes}"


def _compiler(environ: Mapping[str, str], noun: str) -> list[str]:
    command = software.cpp_compiler_command(environ.get("CXX", ""), environ.get("PATH", ""))
    if isinstance(command, str):
        raise BuildError(f"{noun} needs a C++ compiler: {command}")
    return command


def _version(compiler: list[str], environ: Mapping[str, str]) -> str:
    """Return the first line of the compiler's ``--version``."""
    printed, why = software.printed_version(compiler, environ)
    if why:
        raise BuildError(f"the C++ compiler {shlex.join(compiler)!r} {why}")
    return printed.partition("\n")[0].strip()


def _words(environ: Mapping[str, str], name: str) -> list[str]:
    try:
        return shlex.split(environ.get(name, ""))
    except ValueError as error:
        raise BuildError(f"${name} is not a valid list of options: {environ[name]!r} ({error})") from None
