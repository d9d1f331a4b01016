"""The undocumented torch names that this suite uses. No other module of the suite looks one up.

CUDA graph trees, and similar programs, restore a pool to its state after a capture. torch has no public API for that,
and none that directs a thread's allocations to a graph's pool. A case that needs a name that the torch release or build
lacks is skipped, with the name in the reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from suites.reaching import reach

PoolId = tuple[int, int]


def checkpoint(device: int, pool: PoolId) -> object:
    """Return the state of a pool's blocks, allocated and free."""
    state: object = reach("torch._C._cuda_getCheckpointState")(device, pool)
    return state


def restore(
    device: int,
    state: object,
    stale: Sequence[torch.UntypedStorage] = (),
    adopt: Sequence[torch.UntypedStorage] = (),
) -> None:
    """Restore a pool to a state: the blocks allocated in it are allocated again, and all others are free.

    `stale` are storages in blocks that were allocated since; they no longer free anything. `adopt` are storages in
    blocks that are allocated again; they free the blocks when they are deleted.
    """
    reach("torch._C._cuda_setCheckpointPoolState")(
        device, state, [each._cdata for each in stale], [each._cdata for each in adopt]
    )


def holds_exactly(device: int, pool: PoolId, addresses: Iterable[int]) -> bool:
    """Return whether the addresses are exactly those of the pool's allocated blocks."""
    return bool(reach("torch._C._cuda_checkPoolLiveAllocations")(device, pool, set(addresses)))


def give_back(address: int) -> None:
    """Free the block at an address. No tensor may own it."""
    reach("torch._C._cuda_cudaCachingAllocator_raw_delete")(address)


def storage_at(address: int, device: torch.device, nbytes: int) -> torch.UntypedStorage:
    """Return a storage over memory that it does not own."""
    storage: torch.UntypedStorage = reach("torch._C._construct_storage_from_data_pointer")(address, device, nbytes)
    return storage


def owns_its_memory(storage: torch.UntypedStorage) -> bool:
    """Return whether a storage frees its block when it is deleted."""
    return bool(reach("torch._C._has_Standard_Deleter")(storage._cdata))


@contextmanager
def this_threads_allocations(device: int, pool: PoolId) -> Iterator[None]:
    """Make the calling thread allocate from a pool that a graph keeps alive in the block."""
    begin, end = reach("torch._C._cuda_beginAllocateCurrentThreadToPool"), reach("torch._C._cuda_endAllocateToPool")
    release = reach("torch._C._cuda_releasePool")
    begin(device, pool)
    try:
        yield
    finally:
        end(device, pool)
        release(device, pool)
