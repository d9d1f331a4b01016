"""Tells whether the CUDA of this process is simulated, and whether faults are injected in front of it.

The answer comes from the loaded symbols, not from the environment.
"""

from __future__ import annotations

import ctypes

#: A function that only the simulated runtime exports.
_OWN = "simcudaIsInitialized"

#: A function that only the interposer exports: the library in front of a CUDA runtime in runs with injected faults.
_FAULTS = "interposerFaultCount"

#: The symbols of this process, including those that are loaded later. Made once, since each such object makes a class,
#: and so a reference cycle.
_SYMBOLS = ctypes.CDLL(None)


def simulated_runtime() -> ctypes.CDLL | None:
    """Return the simulated CUDA runtime that is loaded into this process; None if there is none."""
    return _SYMBOLS if hasattr(_SYMBOLS, _OWN) else None


def loaded_interposer() -> ctypes.CDLL | None:
    """Return the library that injects faults in front of the CUDA runtime of this process; None if there is none."""
    return _SYMBOLS if hasattr(_SYMBOLS, _FAULTS) else None


def faults_struck() -> dict[str, int]:
    """Return how often each fault was triggered in this process, by name; empty without an interposer."""
    library = loaded_interposer()
    if library is None:
        return {}
    library.interposerFaultName.restype = ctypes.c_char_p
    library.interposerTimesStruck.restype = ctypes.c_ulonglong
    struck = {
        library.interposerFaultName(i): library.interposerTimesStruck(i) for i in range(library.interposerFaultCount())
    }
    return {name.decode(): times for name, times in struck.items() if times}
