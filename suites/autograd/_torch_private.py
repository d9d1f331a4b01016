"""The names of torch, undocumented or not in every release, that this suite depends on. Nothing else reaches for one.

A release that lacks a name makes the case *skipped*, with the name in the reason, not failed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from suites.reaching import below, reach


def version(tensor: torch.Tensor) -> int:
    """How often the storage was changed in place, as autograd counts: the one it compares saved tensors by."""
    found: int = tensor._version
    return found


def queue_callback(callback: Callable[[], None]) -> None:
    """Have it called when the backward pass that is running has ended, as distributed training does.

    There is no other way to reach the end of a pass from within it.
    """
    reach("torch.autograd.Variable._execution_engine.queue_callback")(callback)


def raw_saved(node: Any, name: str) -> Any:
    """What a node of the graph has saved under a name, before it is unpacked: hooks are registered on it."""
    return below(node, f"_raw_saved_{name}")


def capture_left_open() -> bool:
    """Whether a backward pass that failed while it was captured has left the compiler's context open.

    It is closed when the garbage collector finds what held it: wherever that is, in the middle of the next capture say,
    which then fails.
    """
    context: Any = getattr(torch._guards, "CompileContext", None)
    return context is not None and context.try_get() is not None
