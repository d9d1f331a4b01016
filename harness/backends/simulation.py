"""Whether the CUDA of this process is the simulated one. The process itself tells, whatever its environment says."""

from __future__ import annotations

import ctypes

#: A function that only the simulated runtime exports.
_OWN = "simcudaIsInitialized"


def runtime() -> ctypes.CDLL | None:
    """The simulated CUDA runtime that is loaded into this process; None if there is none."""
    symbols = ctypes.CDLL(None)
    return symbols if hasattr(symbols, _OWN) else None
