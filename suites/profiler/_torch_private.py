"""The undocumented torch names that this suite uses. No other module of the suite looks one up.

A case that needs a name that the torch release lacks is skipped, with the name in the reason: the tree is under test,
not where torch keeps it.
"""

from __future__ import annotations

from typing import Any

import torch

from suites.reaching import below, reach


def event_roots(profile: torch.profiler.profile) -> list[Any]:
    """The root events of a finished profile, oldest first."""
    return below(profile, "profiler.kineto_results.experimental_event_tree")()


def event_tag(event: Any) -> str:
    """The kind of an event: `TorchOp`, `Allocation`, `OutOfMemory`, `PyCall`, `PyCCall`, `Kineto`, …

    Derived from the type of its extra fields, because the event's own tag has no Python name for some kinds.
    """
    return type(below(event, "extra_fields")).__name__.removeprefix("_ExtraFields_")


def extra(event: Any, path: str) -> Any:
    """A field specific to the event's kind, such as `alloc_size` or `caller.file_name`."""
    return below(event, f"extra_fields.{path}")


def wrapper_tensor(kind: type[torch.Tensor], inner: torch.Tensor) -> Any:
    """A wrapper subclass tensor with the shape, dtype and device of `inner` and no memory of its own."""
    make = reach("torch.Tensor._make_wrapper_subclass")
    return make(kind, inner.shape, dtype=inner.dtype, device=inner.device)


def profiler_enabled() -> bool:
    """Whether a profiler is recording on this thread."""
    return reach("torch.autograd._profiler_enabled")()


def python_flag() -> bool:
    """Whether torch's code in Python, such as compiled functions, finds a profiler that is recording."""
    return reach("torch.autograd.profiler._is_profiler_enabled") is True


def verbose_config(**more: bool) -> Any:
    """The settings without which `with_stack` gives events no stack. `more`: further ones."""
    return reach("torch._C._profiler._ExperimentalConfig")(verbose=True, **more)


def kineto_events(profile: Any) -> list[Any]:
    """The events that a finished profile recorded, before they become `FunctionEvent` objects."""
    found: list[Any] = below(profile, "profiler.kineto_results.events")()
    return found


def trace_start_ns(profile: Any) -> int:
    """The time on the clock of the events at which a finished profile began."""
    found: int = below(profile, "profiler.kineto_results.trace_start_ns")()
    return found


def trace_only_config() -> Any:
    """The settings with which a profile can be exported, and has no events in Python."""
    return reach("torch._C._profiler._ExperimentalConfig")(trace_only=True)
