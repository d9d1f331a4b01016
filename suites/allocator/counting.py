"""A pluggable allocator for torch, compiled from `counting.cpp`, which counts its requests."""

from __future__ import annotations

import ctypes
import os
import shlex
import subprocess
from pathlib import Path

import torch

SOURCE = Path(__file__).with_name("counting.cpp")


def build(folder: Path) -> Path:
    """Compile the library into a folder, which takes a second or two.

    Raise CalledProcessError with the compiler's output if it fails.
    """
    library = folder / "counting.so"
    compiler = shlex.split(os.environ.get("CXX", "c++"))
    subprocess.run(
        [*compiler, "-std=c++17", "-O1", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return library


class Counting:
    """The library in this process. Its counts start when it is loaded and cover all of its users."""

    def __init__(self, library: Path) -> None:
        self.path = library
        self._library = ctypes.CDLL(str(library))
        for name in ("requests", "returns", "held", "refusals"):
            getattr(self._library, f"counting_{name}").restype = ctypes.c_int64
        self._library.counting_limit.argtypes = [ctypes.c_int64]

    @property
    def requests(self) -> int:
        """The number of segments allocated."""
        return int(self._library.counting_requests())

    @property
    def returns(self) -> int:
        return int(self._library.counting_returns())

    @property
    def held(self) -> int:
        """The number of bytes allocated and not freed."""
        return int(self._library.counting_held())

    @property
    def refusals(self) -> int:
        return int(self._library.counting_refusals())

    def limit(self, size: int) -> None:
        """Fail requests that would exceed `size` bytes in total; -1 means no limit."""
        self._library.counting_limit(size)

    def has_runtime(self) -> bool:
        """Return whether the process has loaded a CUDA runtime to allocate from."""
        return bool(self._library.counting_has_runtime())

    def for_torch(self) -> torch.cuda.memory.CUDAPluggableAllocator:
        return torch.cuda.memory.CUDAPluggableAllocator(str(self.path), "counting_allocate", "counting_free")
