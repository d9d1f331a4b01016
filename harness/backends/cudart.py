"""The CUDA runtime that torch has loaded, through ctypes, and its last error."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from types import ModuleType

NO_ERROR = "cudaSuccess"


def loaded_cudart(torch: ModuleType) -> ctypes.CDLL | None:
    """Return the runtime that torch calls. None if torch is linked with it statically, or has none.

    The symbols of the process's global scope come first, as for torch itself, so that calls go through a library in
    front of the runtime. Nothing is loaded.
    """
    process = ctypes.CDLL(None)
    if hasattr(process, "cudaPeekAtLastError"):
        return process
    version = getattr(getattr(torch, "version", None), "cuda", None)
    if version is None:
        return None
    try:
        return ctypes.CDLL(f"libcudart.so.{version.partition('.')[0]}", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return None


def last_error_reader(runtime: ctypes.CDLL) -> Callable[[], str]:
    """Return a function that returns the name of the calling thread's pending error, ``cudaSuccess`` if there is none.

    A failed call sets the error. torch raises the error after its next kernel launch, whichever code launches.
    """
    peek, name = runtime.cudaPeekAtLastError, runtime.cudaGetErrorName
    name.restype = ctypes.c_char_p

    def read() -> str:
        code = peek()
        if code == 0:
            return NO_ERROR
        text = name(code)
        return text.decode() if isinstance(text, bytes) else str(code)

    return read
