"""Tells whether the devices of this process still work after a case."""

from __future__ import annotations

import sys

from harness.backends.table import BACKENDS


def sticky_error() -> str | None:
    """Return the text of a sticky error.

    Return None if every initialised device of the process answers, or none is initialised. An illegal address or a
    device-side assert makes every later call of the process fail (CUDA Runtime API, "sticky" errors). Often only the
    next synchronisation shows the error. Software devices behave the same. This function never creates a context.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    for backend in BACKENDS.values():
        if not backend.is_initialized(torch):
            continue
        try:
            for index in range(backend.device_count(torch)):
                backend.synchronize(torch, index)
        except RuntimeError as error:
            return str(error).strip() or repr(error)
    return next((text for backend in BACKENDS.values() for text in backend.failures(torch) if text), None)
