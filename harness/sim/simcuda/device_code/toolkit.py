"""The toolkit of the simulated CUDA: a folder like that of CUDA's, whose ``nvcc`` compiles device code for the host.

``bin/nvcc`` runs `harness.sim.simcuda.device_code.nvcc`. ``include`` and ``lib64`` have what the wheels of CUDA have.
``modules`` has the code that the driver has asked for (``csrc/driver/code.cpp``), and ``torch`` what torch keeps.
``settings.json`` is for the compiler alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.atomic import write_atomically
from harness.core.cache import cache_root, code_cache
from harness.sim.native.build import sweep
from harness.sim.native.toolchain import short_digest
from harness.sim.simcuda.toolchain import SimcudaToolchains

#: The folder of the toolkit. Set only in processes of a run on simulated devices.
VARIABLE = "SIMCUDA_TOOLKIT"
#: NVIDIA's own NVRTC (``csrc/nvrtc/real.cpp``).
NVRTC = "SIMCUDA_NVRTC"
#: Where programs look for CUDA's toolkit, the first one before the second one.
_CUDA_HOME, _CUDA_PATH = "CUDA_HOME", "CUDA_PATH"
#: Where torch keeps what NVRTC has compiled: code that runs on a GPU has no source for the simulation.
_TORCH_KERNELS = "PYTORCH_KERNEL_CACHE_PATH"

_KEPT = 30 * 86400.0  # seconds since the last use
_HERE = Path(__file__).parent
_INTERFACE = _HERE.parent / "csrc" / "include"


@dataclass(frozen=True, slots=True)
class Settings:
    """How ``nvcc`` calls the host's compiler.

    - `compiler`: its command. `flags`: the user's flags.
    - `includes`: folders with the headers of CUDA, in the order of their search.
    - `runtime`: the simulated ``libcudart``.
    - `release`: the version of CUDA that torch is built for.
    """

    compiler: tuple[str, ...]
    flags: tuple[str, ...]
    includes: tuple[str, ...]
    runtime: str
    release: str

    @classmethod
    def load(cls, toolkit: Path) -> Settings:
        """Return the settings of a toolkit."""
        read = json.loads((toolkit / "settings.json").read_text(encoding="utf-8"))
        compiler, flags, includes = (tuple(read[name]) for name in ("compiler", "flags", "includes"))
        return cls(compiler, flags, includes, read["runtime"], read["release"])


def make_toolkit(tools: SimcudaToolchains, libraries: Path, release: str, environ: Mapping[str, str]) -> Path:
    """Return the folder of the toolkit for these toolchains and this build of the libraries. Make it if it is missing.

    Raise CacheError if others could put code into it, and OSError or WriteError if there is no room for it. A module
    that nobody has compiled for 30 days is removed.
    """
    includes = [str(folder) for name, folder in tools.runtime.folders.items() if name.startswith("CUDA_INCLUDE")]
    settings = {
        "compiler": tools.runtime.compiler,
        "flags": tools.runtime.flags,
        "includes": [str(_HERE / "include"), str(_INTERFACE), *includes],
        "runtime": str(libraries / f"libcudart.so.{tools.major}"),
        "release": release,
    }
    sources = [path.read_text(encoding="utf-8") for path in sorted(_sources())]
    folder = _folder(environ, short_digest([settings, tools.runtime.key(), sys.executable, sources]))
    if not (folder / "settings.json").is_file():
        _fill(folder, tools.major, libraries, _wheel_folders("include"), _wheel_folders("lib"))
        write_atomically(folder / "settings.json", json.dumps(settings).encode(), 0o644)
    if os.access(folder, os.W_OK):
        os.utime(folder)
        sweep(folder.parent, time.time() - _KEPT)
        sweep(folder / "modules", time.time() - _KEPT)
    return folder


def _sources() -> Iterable[Path]:
    yield from (path for path in _HERE.rglob("*") if path.is_file() and path.suffix != ".pyc")
    yield _INTERFACE / "simcuda_device.h"


def _folder(environ: Mapping[str, str], name: str) -> Path:
    """Return the folder of this name in the user's cache, or a temporary one if it is not there and cannot be made."""
    root = cache_root(environ)
    if root is not None:
        with contextlib.suppress(OSError):
            return code_cache(root, "simcuda-toolkit", name)
    return Path(tempfile.mkdtemp(prefix="simcuda-toolkit-")) / name


def _wheel_folders(kind: str) -> list[Path]:
    """Return the folders ``include`` or ``lib`` of NVIDIA's wheels."""
    return [path for entry in sys.path for path in sorted(Path(entry or ".").glob(f"nvidia/*/{kind}"))]


def _fill(folder: Path, major: int, libraries: Path, includes: Sequence[Path], wheels: Sequence[Path]) -> None:
    for name in ("bin", "include", "lib64", "modules", "torch"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    _link(folder / "include" / "crt", _INTERFACE / "crt")
    for source in includes:
        for entry in source.iterdir():
            _link(folder / "include" / entry.name, entry)
    simulated = {f"lib{name}.so": libraries / f"lib{name}.so.{major}" for name in ("cudart", "nvrtc", "cupti")}
    for name, library in {**simulated, "libcuda.so": libraries / "libcuda.so.1"}.items():
        _link(folder / "lib64" / name, library)
    for source in wheels:
        for entry in source.glob("lib*.so.*"):
            _link(folder / "lib64" / f"{entry.name.partition('.so')[0]}.so", entry)
    script = (
        "#!/bin/sh\n"
        "# The simulated CUDA: compiles device code for the host.\n"
        "unset LD_PRELOAD\n"
        f"PYTHONSAFEPATH=1 exec {shlex.quote(sys.executable)} -m harness.sim.simcuda.device_code.nvcc "
        f'{shlex.quote(str(folder))} "$@"\n'
    )
    write_atomically(folder / "bin" / "nvcc", script.encode(), 0o755)


def _link(place: Path, target: Path) -> None:
    try:
        place.symlink_to(target)
    except FileExistsError:
        return  # an earlier wheel has it, or another process is filling the folder


def toolkit_environment(toolkit: Path, major: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which a process finds the toolkit and NVIDIA's NVRTC.

    A toolkit that the user names (``$CUDA_HOME``, ``$CUDA_PATH``) stays. Any other ``nvcc`` compiles code that only a
    GPU can run.
    """
    variables = {VARIABLE: str(toolkit), _TORCH_KERNELS: str(toolkit / "torch")}
    nvrtc = [path for folder in _wheel_folders("lib") for path in folder.glob(f"libnvrtc.so.{major}")]
    if nvrtc:
        variables[NVRTC] = str(nvrtc[0])
    if not environ.get(_CUDA_HOME) and not environ.get(_CUDA_PATH):
        variables[_CUDA_HOME] = str(toolkit)
    return variables
