"""The names of torch, undocumented, that this suite depends on. Nothing else in the suite reaches for one.

A release that lacks a name makes the case *skipped*, with the name in the reason, not failed.
"""

from __future__ import annotations

from collections.abc import Callable

from suites.reaching import reach


def get_device_index() -> Callable[..., int]:
    """The function by which torch.cuda reads what it is given for a device."""
    found: Callable[..., int] = reach("torch.cuda._utils._get_device_index")
    return found


def rocm_is_backward_pass() -> bool:
    """Whether a build for ROCm believes that the calling thread is in a backward pass."""
    return bool(reach("torch._C._rocm_is_backward_pass")())
