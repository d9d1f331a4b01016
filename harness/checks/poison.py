"""Whether the devices of this process still work after a case."""

from __future__ import annotations

import sys


def sticky_error() -> str | None:
    """The text of a sticky error, or None when every device of the process answers or none was ever woken.

    An illegal address or a device-side assert makes every later call of the process fail (CUDA Runtime API, "sticky"
    errors); it often surfaces only at the next synchronisation. Software devices are the same in this. Ask whether a
    context exists, never create one.
    """
    torch = sys.modules.get("torch")
    # A backend beside CUDA is there only where it was loaded.
    for module in (getattr(torch, "cuda", None), getattr(torch, "soft", None)):
        if module is None or not module.is_initialized():
            continue
        try:
            for index in range(module.device_count()):
                module.synchronize(index)
        except RuntimeError as error:
            return str(error).strip() or repr(error)
    soft = getattr(torch, "soft", None)
    failures = [] if soft is None else [soft.failure(index) for index in range(soft.device_count())]
    return next((failure for failure in failures if failure), None)
