"""Pools and threads: `use_mem_pool` applies to the calling thread only."""

from __future__ import annotations

import gc
import threading

import pytest
import torch

from ..threads import together
from .limits import MIB, block, settle
from .pools import inside

pytestmark = [pytest.mark.requires(device="cuda"), pytest.mark.timeout(300)]

THREADS = 4


@pytest.mark.covers("test_cuda::TestMemPool::test_mempool_multithread")
def test_use_mem_pool_in_threads_gives_each_its_own_pool(device: torch.device) -> None:
    """Threads that concurrently use their own pools allocate only from these, and their tensors keep their values."""
    pools = [torch.cuda.MemPool() for _ in range(THREADS)]
    made: dict[int, list[torch.Tensor]] = {}

    def work(number: int) -> None:
        with torch.cuda.use_mem_pool(pools[number]):
            made[number] = [torch.full((MIB // 4,), number * 100 + each, device=device) for each in range(20)]

    together.run(THREADS, work)
    torch.cuda.synchronize(device)

    for number, tensors in made.items():
        assert all(inside(pool, x) == (each == number) for each, pool in enumerate(pools) for x in tensors)
        assert all(bool((x == number * 100 + each).all()) for each, x in enumerate(tensors))
    del tensors
    made.clear()


@pytest.mark.covers("test_cuda::TestMemPool::test_mempool_ctx_multithread")
def test_use_mem_pool_does_not_serve_other_threads(device: torch.device) -> None:
    """Allocations of other threads do not come from this thread's pool; this thread's allocations do.

    Each thread that uses a pool has its own, because torch raises for a pool that another thread is using.
    """
    pool = torch.cuda.MemPool()
    others = {number: torch.cuda.MemPool() for number in range(1, THREADS, 2)}

    def elsewhere(number: int) -> torch.Tensor:
        if number in others:
            with torch.cuda.use_mem_pool(others[number]):
                return block(device, MIB)
        return block(device, MIB)

    with torch.cuda.use_mem_pool(pool):
        theirs = together.run(THREADS, elsewhere)
        mine = block(device, MIB)

    assert inside(pool, mine)
    assert [inside(pool, x) for x in theirs] == [False] * THREADS  # type: ignore[arg-type]
    for owner, other in others.items():
        assert [inside(other, x) for x in theirs] == [each == owner for each in range(THREADS)]  # type: ignore[arg-type]
    del theirs, mine


# torch 2.11 aborts if a pool is dropped while another thread allocates in a pool: synchronize_and_free_events in
# c10/cuda/CUDACachingAllocator.cpp mistakes that for a capture.
@pytest.mark.requires(torch=">=2.13")
@pytest.mark.covers("test_cuda::TestMemPool::test_mempool_emptycache_multithread")
def test_empty_cache_from_threads_with_mempools_is_safe(device: torch.device) -> None:
    """Threads can concurrently allocate in pools, drop them and empty the cache, and all memory is freed."""
    gc.collect()
    settle(device)
    before = torch.cuda.memory_reserved(device)

    def work(number: int) -> bool:
        right = True
        for each in range(20):
            pool = torch.cuda.MemPool()
            with torch.cuda.use_mem_pool(pool):
                x = torch.full((MIB // 4,), number * 100 + each, device=device)
            torch.cuda.empty_cache()
            right = right and bool((x == number * 100 + each).all())
            del x, pool
        return right

    assert together.run(THREADS, work) == [True] * THREADS
    settle(device)
    assert torch.cuda.memory_reserved(device) == before


@pytest.mark.covers("test_cuda::TestMemPool::test_multi_threads_alloc_in_same_order")
def test_mempool_shared_by_threads_gives_distinct_memory(device: torch.device) -> None:
    """A pool that several threads use in turn gives each of their tensors separate memory.

    The same requests in the same order, after everything is freed, get the same addresses.
    """
    pool = torch.cuda.MemPool()

    def round_of_requests() -> list[int]:
        kept: list[torch.Tensor] = []

        def one() -> None:
            with torch.cuda.use_mem_pool(pool):
                kept.append(block(device, 3 * MIB))

        for _ in range(THREADS):
            thread = threading.Thread(target=one)
            thread.start()
            thread.join()
        assert all(inside(pool, x) for x in kept)
        return [x.data_ptr() for x in kept]

    first = round_of_requests()
    second = round_of_requests()

    assert len(set(first)) == THREADS
    assert first == second
