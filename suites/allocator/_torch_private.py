"""The undocumented or release-dependent torch names that this suite uses. No other module of the suite looks one up.

A case that needs a name that the torch release lacks is skipped, with the name in the reason. Scripts for child
processes contain the names that they use (`torch._C._accelerator_setAllocatorSettings`).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

from suites.reaching import below, reach

from .pools import spared


def clear_workspaces() -> None:
    """Free the cuBLAS workspaces."""
    reach("torch._C._cuda_clearCublasWorkspaces")()


def resize_at(storage: torch.UntypedStorage, size: int, address: int) -> None:
    """Resize an empty storage to that many bytes at the given address, from cached memory."""
    below(storage, "_resize_with_addr_")(size, address)


def managed_memory(device: torch.device) -> AbstractContextManager[torch.cuda.MemPool]:
    """Allocate from cudaMallocManaged in this thread.

    Skip the case if the package that torch needs for it is missing.
    """
    pytest.importorskip("cuda.bindings", reason="torch.cuda._use_uvm needs the package cuda-python")
    context: AbstractContextManager[torch.cuda.MemPool] = reach("torch.cuda.memory._use_uvm")(device)
    return context


def pool_snapshot(pool: torch.cuda.MemPool, *, include_traces: bool) -> dict[str, Any]:
    """Return a pool's segments and its recorded trace; `MemPool.snapshot` returns only the segments."""
    found: dict[str, Any] = reach("torch._C._cuda_memorySnapshot")((*spared(*pool.id), include_traces))
    return found


def leak_check(name: str) -> AbstractContextManager[object]:
    """Return the leak check from torch's own tests.

    It raises RuntimeError if more memory is allocated after its block than before.
    """

    class Case:
        """The interface that the check requires of a test."""

        def id(self) -> str:
            return name

        def before_cuda_memory_leak_check(self) -> None:
            pass

    kind = reach("torch.testing._internal.common_utils.CudaMemoryLeakCheck")
    reach("torch.testing._internal.common_cuda")  # its constructor imports this, with packages that may warn
    check: AbstractContextManager[object] = kind(Case())
    return check


def own_allocator(allocator: torch.cuda.memory.CUDAPluggableAllocator) -> Any:
    """Return the allocator object that `MemPool` accepts."""
    return below(allocator, "allocator")()
