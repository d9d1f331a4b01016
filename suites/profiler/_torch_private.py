"""The names of torch, undocumented, that this suite depends on. Nothing else in the suite reaches for one.

A release that lacks a name makes the case *skipped*, with the name in the reason, not failed: the contract under
test is the tree, not where torch keeps it.
"""

from __future__ import annotations

from typing import Any

import torch

from suites.reaching import below, reach


def event_roots(profile: torch.profiler.profile) -> list[Any]:
    """The root events of a profile that has ended, oldest first."""
    return below(profile, "profiler.kineto_results.experimental_event_tree")()


def event_tag(event: Any) -> str:
    """What sort of event it is: `TorchOp`, `Allocation`, `OutOfMemory`, `PyCall`, `PyCCall`, `Kineto`, …

    From the type of its extra fields: the event's own tag has no Python name for some sorts.
    """
    return type(below(event, "extra_fields")).__name__.removeprefix("_ExtraFields_")


def extra(event: Any, path: str) -> Any:
    """A field that only events of this sort have, such as `alloc_size` or `caller.file_name`."""
    return below(event, f"extra_fields.{path}")


def wrapper_tensor(kind: type[torch.Tensor], inner: torch.Tensor) -> Any:
    """A tensor of a subclass that has the shape, dtype and device of `inner`, and no memory of its own."""
    make = reach("torch.Tensor._make_wrapper_subclass")
    return make(kind, inner.shape, dtype=inner.dtype, device=inner.device)


def profiler_enabled() -> bool:
    """Whether a profiler is recording on this thread."""
    return reach("torch.autograd._profiler_enabled")()
