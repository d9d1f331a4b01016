"""Queues Python functions on streams of simulated devices."""

from __future__ import annotations

import atexit
import ctypes
import functools
import os
from collections.abc import Callable, Sequence

from harness.sim.simcuda import autoload


@functools.cache
def _library() -> ctypes.PyDLL:
    name = os.environ[autoload.VARIABLE]
    library = ctypes.PyDLL(name)
    library.simcuda_launch_callable.argtypes = [
        ctypes.py_object,
        ctypes.py_object,
        ctypes.c_ulonglong,
        ctypes.py_object,
    ]
    library.simcuda_launch_callable.restype = ctypes.py_object
    atexit.register(ctypes.CDLL(name).simcuda_end_callables)
    return library


@functools.cache
def checks_races() -> bool:
    """Return whether the runtime wants to know which memory work uses."""
    return bool(_library().simcudaChecksWork())


def launch(name: str, work: Callable[[], None], stream: int, accesses: Sequence[tuple[int, int, bool]]) -> None:
    """Queue a call of the function on a stream of the current device, or add it to the stream's capture.

    `accesses`: the memory that it uses, as addresses, bytes, and whether it is written. An exception becomes a
    device-side assertion. Raise RuntimeError if CUDA refuses the launch.
    """
    _library().simcuda_launch_callable(work, name, stream, list(accesses))
