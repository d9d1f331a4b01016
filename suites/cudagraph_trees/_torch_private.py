"""The names of torch, undocumented, that this suite depends on. Nothing else reaches for one.

What is documented of CUDA graph trees is `torch.compile(mode="reduce-overhead")`, the back end "cudagraphs" and
`torch.compiler.cudagraph_mark_step_begin`. None of them tells whether a graph was recorded or replayed, or skipped and
why: without that, a device that never replayed would pass every case. So the cases look at the manager of the trees
(which function ran warm-up, recording or replay), at a counter and at a log; and they set what inductor reads from its
settings. A release that lacks a name makes the case *skipped*, with the name in the reason.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any

import pytest
import torch

from suites.reaching import reach


def trees() -> ModuleType:
    """The module of the trees: manager, nodes, generations. It can be imported where there is no GPU."""
    return reach("torch._inductor.cudagraph_trees")


def utilities(name: str) -> Any:
    """One of the plain decisions that trees, inductor and the back end "cudagraphs" share."""
    return reach(f"torch._inductor.cudagraph_utils.{name}")


def filled(name: str, newer: dict[str, Any], **values: Any) -> Any:
    """A dataclass of the decisions with these values, and of `newer` those that the release has a field for."""
    kind = utilities(name)
    fields = {field.name for field in dataclasses.fields(kind)}
    return kind(**values, **{field: value for field, value in newer.items() if field in fields})


def reset_trees() -> None:
    """Drop the managers of this thread, whatever other threads have dropped.

    The end of a reset switches a table off that all threads share, and the reset of the next thread asserts that it is
    on (`reset_cudagraph_trees`, `_remove_cached_tensor`). A manager that is made switches it on.
    """
    reach("torch._C._set_cached_tensors_enabled")(True)
    trees().reset_cudagraph_trees()


def manager_class() -> Any:
    """The class whose methods `run_eager`, `record_function` and `execute_node` warm up, record and replay."""
    return reach("torch._inductor.cudagraph_trees.CUDAGraphTreeManager")


def manager(device: torch.device) -> Any:
    """The manager of a device's trees in this thread, or None while there is none; none is made."""
    get = reach("torch._inductor.cudagraph_trees.get_manager")
    return get(device.index or 0, create_if_none_exists=False)


def descendants(device: torch.device) -> list[int]:
    """How many recordings hang below each root of the device's trees; no root, an empty list."""
    found = manager(device)
    return [] if found is None else [root.num_descendants() for root in found.get_roots()]


def generation() -> int:
    """The generation that a call would belong to now: outputs of earlier ones may be overwritten."""
    current: int = manager_class().get_curr_generation()
    return current


def opaque_types() -> tuple[type, Callable[..., None] | None]:
    """The base of classes whose objects only operators look into, and what registers one.

    Asked for when operators are defined, where no case can be skipped: a torch without them has None for the second.
    """
    try:
        base: type = importlib.import_module("torch._opaque_base").OpaqueBase
        register: Callable[..., None] = importlib.import_module("torch._library.opaque_object").register_opaque_type
    except (ImportError, AttributeError):
        return object, None
    return base, register


def skips() -> int:
    """How many graphs were skipped since the process began, by the counter that inductor keeps."""
    found: int = reach("torch._dynamo.utils.counters")["inductor"]["cudagraph_skips"]
    return found


@contextmanager
def messages(level: int) -> Iterator[list[str]]:
    """What is logged of CUDA graphs in the block, from that level on: by the decisions, the trees and the partition.

    It is heard here and nowhere else, and levels and handlers are put back.
    """
    heard: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    listener = Listener(level)
    loggers = [utilities("cudagraphs_log"), reach("torch._inductor.cudagraph_trees.log")]
    scheduler = getattr(reach("torch._inductor.scheduler"), "cudagraphs_log", None)
    loggers += [scheduler] if scheduler is not None else []
    different = list({id(logger): logger for logger in loggers}.values())
    before = [(logger, logger.level, logger.propagate, logger.handlers[:]) for logger in different]
    for logger in different:
        logger.setLevel(level)
        logger.propagate = False
        logger.handlers[:] = [listener]
    try:
        yield heard
    finally:
        for logger, old, propagate, handlers in before:
            logger.setLevel(old)
            logger.propagate = propagate
            logger.handlers[:] = handlers


def config(settings: dict[str, Any]) -> AbstractContextManager[None]:
    """A context in which `torch._inductor.config` has these settings; skips the case if torch lacks one of them."""
    module: Any = reach("torch._inductor.config")
    for name in settings:
        found: Any = module
        for step in name.split("."):
            if not hasattr(found, step):
                pytest.skip(f"torch {torch.__version__} has no setting {name} of inductor")
            found = getattr(found, step)
    context: AbstractContextManager[None] = module.patch(settings)
    return context


def dynamo_config(**settings: Any) -> AbstractContextManager[None]:
    """A context in which `torch._dynamo.config` has these settings; skips the case if torch lacks one of them."""
    module: Any = reach("torch._dynamo.config")
    for name in settings:
        if not hasattr(module, name):
            pytest.skip(f"torch {torch.__version__} has no setting {name} of dynamo")
    context: AbstractContextManager[None] = module.patch(**settings)
    return context


def override_cudagraphs(**directions: bool) -> Any:
    """A context manager and decorator that switches CUDA graphs on or off for what is traced in it."""
    return reach("torch._dynamo.override_cudagraphs")(**directions)


def unsafe_tag() -> Any:
    """The tag of operators that cannot be captured."""
    return reach("torch._C.Tag.cudagraph_unsafe")


def generated_code(work: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What `work` returns, and the sources that inductor generated meanwhile."""
    result, sources = reach("torch._inductor.utils.run_and_get_code")(work)
    return result, list(sources)


@contextmanager
def generated_modules_stay() -> Iterator[None]:
    """A block after which code that inductor had generated before is in `sys.modules` as it was.

    A compiler that was reset loads the file of the same code again, as another module of the same name. Emptied caches
    take kernels for the host out.
    """
    python, kernel = "torch._inductor.runtime.compile_tasks.", ".kernel"
    before = {name: module for name, module in sys.modules.items() if name.startswith(python) or name.endswith(kernel)}
    try:
        yield
    finally:
        sys.modules.update(before)


@contextmanager
def fresh_cache() -> Iterator[None]:
    """A block in which the caches of compiled graphs are empty."""
    with generated_modules_stay(), reach("torch._inductor.utils.fresh_cache")():
        yield


#: Device and pool of the graphs' segments before the case: a graph with conditional nodes leaves its own.
_earlier: frozenset[tuple[int, tuple[int, int]]] = frozenset()


def begin_case() -> None:
    """From now on, `graph_segments` has no segments of pools that there are now."""
    global _earlier
    _earlier = frozenset()
    if torch.cuda.is_initialized():
        _earlier = frozenset(map(_pool, graph_segments()))


def graph_segments() -> list[dict[str, Any]]:
    """The allocator's segments that belong to graphs of the case, on all devices."""
    segments: list[dict[str, Any]] = torch.cuda.memory_snapshot()
    return [each for each in segments if tuple(each["segment_pool_id"]) != (0, 0) and _pool(each) not in _earlier]


def _pool(segment: dict[str, Any]) -> tuple[int, tuple[int, int]]:
    first, second = segment["segment_pool_id"]
    return segment["device"], (first, second)


def live_bytes_of_graphs() -> int:
    """Bytes in blocks of graphs' pools that something holds."""
    return sum(
        block["size"]
        for segment in graph_segments()
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    )


def storage_reference(of: torch.Tensor, **options: Any) -> Any:
    """The weak reference by which trees watch the storage of an output."""
    return reach("torch._inductor.cudagraph_trees.StorageWeakRefWrapper")(of, **options)
