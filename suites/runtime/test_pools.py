"""User-created memory pools: accounting, overlap, and release of memory."""

from __future__ import annotations

import ctypes
import itertools

import pytest
import torch

from .cudart import INVALID_VALUE, MIB, Runtime
from .pools import RESERVED_CURRENT, RESERVED_HIGH, USED_CURRENT, USED_HIGH, default_pool, new_pool

pytestmark = [pytest.mark.requires(device="cuda", rocm=False), pytest.mark.usefixtures("in_use")]

LARGE = 64 * MIB


def test_cudamallocfrompoolasync_counts_in_its_own_pool(cuda: Runtime, device: torch.device) -> None:
    """A block of a new pool counts as used memory of that pool, and not of the device's default pool."""
    with default_pool(cuda, device) as other, new_pool(cuda, device) as pool, cuda.stream() as stream:
        before = other.attribute(USED_CURRENT)
        assert pool.attribute(USED_CURRENT) == 0
        x = pool.block(MIB, stream)
        assert (pool.attribute(USED_CURRENT), other.attribute(USED_CURRENT)) == (MIB, before)
        assert pool.attribute(RESERVED_CURRENT) >= MIB
        pool.free(x, stream)
        assert (pool.attribute(USED_CURRENT), other.attribute(USED_CURRENT)) == (0, before)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0)], ids=["first_first", "last_first", "mixed"])
def test_cudafreeasync_takes_each_block_off_the_used_bytes(
    cuda: Runtime, device: torch.device, order: tuple[int, ...]
) -> None:
    """The used bytes of a pool are the sum of its live blocks, in any order of frees."""
    sizes = (MIB, 2 * MIB, 4 * MIB)
    with new_pool(cuda, device) as pool, cuda.stream() as stream:
        blocks = [pool.block(size, stream) for size in sizes]
        left = sum(sizes)
        assert pool.attribute(USED_CURRENT) == left
        for index in order:
            pool.free(blocks[index], stream)
            left -= sizes[index]
            assert pool.attribute(USED_CURRENT) == left


def test_cudamempool_high_water_marks_are_the_most_at_once(cuda: Runtime, device: torch.device) -> None:
    """The high-water mark of used bytes is the maximum in use, and that of reserved bytes is no smaller."""
    with new_pool(cuda, device) as pool, cuda.stream() as stream:
        for size in (4 * MIB, MIB, 2 * MIB):
            pool.free(pool.block(size, stream), stream)
        assert pool.attribute(USED_CURRENT) == 0
        assert pool.attribute(USED_HIGH) == 4 * MIB
        assert pool.attribute(RESERVED_HIGH) >= 4 * MIB


@pytest.mark.parametrize(
    ("high", "current"), [(USED_HIGH, USED_CURRENT), (RESERVED_HIGH, RESERVED_CURRENT)], ids=["used", "reserved"]
)
def test_cudamempoolsetattribute_resets_a_mark_to_what_is_current(
    cuda: Runtime, device: torch.device, high: int, current: int
) -> None:
    """A high-water mark that is set to 0 is reset to the current value."""
    with new_pool(cuda, device) as pool, cuda.stream() as stream:
        kept = pool.block(MIB, stream)
        pool.free(pool.block(LARGE, stream), stream)
        pool.trim()
        assert pool.attribute(high) >= LARGE > pool.attribute(current)
        pool.set(high, 0)
        assert pool.attribute(high) == pool.attribute(current)
        pool.free(kept, stream)


@pytest.mark.parametrize("high", [USED_HIGH, RESERVED_HIGH], ids=["used", "reserved"])
def test_cudamempoolsetattribute_accepts_only_zero_for_a_mark(cuda: Runtime, device: torch.device, high: int) -> None:
    """Setting a high-water mark to a value other than 0 returns cudaErrorInvalidValue."""
    with new_pool(cuda, device) as pool:
        one = ctypes.c_uint64(1)
        assert cuda.code("cudaMemPoolSetAttribute", pool.handle, high, ctypes.byref(one)) == INVALID_VALUE
        cuda.code("cudaGetLastError")


def test_cudamallocfrompoolasync_of_two_streams_gives_each_byte_once(cuda: Runtime, device: torch.device) -> None:
    """Live blocks of two streams do not overlap."""
    sizes = (MIB, 1000, 4 * MIB, 1000)
    with new_pool(cuda, device) as pool, cuda.stream() as first, cuda.stream() as second:
        blocks = [(pool.block(size, stream), size, stream) for size in sizes for stream in (first, second)]
        ordered = sorted((block.value or 0, size) for block, size, _ in blocks)
        for block, _, stream in blocks:
            pool.free(block, stream)
    assert all(begin + size <= after for (begin, size), (after, _) in itertools.pairwise(ordered))


def test_cudamallocfrompoolasync_blocks_keep_what_is_written(cuda: Runtime, device: torch.device) -> None:
    """A block keeps its contents until it is freed, while others are allocated, written and freed."""
    size = 5000
    with new_pool(cuda, device) as pool, cuda.stream() as stream:
        blocks = {}
        for value in range(1, 9):
            blocks[value] = pool.block(size, stream)
            cuda.call("cudaMemsetAsync", blocks[value], value, ctypes.c_size_t(size), stream)
            if value % 3 == 0:
                pool.free(blocks.pop(value - 1), stream)
        cuda.call("cudaStreamSynchronize", stream)
        assert {value: set(cuda.read(block, size)) for value, block in blocks.items()} == {
            value: {value} for value in blocks
        }
        for block in blocks.values():
            pool.free(block, stream)


def test_cudamempooltrimto_leaves_what_is_in_use(cuda: Runtime, device: torch.device) -> None:
    """cudaMemPoolTrimTo releases free memory only: live blocks keep their addresses and contents."""
    with new_pool(cuda, device) as pool, cuda.stream() as stream:
        kept = pool.block(MIB, stream)
        cuda.call("cudaMemsetAsync", kept, 7, ctypes.c_size_t(MIB), stream)
        pool.free(pool.block(LARGE, stream), stream)
        before = pool.attribute(RESERVED_CURRENT)
        pool.trim()
        assert pool.attribute(USED_CURRENT) == MIB <= pool.attribute(RESERVED_CURRENT) <= before - LARGE // 2
        assert set(cuda.read(kept, MIB)) == {7}
        pool.free(kept, stream)


def test_cudamempooltrimto_keeps_the_requested_minimum(cuda: Runtime, device: torch.device) -> None:
    """cudaMemPoolTrimTo releases nothing if the pool has no more reserved than the requested minimum."""
    with new_pool(cuda, device) as pool, cuda.stream() as stream:
        pool.free(pool.block(LARGE, stream), stream)
        before = pool.attribute(RESERVED_CURRENT)
        assert before >= LARGE
        pool.trim(before)
        assert pool.attribute(RESERVED_CURRENT) == before
        pool.trim()
        assert pool.attribute(RESERVED_CURRENT) == 0


@pytest.mark.serial
def test_cudamallocfrompoolasync_gives_what_is_free(cuda: Runtime, device: torch.device) -> None:
    """A pool can allocate three quarters of the free memory, and again after the free."""
    with new_pool(cuda, device) as pool, cuda.stream() as stream:
        size = cuda.free_memory() // 4 * 3
        for _ in range(2):
            pool.free(pool.block(size, stream), stream)


@pytest.mark.serial
def test_cudamemgetinfo_includes_memory_reserved_by_pools(cuda: Runtime, device: torch.device) -> None:
    """Memory that a pool has reserved is missing from cudaMemGetInfo until the pool is trimmed, also after a free."""
    with new_pool(cuda, device) as pool, cuda.stream() as stream:
        before = cuda.free_memory()
        x = pool.block(LARGE, stream)
        cuda.call("cudaStreamSynchronize", stream)
        assert cuda.free_memory() <= before - LARGE
        pool.free(x, stream)
        assert cuda.free_memory() <= before - LARGE
        pool.trim()
        assert cuda.free_memory() == before
