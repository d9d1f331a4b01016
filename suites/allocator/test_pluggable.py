"""Pluggable allocators: loaded from a library, and used by a pool or by all allocations."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch

from . import _torch_private as private
from .answers import ask
from .counting import Counting, build
from .limits import MIB, block, settle
from .pools import segments

pytestmark = [pytest.mark.requires(cpp_compiler=True), pytest.mark.timeout(300)]

FOR_GPUS = pytest.mark.requires(any=[{"cuda": True}, {"rocm": True}])
ON_CUDA = pytest.mark.requires(device="cuda")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("counting"))


@pytest.fixture
def counting(library: Path) -> Counting:
    return Counting(library)


def pool_of(counting: Counting, **options: bool) -> torch.cuda.MemPool:
    return torch.cuda.MemPool(private.own_allocator(counting.for_torch()), **options)


@pytest.mark.keeps("ctypes never closes a library that it has opened", host="64KiB")
def test_cudapluggableallocator_refuses_a_missing_library_or_function(library: Path) -> None:
    """A missing library raises OSError with its name, and a missing function raises AttributeError with its name."""
    with pytest.raises(OSError, match="no_such_library"):
        torch.cuda.memory.CUDAPluggableAllocator("no_such_library.so", "counting_allocate", "counting_free")
    with pytest.raises(AttributeError, match="no_such_function"):
        torch.cuda.memory.CUDAPluggableAllocator(str(library), "no_such_function", "counting_free")
    with pytest.raises(AttributeError, match="no_such_function"):
        torch.cuda.memory.CUDAPluggableAllocator(str(library), "counting_allocate", "no_such_function")


@pytest.mark.requires(cuda=True)
def test_cudapluggableallocator_library_finds_the_cuda_runtime(counting: Counting) -> None:
    """In a process that has imported torch for CUDA, the library finds the runtime's functions.

    The library receives no requests, since it is not installed. This is also the control for the cases on a GPU.
    """
    assert counting.has_runtime()
    before = counting.requests, counting.returns, counting.held
    torch.cuda.empty_cache()
    block = torch.empty(1 << 24, dtype=torch.uint8, device="cuda" if torch.cuda.is_available() else "cpu")
    assert block.untyped_storage().nbytes() == 1 << 24
    assert (counting.requests, counting.returns, counting.held) == before


@FOR_GPUS
@pytest.mark.own_process
def test_change_current_allocator_before_the_first_allocation(library: Path) -> None:
    """The allocator can be replaced before the first allocation; then `get_allocator_backend` returns "pluggable"."""
    script = f"""
mine = torch.cuda.memory.CUDAPluggableAllocator({str(library)!r}, "counting_allocate", "counting_free")
before = torch.cuda.get_allocator_backend()
torch.cuda.memory.change_current_allocator(mine)
tell([before, torch.cuda.get_allocator_backend()])
"""
    assert ask(script) == ["native", "pluggable"]


@ON_CUDA
@pytest.mark.own_process
def test_change_current_allocator_serves_every_tensor(device: torch.device, library: Path) -> None:
    """The replaced allocator allocates and frees the memory of every tensor, and results are correct."""
    script = f"""
from pathlib import Path
from suites.allocator.counting import Counting
counting = Counting(Path({str(library)!r}))
torch.cuda.memory.change_current_allocator(counting.for_torch())
x = torch.arange(1000, device=DEVICE)
y = (x * 2).sum().item()
during = counting.requests, counting.held, counting.requests - counting.returns
del x
gc.collect()
tell([y, *during, counting.held, counting.requests - counting.returns])
"""
    result, requests, held, live, left, living = ask(script, device)

    assert result == 999_000
    assert requests >= 2
    assert held >= 8000
    assert left == held - 8000
    assert living == live - 1


@ON_CUDA
@pytest.mark.own_process
def test_change_current_allocator_refuses_to_replace_one_in_use(device: torch.device, library: Path) -> None:
    """After the first allocation, replacing the allocator raises RuntimeError, and live tensors are intact."""
    script = f"""
x = torch.arange(1000, device=DEVICE)
mine = torch.cuda.memory.CUDAPluggableAllocator({str(library)!r}, "counting_allocate", "counting_free")
error = failure(lambda: torch.cuda.memory.change_current_allocator(mine))
tell([error, torch.cuda.get_allocator_backend(), x.sum().item()])
"""
    error, back_end, total = ask(script, device)

    assert error.startswith("RuntimeError: ")
    assert "already initialized" in error
    assert back_end == "native"
    assert total == 499_500


@ON_CUDA
@pytest.mark.covers("test_cuda::TestMemPool::test_mempool_with_allocator")
def test_mempool_gets_its_segments_from_its_pluggable_allocator(device: torch.device, counting: Counting) -> None:
    """The allocator of a pool is called once per segment, not per tensor, and not for allocations outside the pool.

    The allocator gets each segment back once pool and tensors are freed.
    """
    pool = pool_of(counting)
    with torch.cuda.use_mem_pool(pool):
        kept = [torch.full((1000,), value, device=device) for value in range(10)]
    outside = block(device, 30 * MIB)

    assert counting.requests == 1
    assert counting.held == 2 * MIB == sum(segment["total_size"] for segment in segments(pool))
    assert all(bool((x == value).all()) for value, x in enumerate(kept))
    del kept, pool, outside
    gc.collect()
    settle(device)
    assert (counting.returns, counting.held) == (1, 0)


@ON_CUDA
@pytest.mark.covers("test_cuda::TestMemPool::test_mempool_empty_cache_inactive")
def test_mempool_returns_its_segments_to_its_allocator_when_freed(device: torch.device, counting: Counting) -> None:
    """`empty_cache` outside of the pool's context frees no memory of live tensors.

    Once tensors and pool are freed, the allocator has all segments back, and torch's totals are as before.
    """
    settle(device)
    before = torch.cuda.memory_reserved(device)
    pool = pool_of(counting)
    with torch.cuda.use_mem_pool(pool):
        x = torch.full((4 * MIB,), 7, dtype=torch.uint8, device=device)
        y = block(device, 40 * MIB)
    del y
    torch.cuda.empty_cache()
    assert bool((x == 7).all())
    assert counting.held >= 4 * MIB
    del x, pool
    gc.collect()
    settle(device)

    assert counting.returns == counting.requests
    assert counting.held == 0
    assert torch.cuda.memory_reserved(device) == before


@ON_CUDA
@pytest.mark.covers("test_cuda::TestMemPool::test_tensor_delete_after_allocator_delete")
def test_tensor_outlives_mempool_and_pluggable_allocator_object(device: torch.device, counting: Counting) -> None:
    """A tensor outlives its pool and the Python object of the pool's allocator: it is intact and correctly freed."""
    allocator = counting.for_torch()
    pool = torch.cuda.MemPool(private.own_allocator(allocator))
    with torch.cuda.use_mem_pool(pool):
        x = torch.arange(MIB, device=device)
    del pool, allocator
    gc.collect()
    settle(device)
    assert torch.equal(x.cpu(), torch.arange(MIB))
    del x
    settle(device)

    assert counting.held == 0
    assert counting.returns == counting.requests


@ON_CUDA
@pytest.mark.covers("test_cuda::TestMemPool::test_mempool_limited_memory_with_allocator")
def test_pluggable_allocator_that_returns_null_raises_outofmemoryerror(
    device: torch.device, counting: Counting
) -> None:
    """If the pool's allocator returns null, the request raises OutOfMemoryError, and live tensors are intact.

    Requests outside the pool succeed, and requests in it succeed once the allocator has memory again.
    """
    pool = pool_of(counting)
    counting.limit(64 * MIB)
    with torch.cuda.use_mem_pool(pool):
        x = torch.full((40 * MIB,), 3, dtype=torch.uint8, device=device)
        with pytest.raises(torch.OutOfMemoryError):
            block(device, 40 * MIB)
    assert counting.refusals >= 1
    outside = block(device, 40 * MIB)
    counting.limit(-1)
    with torch.cuda.use_mem_pool(pool):
        y = block(device, 40 * MIB)

    assert bool((x == 3).all())
    assert counting.held >= 80 * MIB
    del x, y, outside, pool
    gc.collect()
    settle(device)
    assert counting.held == 0
