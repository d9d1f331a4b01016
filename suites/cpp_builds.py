"""Shared libraries in C++, built once per torch release and shared by all processes of a run."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

import torch


def build(source: Path, *libraries: str) -> Path:
    """Build the source as a library named after its file, if necessary, load it into this process, and return its path.

    `libraries` of torch, such as "torch_cuda", are linked in addition to those of every build. The build is in a folder
    for this release of torch and Python, below `TORCH_EXTENSIONS_DIR` or torch's default. If processes build
    concurrently, one builds and the others wait. torch's own lock file is not sufficient, because a process that is
    killed leaves it behind.
    """
    from torch.utils import cpp_extension

    name = f"conformance_{source.stem}"
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root())
    folder = root / f"{name}-{torch.__version__}-{sys.implementation.cache_tag}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "one_at_a_time").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        (folder / "lock").unlink(missing_ok=True)
        cpp_extension.load(
            name,
            [str(source)],
            extra_ldflags=[f"-l{library}" for library in libraries],
            build_directory=str(folder),
            is_python_module=False,
            with_cuda=False,  # otherwise torch would look for a CUDA toolkit
        )
    return folder / f"{name}.so"
