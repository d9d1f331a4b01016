"""The names of torch, undocumented, that this suite depends on. Nothing else in the suite reaches for one.

CUDA graph trees, and programs that do as they do, put a pool back to how it was after a capture: torch has no public
interface to that, nor to sending a thread's allocations to a pool that a graph owns. A release, or a build, that lacks
a name makes the case *skipped*, with the name in the reason, not failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from suites.reaching import reach

PoolId = tuple[int, int]


def checkpoint(device: int, pool: PoolId) -> object:
    """The state of a pool's blocks: which are given out, which are free."""
    state: object = reach("torch._C._cuda_getCheckpointState")(device, pool)
    return state


def restore(
    device: int,
    state: object,
    stale: Sequence[torch.UntypedStorage] = (),
    adopt: Sequence[torch.UntypedStorage] = (),
) -> None:
    """Put a pool back to a state: blocks given out then are given out again, others are free.

    `stale` are storages that live in blocks given out since; they give nothing back when they go. `adopt` are storages
    that look at blocks given out again; when they go, the blocks are free.
    """
    reach("torch._C._cuda_setCheckpointPoolState")(
        device, state, [each._cdata for each in stale], [each._cdata for each in adopt]
    )


def holds_exactly(device: int, pool: PoolId, addresses: Iterable[int]) -> bool:
    """Whether the blocks that a pool has given out are those at the addresses, no more and no fewer."""
    return bool(reach("torch._C._cuda_checkPoolLiveAllocations")(device, pool, set(addresses)))


def give_back(address: int) -> None:
    """Free the block at an address, of which no tensor will."""
    reach("torch._C._cuda_cudaCachingAllocator_raw_delete")(address)


def storage_at(address: int, device: torch.device, nbytes: int) -> torch.UntypedStorage:
    """A storage that looks at memory and does not own it."""
    storage: torch.UntypedStorage = reach("torch._C._construct_storage_from_data_pointer")(address, device, nbytes)
    return storage


def owns_its_memory(storage: torch.UntypedStorage) -> bool:
    """Whether a storage gives its block back to the allocator when it goes."""
    return bool(reach("torch._C._has_Standard_Deleter")(storage._cdata))


@contextmanager
def this_threads_allocations(device: int, pool: PoolId) -> Iterator[None]:
    """A block in which what the calling thread allocates comes from a pool, which some graph keeps alive."""
    begin, end = reach("torch._C._cuda_beginAllocateCurrentThreadToPool"), reach("torch._C._cuda_endAllocateToPool")
    release = reach("torch._C._cuda_releasePool")
    begin(device, pool)
    try:
        yield
    finally:
        end(device, pool)
        release(device, pool)
