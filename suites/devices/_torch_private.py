"""The undocumented torch names that this suite uses. No other module of the suite looks one up.

A case that needs a name that the torch release lacks is skipped, with the name in the reason.
"""

from __future__ import annotations

from collections.abc import Callable

from suites.reaching import reach


def get_device_index() -> Callable[..., int]:
    """The function with which torch.cuda parses its device arguments."""
    found: Callable[..., int] = reach("torch.cuda._utils._get_device_index")
    return found


def rocm_is_backward_pass() -> bool:
    """Whether a build for ROCm considers the calling thread to be in a backward pass."""
    return bool(reach("torch._C._rocm_is_backward_pass")())


def check_capability() -> Callable[[], None]:
    """What the first use of CUDA calls to warn of devices that the build has no code for."""
    found: Callable[[], None] = reach("torch.cuda._check_capability")
    return found
