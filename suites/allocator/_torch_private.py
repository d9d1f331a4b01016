"""The names of torch, undocumented or not in every release, that this suite depends on. Nothing else reaches for one.

A release that lacks a name makes the case *skipped*, with the name in the reason, not failed. What scripts of other
processes use (`torch._C._accelerator_setAllocatorSettings`) is in them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

from suites.reaching import below, reach

from .pools import spared


def attach_out_of_memory_observer(observer: Callable[[int, int, int, int], None]) -> None:
    """Have it called with device, bytes asked for, bytes torch may have and bytes free, for good."""
    reach("torch._C._cuda_attach_out_of_memory_observer")(observer)


def clear_workspaces() -> None:
    """Free the workspaces of cuBLAS."""
    reach("torch._C._cuda_clearCublasWorkspaces")()


def resize_at(storage: torch.UntypedStorage, size: int, address: int) -> None:
    """Give an empty storage that many bytes at that very address, of memory that is cached."""
    below(storage, "_resize_with_addr_")(size, address)


def managed_memory(device: torch.device) -> AbstractContextManager[torch.cuda.MemPool]:
    """Allocations of this thread come from cudaMallocManaged; skips without the package that torch needs for it."""
    pytest.importorskip("cuda.bindings", reason="torch.cuda._use_uvm needs the package cuda-python")
    context: AbstractContextManager[torch.cuda.MemPool] = reach("torch.cuda.memory._use_uvm")(device)
    return context


def pool_snapshot(pool: torch.cuda.MemPool, *, include_traces: bool) -> dict[str, Any]:
    """A pool's segments, and what was recorded: `MemPool.snapshot` gives the segments alone."""
    found: dict[str, Any] = reach("torch._C._cuda_memorySnapshot")((*spared(*pool.id), include_traces))
    return found


def leak_check(name: str) -> AbstractContextManager[object]:
    """The check that torch's own tests use: it raises RuntimeError when its block leaves more allocated than before."""

    class Case:
        """What the check asks of a test."""

        def id(self) -> str:
            return name

        def before_cuda_memory_leak_check(self) -> None:
            pass

    check: AbstractContextManager[object] = reach("torch.testing._internal.common_utils.CudaMemoryLeakCheck")(Case())
    return check


def own_allocator(allocator: torch.cuda.memory.CUDAPluggableAllocator) -> Any:
    """What `MemPool` takes of an allocator of ours."""
    return below(allocator, "allocator")()
