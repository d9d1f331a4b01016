"""A fake ``libnvidia-ml.so.1`` for tests on machines without GPUs: the real pynvml loads it in a process of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

SOURCE = Path(__file__).with_name("devices") / "fake_nvml" / "fake_nvml.c"


def build(folder: Path) -> Path:
    """Compile the fake into `folder` and return `folder`. Raises CalledProcessError when the compiler refuses it."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise FileNotFoundError("the tests compile a fake nvml, and need cc, gcc or clang on the path")
    library = folder / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-O1"]
    subprocess.run([compiler, *flags, "-o", str(library), str(SOURCE)], check=True, timeout=120)
    return folder


def environment(
    folder: Path,
    *,
    gpus: int = 8,
    mig: Iterable[int] = (),
    lost: Iterable[int] = (),
    gone: Iterable[int] = (),
    no_ecc: Iterable[int] = (),
    other: Iterable[int] = (),
    **more: str,
) -> dict[str, str]:
    """The environment for a new process that is to see `gpus` GPUs: this one's, without a mask of its devices.

    The iterables are indices: with MIG mode on, lost, lost before they can be named, without ECC, and of another
    model. `more` are further variables; what they can be stands at the top of the C file. The loader reads its path
    when a process starts, so changing ``os.environ`` does nothing.
    """
    lists = {"MIG": mig, "LOST": lost, "GONE": gone, "NO_ECC": no_ecc, "OTHER": other}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "FAKE_NVML_"))}
    path = os.pathsep.join(filter(None, [str(folder), inherited.get("LD_LIBRARY_PATH")]))
    return {
        **inherited,
        "LD_LIBRARY_PATH": path,
        "FAKE_NVML_GPUS": str(gpus),
        **{f"FAKE_NVML_{name}": ",".join(map(str, indices)) for name, indices in lists.items()},
        **more,
    }
