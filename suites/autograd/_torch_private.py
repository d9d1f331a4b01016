"""The undocumented or release-dependent torch names that this suite uses. No other module of the suite looks one up.

A case that needs a name that the torch release lacks is skipped, with the name in the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from suites.reaching import below, reach


def version(tensor: torch.Tensor) -> int:
    """Return the version counter of the storage, by which autograd detects in-place changes of saved tensors."""
    found: int = tensor._version
    return found


def queue_callback(callback: Callable[[], None]) -> None:
    """Queue a callback that runs when the current backward pass ends, as distributed training does.

    No public API reaches the end of a backward pass from within it.
    """
    reach("torch.autograd.Variable._execution_engine.queue_callback")(callback)


def allow_saved_tensors_hooks() -> None:
    """Leave `disable_saved_tensors_hooks`, whose block has not been left."""
    reach("torch._C._autograd._saved_tensors_hooks_enable")()


def raw_saved(node: Any, name: str) -> Any:
    """Return the `SavedTensor` that a graph node holds under a name, before unpacking.

    Saved-tensor hooks are registered on it.
    """
    return below(node, f"_raw_saved_{name}")


def saved(node: Any, name: str) -> torch.Tensor:
    """Return the tensor that a graph node saved under a name, unpacked."""
    found: torch.Tensor = below(node, f"_saved_{name}")
    return found


def multithreading_enabled() -> bool:
    """Return whether a backward pass that this thread starts may use the threads of devices.

    No public name reads this.
    """
    found: bool = reach("torch._C._is_multithreading_enabled")()
    return found


def is_wrapped(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is the wrapper that a `torch.func` transform makes of its arguments."""
    found: bool = reach("torch._C._functorch.is_functorch_wrapped_tensor")(tensor)
    return found


def capture_left_open() -> bool:
    """Return whether a backward pass that failed during capture has left the compiler's context open.

    The context closes when the garbage collector reclaims its owner. If that happens during a later capture, the later
    capture fails.
    """
    context: Any = getattr(torch._guards, "CompileContext", None)
    return context is not None and context.try_get() is not None
