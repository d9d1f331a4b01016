"""Autograd functions in C++, built once per torch release and shared by all processes of a run."""

from __future__ import annotations

import fcntl
import functools
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

SOURCE = Path(__file__).with_name("cpp_nodes.cpp")

#: Names of the operators in `SOURCE`, which registers them as `torch.ops.conformance_nodes.*`.
OPERATORS = (
    "twice",
    "twice_too",
    "not_traceable",
    "saved_of_every_kind",
    "saved_view",
    "saved_integer",
    "saved_float",
    "data_dependent",
    "host_scalar",
)


@functools.cache
def load() -> Any:
    """An object with the operators, which stay registered for the life of the process. Builds them if necessary.

    The build is in a folder for this release of torch and Python, below `TORCH_EXTENSIONS_DIR` or torch's default. Of
    concurrent processes, one builds and the others wait. torch's own lock file is not sufficient, because a process
    that is killed leaves it behind.
    """
    from torch.utils import cpp_extension

    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root())
    version = f"{torch.__version__}-{sys.implementation.cache_tag}"
    folder = root / f"conformance_nodes-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "one_at_a_time").open("w") as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)
        (folder / "lock").unlink(missing_ok=True)
        cpp_extension.load(
            "conformance_nodes", [str(SOURCE)], build_directory=str(folder), is_python_module=False, with_cuda=False
        )
    return SimpleNamespace(**{name: getattr(torch.ops.conformance_nodes, name) for name in OPERATORS})
