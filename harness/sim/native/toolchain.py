"""Toolchains for C++ libraries: compiler, flags, and the headers of torch, Python and CUDA. Does not import torch."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import HarnessError
from harness.devices import software

_VERSION_LIMIT = 20.0  # seconds; a compiler on a cold network file system takes several seconds
_CXX20_SINCE = (2, 12)  # from this release on, torch compiles its own extensions, and so its headers, as C++20
_COMMON = ("-O2", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra")
_LIBRARIES = ("torch", "torch_cpu", "torch_python", "c10")


class BuildError(HarnessError):
    """A library cannot be built on this machine."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Everything that can change the object of a source file.

    `compiler` is a command and `compiler_text` its path and version. `flags` are for compiling, `link` for linking.
    `torch`, `python` and `headers` identify the builds that the headers belong to; empty if none are used.
    """

    compiler: tuple[str, ...]
    compiler_text: str
    flags: tuple[str, ...]
    link: tuple[str, ...]
    torch: str = ""
    python: str = ""
    headers: str = ""

    def identity(self) -> list[object]:
        """All fields as plain values, for a key."""
        return [
            self.compiler,
            self.compiler_text,
            self.flags,
            self.link,
            self.torch,
            self.python,
            self.headers,
        ]


def plain(environ: Mapping[str, str], noun: str) -> Toolchain:
    """The toolchain for a library that needs neither torch nor Python. `noun`: what is built, for error messages.

    ``$CXXFLAGS`` is added to the flags. Raises BuildError if there is no usable compiler.
    """
    compiler = _compiler(environ, noun)
    extra = _words(environ, "CXXFLAGS")
    return Toolchain(
        compiler=tuple(compiler),
        compiler_text=_text(compiler, environ),
        flags=("-std=c++20", *_COMMON, *extra),
        link=("-shared", "-pthread", *extra),
    )


def find(environ: Mapping[str, str] = os.environ, noun: str = "the software device") -> Toolchain:
    """The toolchain of this interpreter, its torch, and the compiler that torch would use.

    `noun`: what is built, for error messages. ``$CXXFLAGS`` is added to the flags. Raises BuildError if something is
    missing.
    """
    compiler = _compiler(environ, noun)
    extra = _words(environ, "CXXFLAGS")
    folder = torch_folder()
    include = folder / "include"
    if not (include / "c10" / "core" / "Device.h").is_file():
        raise BuildError(f"torch in {str(folder)!r} has no C++ headers: install torch from a wheel")
    python_include = Path(sysconfig.get_paths()["include"])
    if not (python_include / "Python.h").is_file():
        raise BuildError(
            f"Python's C headers are not in {str(python_include)!r}: install them (python3-dev or python3-devel)"
        )
    release = software.release(software.torch_build() or "")
    flags = (
        "-std=c++20" if release is None or release >= _CXX20_SINCE else "-std=c++17",
        *_COMMON,
        "-fopenmp",  # for the header; OpenMP itself comes from torch, since a second one would have its own threads
        f"-isystem{include}",
        f"-isystem{python_include}",
        *extra,
    )
    link = ("-shared", "-pthread", f"-L{folder / 'lib'}", *(f"-l{name}" for name in _LIBRARIES), *extra)
    return Toolchain(
        compiler=tuple(compiler),
        compiler_text=_text(compiler, environ),
        flags=flags,
        link=link,
        torch=_torch_identity(folder),
        python=str(sysconfig.get_config_var("SOABI")),
    )


def torch_folder() -> Path:
    """The folder of the installed torch. Raises BuildError if torch is not installed."""
    try:
        spec = importlib.util.find_spec("torch")
    except ValueError:
        spec = None  # sys.modules has a torch without a spec
    if spec is None or spec.origin is None:
        raise BuildError("torch is not installed")
    return Path(spec.origin).parent


def _torch_identity(folder: Path) -> str:
    """Version, commit and CUDA from torch's ``version.py``, and the sizes of its libraries."""
    try:
        version = (folder / "version.py").read_text(errors="replace")
        sizes = [(folder / "lib" / f"lib{name}.so").stat().st_size for name in _LIBRARIES]
    except OSError as error:
        raise BuildError(f"cannot read {error.filename!r} of the installed torch ({error.strerror})") from None
    return f"{version}\n{sizes}"


def _compiler(environ: Mapping[str, str], noun: str) -> list[str]:
    command = software.cpp_command(environ.get("CXX", ""), environ.get("PATH", ""))
    if isinstance(command, str):
        raise BuildError(f"{noun} needs a C++ compiler: {command}")
    return command


def _text(compiler: list[str], environ: Mapping[str, str]) -> str:
    """The path of the compiler, and the first line of its ``--version``."""
    called = shlex.join(compiler)
    try:
        done = subprocess.run(
            [*compiler, "--version"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_VERSION_LIMIT,
            check=False,
        )
    except OSError as error:
        raise BuildError(f"the C++ compiler {called!r} does not start ({error.strerror})") from None
    except subprocess.TimeoutExpired:
        raise BuildError(f"the C++ compiler {called!r} --version did not end within {_VERSION_LIMIT:.0f} s") from None
    if done.returncode != 0:
        raise BuildError(f"the C++ compiler {called!r} --version ended with status {done.returncode}")
    first = done.stdout.decode(errors="replace").partition("\n")[0].strip()
    place = shutil.which(compiler[0], path=environ.get("PATH"))
    return f"{place if place is None else os.path.realpath(place)}: {first}"


def _words(environ: Mapping[str, str], name: str) -> list[str]:
    try:
        return shlex.split(environ.get(name, ""))
    except ValueError as error:
        raise BuildError(f"${name} is not a valid list of options: {environ[name]!r} ({error})") from None
