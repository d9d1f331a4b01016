"""The undocumented torch names that this suite uses. No other module of the suite looks one up.

A case that needs a name that the torch release lacks is skipped, with the name in the reason, because the cases test
the tree and not where torch keeps it.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from suites.reaching import below, reach


def event_roots(profile: torch.profiler.profile) -> list[Any]:
    """Return the root events of a finished profile, oldest first."""
    return below(profile, "profiler.kineto_results.experimental_event_tree")()


def event_tag(event: Any) -> str:
    """Return the kind of an event: `TorchOp`, `Allocation`, `OutOfMemory`, `PyCall`, `PyCCall`, `Kineto`, …

    It is derived from the type of the event's extra fields, because the event's own tag has no Python name for some
    kinds.
    """
    return type(below(event, "extra_fields")).__name__.removeprefix("_ExtraFields_")


def extra(event: Any, path: str) -> Any:
    """Return a field specific to the event's kind, such as `alloc_size` or `caller.file_name`."""
    return below(event, f"extra_fields.{path}")


def wrapper_tensor(kind: type[torch.Tensor], inner: torch.Tensor) -> Any:
    """Return a wrapper subclass tensor with the shape, dtype and device of `inner`, and without memory."""
    make = reach("torch.Tensor._make_wrapper_subclass")
    return make(kind, inner.shape, dtype=inner.dtype, device=inner.device)


def profiler_enabled() -> bool:
    """Return whether a profiler is recording on this thread."""
    return reach("torch.autograd._profiler_enabled")()


def python_flag() -> bool:
    """Return whether torch's Python code, such as compiled functions, finds a profiler that is recording."""
    return reach("torch.autograd.profiler._is_profiler_enabled") is True


def verbose_config(**more: bool) -> Any:
    """Return the settings that `with_stack` needs to give events a stack, with the further settings `more`."""
    return reach("torch._C._profiler._ExperimentalConfig")(verbose=True, **more)


def kineto_events(profile: Any) -> list[Any]:
    """Return the events that a finished profile recorded, before they become `FunctionEvent` objects."""
    found: list[Any] = below(profile, "profiler.kineto_results.events")()
    return found


def trace_start_ns(profile: Any) -> int:
    """Return the time at which a finished profile began, on the clock of the events."""
    found: int = below(profile, "profiler.kineto_results.trace_start_ns")()
    return found


def trace_only_config() -> Any:
    """Return settings with which a profile can be exported but has no events in Python."""
    return reach("torch._C._profiler._ExperimentalConfig")(trace_only=True)


def evaluation(prof: Any) -> Any:
    """Return torch's analysis of a finished profile: own times, queue depths and idle times of its events."""
    return reach("torch.profiler._utils.BasicEvaluation")(prof)


def event_key(event: Any) -> Any:
    """Return the key under which `evaluation` has the metrics of an event."""
    return reach("torch.profiler._utils.EventKey")(event)


def interval(start: int, end: int) -> Any:
    """Return a span of time on the device, in nanoseconds."""
    return reach("torch.profiler._utils.Interval")(start, end)


def source_code_location(event: Any) -> str:
    """Return the nearest frame of a Python file around an event."""
    found: str = reach("torch.profiler._utils.source_code_location")(event)
    return found


def add_nodes_to_trace(trace: dict[str, Any]) -> None:
    """Add the names and stacks of the `torch.fx` nodes that ran the events to the events of a Chrome trace."""
    reach("torch.profiler._utils.map_recorded_events_to_aten_ops_with_stack_trace")(trace)


def marked_nodes() -> Any:
    """Return a context in which modules of `torch.fx` are compiled with marks for the profiler around their nodes."""
    return reach("torch.fx.experimental._config.patch")(enrich_profiler_metadata=True)


def registered_graphs() -> dict[str, dict[str, Any]]:
    """Return the nodes of each module of `torch.fx` that was compiled within `marked_nodes`, by its file name."""
    found: dict[str, dict[str, Any]] = reach("torch.fx.traceback._FX_METADATA_REGISTRY")
    return found


def replace_device_stopped(monkeypatch: pytest.MonkeyPatch, stopped: Callable[[], bool]) -> None:
    """Replace torch's query whether collection on the device has stopped early, as it does if buffers are full."""
    reach("torch.autograd._is_kineto_stopped")
    monkeypatch.setattr(torch.autograd, "_is_kineto_stopped", stopped)


def add_compiled_file(monkeypatch: pytest.MonkeyPatch, file: str) -> None:
    """Make torch treat this file as one that its compiler has generated."""
    cache = reach("torch._inductor.codecache.PyCodeCache")
    module = types.ModuleType("generated")
    module.__file__ = file
    monkeypatch.setattr(cache, "modules", [module, types.ModuleType("without_a_file")])


def unregistered_device_type() -> Any:
    """Return a device type of which no profile has events."""
    return reach("torch.autograd.DeviceType.Meta")


def legacy_events(records: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the events that the legacy profiler makes from its records, which are one list per thread."""
    found: list[Any] = reach("torch.autograd.profiler_legacy._parse_legacy_records")(records)
    return found


def build_tree(events: Any) -> None:
    """Link the events of a list with the events in which they ran."""
    reach("torch.autograd.profiler_util.EventList._build_tree")(events)
