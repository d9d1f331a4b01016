"""Versions of the software that cases need, from files and metadata. The software itself is not imported."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import struct
import subprocess
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.devices.device import Detected, Version

_CUDA_HOME = Path("/usr/local/cuda")
_PROBE_TIMEOUT = 20.0  # seconds; a compiler on a cold network file system takes several seconds


def parse_release(text: str) -> Version | None:
    """Return the leading release numbers of a version text: (2, 13, 0) for ``2.13.0a0+cpu``. None if it has none.

    The rest (pre-release, build, vendor suffix) is ignored: a nightly of 2.14 counts as 2.14.
    """
    match = re.match(r"v?(\d{1,9}(?:\.\d{1,9})*)", text.strip(), re.ASCII)
    return None if match is None else tuple(int(part) for part in match[1].split("."))


def installed_version(distribution: str) -> str | None:
    """Return the version text of an installed distribution; None without it."""
    try:
        return str(importlib.metadata.version(distribution))  # damaged metadata gives None
    except importlib.metadata.PackageNotFoundError:
        return None


def distribution_version(*names: str) -> Detected:
    """Return the version of the first installed distribution of `names`, from its metadata."""
    for name in names:
        text = installed_version(name)
        if text is None:
            continue
        version = parse_release(text)
        return Detected(version, "" if version else f"distribution {name} has an invalid version: {text!r}")
    return Detected(None, f"no distribution named {' or '.join(names)} is installed")


def torch_version() -> Detected:
    """Return the version of the installed torch."""
    return distribution_version("torch")


def triton_version() -> Detected:
    """Return the version of the installed Triton. Nightly builds of torch install it under another name."""
    return distribution_version("triton", "pytorch-triton")


def torch_build() -> str | None:
    """Return the full version text of the installed torch, such as ``2.13.0+cu130``. None without torch."""
    return installed_version("torch")


def torch_cuda_version() -> Detected:
    """Return the CUDA runtime that the installed torch was built for."""
    return _built_for("cuda", "cuda")


def torch_rocm_version() -> Detected:
    """Return the HIP that the installed torch was built for."""
    return _built_for("hip", "rocm")


def _built_for(constant: str, name: str) -> Detected:
    constants = _torch_constants()
    if isinstance(constants, str):
        return Detected(None, constants)
    text = constants.get(constant)
    if text is None:
        return Detected(None, f"torch {constants.get('__version__')} is built without {name}")
    version = parse_release(text)
    return Detected(version, "" if version else f"torch is built for an invalid version of {name}: {text!r}")


def cuda_accelerator_graphs() -> Detected:
    """Return whether torch's library for CUDA registers an implementation of `torch.accelerator.Graph`.

    Such a registration names torch's registry of implementations (ATen/core/GraphImplInterface.h).
    """
    built = torch_cuda_version()
    if built.value is None:
        return Detected(False, built.detail)
    folder = torch_folder()
    library = Path() if folder is None else folder / "lib" / "libtorch_cuda.so"
    try:
        registers = has_symbol_with(library, b"GraphImplRegistry")
    except (OSError, ValueError) as error:
        return Detected(None, f"{library} cannot be read ({error})")
    return Detected(registers, "" if registers else "torch has no torch.accelerator.Graph for cuda")


def wheel_version(name: str) -> Detected:
    """Return the version of NVIDIA's distribution `name` for the CUDA that torch is built for.

    Its name ends in ``-cu12``. From CUDA 13 on, libraries of the toolkit itself have no suffix; their major version is
    then that of CUDA.
    """
    runtime = torch_cuda_version()
    if not isinstance(runtime.value, tuple):
        return runtime
    major = runtime.value[0]
    detected = distribution_version(f"{name}-cu{major}")
    if detected.value is None and name == "nvidia-cublas":
        plain = distribution_version(name)
        if isinstance(plain.value, tuple) and plain.value[0] == major:
            return plain
    if detected.value is None:
        return Detected(None, f"{detected.detail}; a version bundled with torch is unknown until it is loaded")
    return detected


def find_cuda_toolkit() -> Detected:
    """Return whether torch finds a CUDA toolkit, whose headers it gives to NVRTC.

    Source: `_find_cuda_home` of torch/utils/cpp_extension.py, the same in torch 2.11 to 2.15.
    """
    if named := os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH"):
        return Detected(True, named)
    if nvcc := shutil.which("nvcc"):
        return Detected(True, str(Path(nvcc).parents[1]))
    if _CUDA_HOME.exists():
        return Detected(True, str(_CUDA_HOME))
    return Detected(False, f"$CUDA_HOME is not set, $PATH has no nvcc, and there is no {_CUDA_HOME}")


def cpp_compiler_version() -> Detected:
    """Return the version of the C++ compiler that torch would run: ``$CXX``, or else c++, g++ or clang++ in
    ``$PATH``.
    """
    return _cpp_compiler(os.environ.get("CXX", ""), os.environ.get("PATH", ""))


def can_build_cpp_extensions() -> Detected:
    """Return whether torch can build extensions in C++, for which it needs a compiler, ninja and Python's headers.

    Source: torch/utils/cpp_extension.py, the same in torch 2.11 to 2.15.
    """
    compiler, header = cpp_compiler_version(), Path(sysconfig.get_path("include"), "Python.h")
    if compiler.value is None:
        return Detected(False, compiler.detail)
    if not shutil.which("ninja"):
        return Detected(False, "$PATH has no ninja; the package ninja-build or `pip install ninja` brings it")
    if not header.exists():
        return Detected(False, f"there is no {header}; the package python3-dev brings it")
    return Detected(True)


def cpp_compiler_command(cxx: str, path: str) -> list[str] | str:
    """Return the command that torch would run to compile C++, or, as a text, why there is none.

    `cxx` and `path` are the values of ``$CXX`` and ``$PATH``.
    """
    try:
        command = shlex.split(cxx)
    except ValueError as error:
        return f"$CXX is not a valid command: {cxx!r} ({error})"
    if not command:
        command = next(([name] for name in ("c++", "g++", "clang++") if shutil.which(name, path=path)), [])
    return command or "$CXX is not set, and $PATH has none of c++, g++, clang++"


@functools.cache
def _cpp_compiler(cxx: str, path: str) -> Detected:
    command = cpp_compiler_command(cxx, path)
    if isinstance(command, str):
        return Detected(None, command)
    printed, why = printed_version(command)
    if why:
        return Detected(None, f"{shlex.join(command)} {why}")
    version = parse_compiler_version(printed)
    return Detected(version, "" if version else f"{shlex.join(command)} --version printed no version")


def printed_version(command: Sequence[str], environ: Mapping[str, str] | None = None) -> tuple[str, str]:
    """Return what a compiler prints for ``--version``, and what has gone wrong; empty if nothing has."""
    try:
        done = subprocess.run(
            [*command, "--version"],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PROBE_TIMEOUT,
            check=False,
        )
    except OSError as error:
        return "", f"does not start ({error.strerror})"
    except subprocess.TimeoutExpired:
        return "", f"--version did not end within {_PROBE_TIMEOUT:.0f} s"
    return done.stdout.decode(errors="replace"), f"--version ended with status {done.returncode}" * bool(
        done.returncode
    )


def parse_compiler_version(text: str) -> Version | None:
    """Return the version in the output of a compiler's ``--version``.

    It is the first dotted number that is not part of a word (``x86_64-linux-gnu-g++-13``) and not in parentheses, where
    Linux distributions put the version of their package.
    """
    outside_brackets = re.sub(r"\([^()]*\)", "", text)
    match = re.search(r"(?<![\w.-])\d{1,9}(\.\d{1,9})+", outside_brackets, re.ASCII)
    return None if match is None else parse_release(match[0])


@functools.cache
def _torch_constants() -> Mapping[str, str | None] | str:
    """Return the plain assignments of ``torch/version.py``, or, as a text, why it could not be read."""
    folder = torch_folder()
    if folder is None:
        return "torch is not installed"
    file = folder / "version.py"
    try:
        return parse_constants(file.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        return f"{file} cannot be read ({error})"


def torch_folder() -> Path | None:
    """Return the folder of the installed torch, or None. torch is not imported."""
    try:
        spec = importlib.util.find_spec("torch")
    except ValueError:
        spec = None  # sys.modules has a torch without a spec
    return None if spec is None or spec.origin is None else Path(spec.origin).parent


def parse_constants(source: bytes) -> dict[str, str | None]:
    """Return the names that Python `source` assigns a text or None at its top level. The source is not run.

    Raise SyntaxError or ValueError if the source is not valid Python.
    """
    constants: dict[str, str | None] = {}
    for statement in ast.parse(source).body:
        match statement:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str() | None as value))
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str() | None as value))
            ):
                constants[name] = value
    return constants


# The symbols of a shared library, read from its file: nothing is loaded

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_DYNAMIC_SYMBOLS = 11  # SHT_DYNSYM of elf.h
_SECTION = struct.Struct("<IIQQQQIIQQ")  # Elf64_Shdr


def has_symbol_with(library: Path, part: bytes) -> bool:
    """Return whether a dynamic symbol, defined or undefined, has `part` in its name.

    Raise OSError, and ValueError if the file is no library of this kind.
    """
    with library.open("rb") as file:
        header = file.read(64)
        if len(header) < 64 or not header.startswith(_MAGIC):
            raise ValueError("not a 64-bit ELF file")
        (start,) = struct.unpack_from("<Q", header, 0x28)
        size, count = struct.unpack_from("<HH", header, 0x3A)
        file.seek(start)
        table = file.read(size * count)
        if size < _SECTION.size or len(table) < size * count:
            raise ValueError("it has no table of sections")
        sections = [_SECTION.unpack_from(table, number * size) for number in range(count)]
        for section in sections:
            if section[1] == _DYNAMIC_SYMBOLS and section[6] < count:
                _, _, _, _, offset, length, *_ = sections[section[6]]  # the section with the names of these symbols
                file.seek(offset)
                return part in file.read(length)
    raise ValueError("it has no dynamic symbols")
