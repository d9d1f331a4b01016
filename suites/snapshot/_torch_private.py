"""The names of torch, undocumented, that this suite depends on. Nothing else in the suite reaches for one.

torch has no public interface to what is recorded of allocations, nor to the pages and texts made of it: the underscored
names below are what its guide to memory snapshots tells people to call. A release, or a build, that lacks a name makes
the case *skipped*, with the name in the reason, not failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from suites.reaching import reach

VIZ = "torch.cuda._memory_viz"
CYCLES = "torch.utils.viz._cycles"
MEMORY = "torch.cuda.memory"

Stack = list[dict[str, Any]]


def module(path: str) -> ModuleType:
    """A module of torch's, for a case that puts something in the place of one of its names."""
    found: ModuleType = reach(path)
    return found


# What is recorded of allocations


@contextmanager
def recorded(enabled: str = "all", **options: Any) -> Iterator[None]:
    """A block in which allocations on GPUs are recorded, and after which they are not, and nothing is kept of it."""
    record = reach(f"{MEMORY}._record_memory_history")
    clear_blas_workspaces()
    torch.cuda.empty_cache()
    try:
        record(enabled, **options)
        yield
    finally:
        record(None)  # also where it could not begin: callbacks were registered by then


def record(enabled: str | None = "all", **options: Any) -> None:
    """Begin to record, go on in another way, or end it. For use within `recorded`."""
    reach(f"{MEMORY}._record_memory_history")(enabled, **options)


def snapshot(**options: Any) -> dict[str, Any]:
    """The segments of all GPUs, and what was recorded."""
    found: dict[str, Any] = reach(f"{MEMORY}._snapshot")(**options)
    return found


def dump_snapshot(path: str) -> None:
    """Write what `snapshot` gives to a file, as a pickle."""
    reach(f"{MEMORY}._dump_snapshot")(path)


def allocation_traceback(address: int) -> Stack | None:
    """The stack that allocated the live block at that address; None if it was not recorded."""
    found: Stack | None = reach(f"{MEMORY}._allocation_traceback")(address)
    return found


def set_metadata(text: str) -> None:
    """The text that allocations are marked with from now on; the empty text marks none."""
    reach(f"{MEMORY}._set_memory_metadata")(text)


def metadata() -> str:
    """The text that allocations are marked with."""
    return str(reach(f"{MEMORY}._get_memory_metadata")())


def clear_blas_workspaces() -> None:
    """Give back what cuBLAS took for itself at its first use, so that `empty_cache` finds it."""
    reach("torch._C._cuda_clearCublasWorkspaces")()


# Stacks


def stack_here(*, python: bool = True, script: bool = True, cpp: bool = False) -> Stack:
    """The calls that led here, the innermost first, as snapshots have them."""
    return symbolised([gathered(python=python, script=script, cpp=cpp)])[0]


def gathered(*, python: bool = True, script: bool = True, cpp: bool = False) -> Any:
    """The same, not yet made readable."""
    return reach("torch._C._profiler.gather_traceback")(python, script, cpp)


def symbolised(gathered: Sequence[Any]) -> list[Stack]:
    """Stacks made readable."""
    found: list[Stack] = reach("torch._C._profiler.symbolize_tracebacks")(list(gathered))
    return found


def with_fx_nodes(snapshot: dict[str, Any]) -> dict[str, Any]:
    """A snapshot whose frames in code that torch.fx made say which node of the graph they are."""
    found: dict[str, Any] = reach("torch._utils._augment_memory_snapshot_stack_traces")(snapshot)
    return found


@contextmanager
def fx_metadata_kept() -> Iterator[None]:
    """A block in which code that torch.fx makes remembers its nodes. What was remembered is forgotten after it."""
    config, registry = reach("torch.fx.experimental._config"), reach("torch.fx.traceback._FX_METADATA_REGISTRY")
    before = dict(registry)
    try:
        with config.patch(enrich_profiler_metadata=True):
            yield
    finally:
        registry.clear()
        registry.update(before)


def graph_break() -> None:
    """Have the compiler begin another graph here."""
    reach("torch._dynamo.graph_break")()


# Pages and texts


def trace_plot(snapshot: Any, **options: Any) -> str:
    """A page of memory in use over time."""
    return str(reach(f"{VIZ}.trace_plot")(snapshot, **options))


def segment_plot(snapshot: Any, **options: Any) -> str:
    """A page of segments and what is in them over time."""
    return str(reach(f"{VIZ}.segment_plot")(snapshot, **options))


def profile_plot(profile: torch.profiler.profile, **options: Any) -> str:
    """A page of a profile's memory over time."""
    return str(reach(f"{VIZ}.profile_plot")(profile, **options))


def segsum(snapshot: Any) -> str:
    """A text: how segments are filled."""
    return str(reach(f"{VIZ}.segsum")(snapshot))


def trace(snapshot: Any) -> str:
    """A text: what happened, as a program."""
    return str(reach(f"{VIZ}.trace")(snapshot))


def flame_lines(kind: str, *snapshots: Any) -> str:
    """What would be drawn as a flame graph, `segments`, `memory` or `compare`: a line a stack, and its bytes."""
    return str(reach(f"{VIZ}.{kind}")(*snapshots, format_flamegraph=lambda lines: lines))


def flame_graph(lines: str, script: str) -> str:
    """What a program that draws flame graphs makes of such lines."""
    return str(reach(f"{VIZ}.format_flamegraph")(lines, script))


# Cycles


def observe_garbage(observer: Callable[[list[Any]], object]) -> Callable[[], None]:
    """Have the observer called with what a collection finds; returns what ends that."""
    found: Callable[[], None] = reach(f"{CYCLES}.observe_garbage")(observer)
    return found


def observe_tensor_cycles(callback: Callable[[str], object]) -> Callable[[], None]:
    """Have a page of each cycle with a tensor on a GPU in it; returns what ends that."""
    found: Callable[[], None] = reach(f"{CYCLES}.observe_tensor_cycles")(callback)
    return found


def warn_tensor_cycles() -> Callable[[], None]:
    """Have torch warn of such cycles; returns what ends that."""
    found: Callable[[], None] = reach(f"{CYCLES}.warn_tensor_cycles")()
    return found


def cycle_graph(
    objects: Sequence[Any], *, context: Callable[[Any], str | None], filter: Callable[[Any], bool]
) -> list[Any]:
    """The objects that lead to one that `filter` wants, as nodes with `label`, `context`, `root`, `referrents`."""
    found: list[Any] = reach(f"{CYCLES}.create_graph")(objects, context=context, filter=filter)
    return found


def cycle_dot(nodes: Sequence[Any]) -> str:
    """Nodes in the language of Graphviz."""
    return str(reach(f"{CYCLES}.to_dot")(nodes))


def cycle_page(nodes: Sequence[Any]) -> str:
    """Nodes as a page."""
    return str(reach(f"{CYCLES}.to_html")(nodes))
