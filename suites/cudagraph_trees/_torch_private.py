"""The undocumented torch names that this suite uses. No other module of the suite looks one up.

The documented API of CUDA graph trees consists of `torch.compile(mode="reduce-overhead")`, the backend "cudagraphs" and
`torch.compiler.cudagraph_mark_step_begin`. None of them reports whether a graph was recorded, replayed, or skipped and
why, so a device that never replayed would pass every case. The cases therefore observe the tree manager (which method
ran: warm-up, recording or replay), a counter and a log, and set inductor's configuration. A case that needs a name that
the torch release lacks is skipped, with the name in the reason.
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
    """Return the module of the trees: manager, nodes, generations. It can be imported without a GPU."""
    return reach("torch._inductor.cudagraph_trees")


def utilities(name: str) -> Any:
    """Return a function or class of the decision code that trees, inductor and the backend "cudagraphs" share."""
    return reach(f"torch._inductor.cudagraph_utils.{name}")


def filled(name: str, newer: dict[str, Any], **values: Any) -> Any:
    """Return a dataclass of the decision code with these values, and those of `newer` that the release knows."""
    kind = utilities(name)
    fields = {field.name for field in dataclasses.fields(kind)}
    return kind(**values, **{field: value for field, value in newer.items() if field in fields})


def reset_trees() -> None:
    """Drop the managers of this thread, even if other threads have already dropped their managers.

    The end of a reset disables a table that all threads share, and the reset of the next thread asserts that the table
    is enabled (`reset_cudagraph_trees`, `_remove_cached_tensor`). Creating a manager enables it.
    """
    reach("torch._C._set_cached_tensors_enabled")(True)
    trees().reset_cudagraph_trees()


def manager_class() -> Any:
    """Return the class whose methods `run_eager`, `record_function` and `execute_node` warm up, record and replay."""
    return reach("torch._inductor.cudagraph_trees.CUDAGraphTreeManager")


def manager(device: torch.device) -> Any:
    """Return the manager of a device's trees in this thread, or None if there is none. Do not create one."""
    get = reach("torch._inductor.cudagraph_trees.get_manager")
    return get(device.index or 0, create_if_none_exists=False)


def descendants(device: torch.device) -> list[int]:
    """Return the number of recordings below each root of the device's trees; an empty list without roots."""
    found = manager(device)
    return [] if found is None else [root.num_descendants() for root in found.get_roots()]


def generation() -> int:
    """Return the generation to which a call would belong now. Outputs of earlier generations may be overwritten."""
    current: int = manager_class().get_curr_generation()
    return current


def opaque_types() -> tuple[type, Callable[..., None] | None]:
    """Return the base class of opaque objects, whose contents only operators read, and the function that registers one.

    This is called when operators are defined, where a case cannot be skipped. If the torch release has no opaque
    objects, the function is None.
    """
    try:
        base: type = importlib.import_module("torch._opaque_base").OpaqueBase
        register: Callable[..., None] = importlib.import_module("torch._library.opaque_object").register_opaque_type
    except (ImportError, AttributeError):
        return object, None
    return base, register


def skips() -> int:
    """Return the number of graphs skipped since the process started, from inductor's counter."""
    found: int = reach("torch._dynamo.utils.counters")["inductor"]["cudagraph_skips"]
    return found


@contextmanager
def messages(level: int) -> Iterator[list[str]]:
    """Yield the CUDA graph log messages of the block from that level on: of the decision code, trees and partitioner.

    The messages go to no other handler, and levels and handlers are restored at the end.
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
    """Return a context in which `torch._inductor.config` has these settings.

    Skip the case if torch lacks one of them.
    """
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
    """Return a context in which `torch._dynamo.config` has these settings. Skip the case if torch lacks one of them."""
    module: Any = reach("torch._dynamo.config")
    for name in settings:
        if not hasattr(module, name):
            pytest.skip(f"torch {torch.__version__} has no setting {name} of dynamo")
    context: AbstractContextManager[None] = module.patch(**settings)
    return context


def override_cudagraphs(**directions: bool) -> Any:
    """Return a context manager and decorator that enables or disables CUDA graphs for the code traced in it."""
    return reach("torch._dynamo.override_cudagraphs")(**directions)


@contextmanager
def generated_modules_stay() -> Iterator[None]:
    """Restore inductor's generated modules in `sys.modules` at the end of the block.

    After a reset, the compiler loads the file of the same code as another module of the same name. Clearing the caches
    removes host kernels from `sys.modules`.
    """
    python, kernel = "torch._inductor.runtime.compile_tasks.", ".kernel"
    before = {name: module for name, module in sys.modules.items() if name.startswith(python) or name.endswith(kernel)}
    try:
        yield
    finally:
        sys.modules.update(before)


@contextmanager
def fresh_cache() -> Iterator[None]:
    """Use empty caches of compiled graphs in the block."""
    with generated_modules_stay(), reach("torch._inductor.utils.fresh_cache")():
        yield


#: Device and pool of the graph segments that existed before the case, because a graph with conditional nodes keeps its
#: own.
_earlier: frozenset[tuple[int, tuple[int, int]]] = frozenset()


def begin_case() -> None:
    """Exclude the segments of all existing pools from `graph_segments`."""
    global _earlier
    _earlier = frozenset()
    if torch.cuda.is_initialized():
        _earlier = frozenset(map(_pool, graph_segments()))


def graph_segments() -> list[dict[str, Any]]:
    """Return the allocator's segments that belong to graphs of this case, on all devices."""
    segments: list[dict[str, Any]] = torch.cuda.memory_snapshot()
    return [each for each in segments if tuple(each["segment_pool_id"]) != (0, 0) and _pool(each) not in _earlier]


def _pool(segment: dict[str, Any]) -> tuple[int, tuple[int, int]]:
    first, second = segment["segment_pool_id"]
    return segment["device"], (first, second)


def live_blocks_of_graphs() -> list[dict[str, Any]]:
    """Return the allocated blocks of the graphs' pools."""
    blocks = [block for segment in graph_segments() for block in segment["blocks"]]
    return [block for block in blocks if block["state"] == "active_allocated"]


def live_bytes_of_graphs() -> int:
    """Return the bytes in allocated blocks of the graphs' pools."""
    return sum(block["size"] for block in live_blocks_of_graphs())


def storage_reference(of: torch.Tensor, **options: Any) -> Any:
    """Return the weak reference by which trees watch the storage of an output."""
    return reach("torch._inductor.cudagraph_trees.StorageWeakRefWrapper")(of, **options)


def check_memory_pool(device: torch.device, pool: tuple[int, int], live: list[Any]) -> None:
    """Compare the allocations in a pool with the storages that are known to live there, as trees do."""
    reach("torch._inductor.cudagraph_trees.check_memory_pool")(device.index or 0, pool, live)


def storage_reference_of(storage: Any, **options: Any) -> Any:
    """Return the weak reference by which trees watch a storage."""
    return reach("torch._inductor.cudagraph_trees.StorageWeakRefWrapper")(storage, **options)


def history_is_recorded() -> bool:
    """Return whether the allocator records where memory is allocated."""
    found: bool = reach("torch._C._cuda_isHistoryEnabled")()
    return found


def described_inputs(inputs: list[Any]) -> str:
    """Return the description of the inputs of a graph in the log of a recording."""
    found: str = reach("torch._inductor.cudagraph_trees.format_inputs_log")(inputs)
    return found


def record_history(begins: bool) -> None:
    """Make the allocator record where memory is allocated, or stop it."""
    reach("torch.cuda.memory._record_memory_history")("all" if begins else None, stacks="python")


def recorded_history() -> Any:
    """Return a context in which the allocator records where memory is allocated, as while a graph is recorded."""
    return reach("torch._inductor.cudagraph_trees.enable_history_recording")()


def frames_of(tensor: torch.Tensor) -> list[dict[str, Any]]:
    """Return the stack that allocated the memory of a tensor, as the allocator has recorded it."""
    for segment in torch.cuda.memory_snapshot():
        for block in segment["blocks"]:
            if block["address"] == tensor.data_ptr():
                return list(block.get("frames", []))
    raise LookupError(tensor.data_ptr())


def block_addresses(pool: tuple[int, int], **options: bool) -> list[int]:
    """Return the addresses of the allocated blocks of a pool, or with `live_only=False` of all blocks."""
    found: list[int] = reach("torch._inductor.cudagraph_trees.get_block_addrs")(pool, **options)
    return found
