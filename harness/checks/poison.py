"""Whether the CUDA context of this process still works after a case."""

from __future__ import annotations

import sys


def sticky_error() -> str | None:
    """The text of a sticky CUDA error, or None when every device of the process answers or CUDA was never woken.

    An illegal address or a device-side assert makes every later call of the process fail (CUDA Runtime API, "sticky"
    errors); it often surfaces only at the next synchronisation. Ask whether a context exists, never create one.
    """
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    try:
        for index in range(torch.cuda.device_count()):
            torch.cuda.synchronize(index)
    except RuntimeError as error:
        return str(error).strip() or repr(error)
    return None
