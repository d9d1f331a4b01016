"""The toolchains of the simulated CUDA's libraries: for the CUDA that torch is built for, with its headers.

This module does not import torch.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.devices import software
from harness.sim.native import toolchain
from harness.sim.native.toolchain import BuildError, Toolchain

NOUN = "the simulated CUDA"

#: One header of each required kind, and the wheel that contains it by major version of CUDA. From CUDA 13 on, the
#: wheels share one folder.
_HEADERS: Mapping[str, Mapping[int, tuple[str, str]]] = {
    "cuda_runtime_api.h": {
        12: ("nvidia/cuda_runtime/include", "nvidia-cuda-runtime-cu12"),
        13: ("nvidia/cu13/include", "nvidia-cuda-runtime"),
    },
    "cupti.h": {
        12: ("nvidia/cuda_cupti/include", "nvidia-cuda-cupti-cu12"),
        13: ("nvidia/cu13/include", "nvidia-cuda-cupti"),
    },
    "nccl.h": {
        12: ("nvidia/nccl/include", "nvidia-nccl-cu12"),
        13: ("nvidia/nccl/include", "nvidia-nccl-cu13"),
    },
}


@dataclass(frozen=True, slots=True)
class SimcudaToolchains:
    """The toolchains. `major`: the major version of the CUDA that torch is built for.

    `runtime`: for libraries that do not need torch. `operators`: for those that do.
    """

    major: int
    runtime: Toolchain
    operators: Toolchain


def cuda_major() -> int:
    """Return the major version of the CUDA that the installed torch is built for.

    Raise BuildError on a platform without the simulation, without a CUDA build of torch, and for a version of CUDA that
    is not simulated.
    """
    require_platform(sys.platform, platform.machine(), _has_glibc())
    detected = software.torch_cuda_version()
    if not isinstance(detected.value, tuple):
        raise BuildError(
            f"{NOUN} needs a CUDA build of torch, and {detected.detail}: install one into an environment of its own, "
            "for example with `pip install 'torch===2.13.0'` (PyPI's builds for Linux are CUDA builds; `===` keeps pip "
            "from a `2.13.0+cpu` of another index); neither a GPU nor a driver is needed"
        )
    headers = _HEADERS["cupti.h"]
    if detected.value[0] not in headers:
        versions = " and ".join(map(str, headers))
        raise BuildError(f"torch is built for CUDA {detected.value[0]}; {NOUN} exists for CUDA {versions}")
    return detected.value[0]


def require_platform(system: str, machine: str, has_glibc: bool) -> None:
    """Raise BuildError unless this is Linux with glibc on x86-64. `system`: as `sys.platform`."""
    if system != "linux":
        raise BuildError(f"{NOUN} needs Linux, and this is {system!r}: use a container or a virtual machine")
    if machine not in ("x86_64", "AMD64"):
        raise BuildError(f"{NOUN} needs an x86-64 processor, and this machine is {machine!r}")
    if not has_glibc:
        raise BuildError(
            f"{NOUN} needs glibc, and this Python uses another C library, such as musl in Alpine Linux: use an image "
            "with glibc, such as python:3.12-slim; torch has no builds for musl either"
        )


def _has_glibc() -> bool:
    # Other C libraries have no such variable, so that Python does not know its name.
    return "CS_GNU_LIBC_VERSION" in os.confstr_names and bool(os.confstr("CS_GNU_LIBC_VERSION"))


def find_simcuda_toolchains(
    environ: Mapping[str, str] = os.environ, search: Sequence[str] | None = None
) -> SimcudaToolchains:
    """Return the toolchains of this interpreter and its torch. `search`: folders of packages, by default ``sys.path``.

    Raise BuildError if something is missing.
    """
    major = cuda_major()
    header_paths = header_folders(major, sys.path if search is None else search)
    folders = {f"CUDA_INCLUDE_{number}": folder for number, folder in enumerate(header_paths)}

    def with_cuda(tools: Toolchain) -> Toolchain:
        return replace(
            tools,
            identity=(*tools.identity, _identity(header_paths)),
            variables={**tools.variables, "CUDA_MAJOR": str(major)},
            folders={**tools.folders, **folders},
        )

    return SimcudaToolchains(
        major,
        with_cuda(toolchain.find_cpp_toolchain(environ, NOUN)),
        with_cuda(toolchain.find_torch_toolchain(environ, NOUN)),
    )


def header_folders(major: int, search: Sequence[str]) -> tuple[Path, ...]:
    """Return the folders with the headers of that CUDA. Raise BuildError with the name of a missing wheel."""
    folders: list[Path] = []
    for header, wheels in _HEADERS.items():
        folder, wheel = wheels[major]
        places = [Path(entry) / folder for entry in search if (Path(entry) / folder / header).is_file()]
        if not places:
            raise BuildError(
                f"{NOUN} needs the header {header!r} of CUDA {major}, and no package has it: install {wheel}"
            )
        folders.append(places[0])
    return tuple(dict.fromkeys(folders))


def _identity(folders: Sequence[Path]) -> str:
    """Return names and sizes of the headers."""
    files = sorted((file.name, file.stat().st_size) for folder in folders for file in folder.glob("*.h"))
    return repr(files)
