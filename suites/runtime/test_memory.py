"""Memory: free memory decreases and increases with allocations and frees, and allocations do not overlap."""

from __future__ import annotations

import ctypes
import itertools

import pytest
import torch

from ..streams.busy import calibrate, ever
from .cudart import ATTACH_GLOBAL, BY_ADDRESS, MIB, NOT_READY, Runtime, busy
from .pools import RELEASE_THRESHOLD, RESERVED_CURRENT, USED_CURRENT, USED_HIGH, default_pool

pytestmark = [pytest.mark.requires(device="cuda", rocm=False), pytest.mark.usefixtures("in_use")]

LARGE = 64 * MIB


@pytest.mark.serial
def test_cudafree_returns_the_memory(cuda: Runtime) -> None:
    """cudaMemGetInfo decreases by cudaMalloc and returns to its previous value after cudaFree."""
    before = cuda.free_memory()
    for _ in range(2):
        x = cuda.pointer("cudaMalloc", ctypes.c_size_t(LARGE))
        during = cuda.free_memory()
        cuda.call("cudaFree", x)
        assert during <= before - LARGE
        assert cuda.free_memory() == before


@pytest.mark.serial
def test_cudamalloc_gives_what_is_free(cuda: Runtime) -> None:
    """cudaMalloc of three quarters of the free memory succeeds."""
    size = cuda.free_memory() // 4 * 3
    cuda.call("cudaFree", cuda.pointer("cudaMalloc", ctypes.c_size_t(size)))


@pytest.mark.serial
def test_cudamalloc_gives_what_is_free_in_many_blocks(cuda: Runtime) -> None:
    """Fifteen blocks of a twentieth of the free memory each can be allocated together."""
    size = cuda.free_memory() // 20
    blocks: list[ctypes.c_void_p] = []
    try:
        blocks.extend(cuda.pointer("cudaMalloc", ctypes.c_size_t(size)) for _ in range(15))
    finally:
        for block in blocks:
            cuda.call("cudaFree", block)


@pytest.mark.serial
@pytest.mark.requires(devices=2)
def test_cudamalloc_gives_what_is_free_of_each_device(cuda: Runtime, device: torch.device) -> None:
    """Three quarters of the free memory of two devices can be allocated together."""
    here = device.index or 0
    blocks = []
    try:
        for each in (here, 1 - here):
            cuda.call("cudaSetDevice", each)
            size = cuda.free_memory() // 4 * 3
            blocks.append(cuda.pointer("cudaMalloc", ctypes.c_size_t(size)))
    finally:
        cuda.call("cudaSetDevice", here)
        for block in blocks:
            cuda.call("cudaFree", block)


@pytest.mark.serial
def test_cudafree_lets_the_memory_be_taken_again(cuda: Runtime) -> None:
    """Freed memory can be allocated again: a third of the free memory, five times in sequence."""
    size = cuda.free_memory() // 3
    for _ in range(5):
        cuda.call("cudaFree", cuda.pointer("cudaMalloc", ctypes.c_size_t(size)))


@pytest.mark.serial
@pytest.mark.requires(devices=2)
def test_cudamemgetinfo_is_of_the_current_device(cuda: Runtime, device: torch.device) -> None:
    """cudaMemGetInfo reports the current device: an allocation on it affects it only."""
    here = device.index or 0
    before = cuda.free_memory()
    cuda.call("cudaSetDevice", 1 - here)
    try:
        there = cuda.free_memory()
        x = cuda.pointer("cudaMalloc", ctypes.c_size_t(LARGE))
        try:
            assert cuda.free_memory() <= there - LARGE
            cuda.call("cudaSetDevice", here)
            assert cuda.free_memory() == before
        finally:
            cuda.call("cudaFree", x)
    finally:
        cuda.call("cudaSetDevice", here)


@pytest.mark.serial
def test_cudamallocasync_gives_what_is_free(cuda: Runtime) -> None:
    """cudaMallocAsync of three quarters of the free memory succeeds."""
    size = cuda.free_memory() // 4 * 3
    with cuda.stream() as stream:
        cuda.call("cudaFreeAsync", cuda.pointer("cudaMallocAsync", ctypes.c_size_t(size), stream), stream)
        cuda.call("cudaStreamSynchronize", stream)


def test_cudamallocasync_gives_each_byte_once(cuda: Runtime, device: torch.device) -> None:
    """Live blocks of cudaMallocAsync do not overlap, whatever their sizes."""
    sizes = (MIB, 1000, 4 * MIB, 1000, MIB)
    with default_pool(cuda, device), cuda.stream() as stream:
        blocks = [(cuda.pointer("cudaMallocAsync", ctypes.c_size_t(size), stream).value or 0, size) for size in sizes]
        cuda.call("cudaStreamSynchronize", stream)
        for address, _ in blocks:
            cuda.call("cudaFreeAsync", ctypes.c_void_p(address), stream)
    ordered = sorted(blocks)
    assert all(first + size <= second for (first, size), (second, _) in itertools.pairwise(ordered))


def test_cudamempoolgetattribute_counts_what_is_used(cuda: Runtime, device: torch.device) -> None:
    """The used bytes of a pool increase by an allocation and return to their previous value after its free."""
    with default_pool(cuda, device) as pool, cuda.stream() as stream:
        before = pool.attribute(USED_CURRENT)
        for _ in range(2):
            x = cuda.pointer("cudaMallocAsync", ctypes.c_size_t(MIB), stream)
            assert pool.attribute(USED_CURRENT) == before + MIB
            cuda.call("cudaFreeAsync", x, stream)
            cuda.call("cudaStreamSynchronize", stream)
            assert pool.attribute(USED_CURRENT) == before


def test_cudamempoolsetattribute_resets_the_high_water_mark(cuda: Runtime, device: torch.device) -> None:
    """The high-water mark of used bytes stays after a free, and is the current value after it is set to 0."""
    with default_pool(cuda, device) as pool, cuda.stream() as stream:
        x = cuda.pointer("cudaMallocAsync", ctypes.c_size_t(4 * MIB), stream)
        cuda.call("cudaFreeAsync", x, stream)
        cuda.call("cudaStreamSynchronize", stream)
        current = pool.attribute(USED_CURRENT)
        assert pool.attribute(USED_HIGH) >= current + 4 * MIB
        pool.set(USED_HIGH, 0)
        assert pool.attribute(USED_HIGH) == current


def test_cudamempooltrimto_gives_memory_back(cuda: Runtime, device: torch.device) -> None:
    """A pool with a high release threshold keeps freed memory, and cudaMemPoolTrimTo(0) releases it."""
    with default_pool(cuda, device) as pool, cuda.stream() as stream:
        threshold = pool.attribute(RELEASE_THRESHOLD)
        pool.set(RELEASE_THRESHOLD, 2**63)
        try:
            before = pool.attribute(RESERVED_CURRENT)
            x = cuda.pointer("cudaMallocAsync", ctypes.c_size_t(LARGE), stream)
            cuda.call("cudaFreeAsync", x, stream)
            cuda.call("cudaStreamSynchronize", stream)
            assert pool.attribute(RESERVED_CURRENT) >= before + LARGE
            pool.trim()
            assert pool.attribute(RESERVED_CURRENT) <= before
        finally:
            pool.set(RELEASE_THRESHOLD, threshold)


@pytest.mark.parametrize("by", ["cudaMemcpyAsync", "cudaMemsetAsync"])
def test_cudamallocmanaged_shows_the_host_what_a_device_wrote(cuda: Runtime, by: str) -> None:
    """After a synchronize, the host reads from managed memory what a copy or a fill wrote."""
    size = 1 << 16
    managed = cuda.pointer("cudaMallocManaged", ctypes.c_size_t(size), ctypes.c_uint(ATTACH_GLOBAL))
    try:
        ctypes.memset(managed, 1, size)
        with cuda.stream() as stream, cuda.memory(size) as x:
            cuda.call("cudaMemset", x, 7, ctypes.c_size_t(size))
            cuda.call("cudaDeviceSynchronize")
            if by == "cudaMemcpyAsync":
                cuda.call(by, managed, x, ctypes.c_size_t(size), BY_ADDRESS, stream)
            else:
                cuda.call(by, managed, 7, ctypes.c_size_t(size), stream)
            cuda.call("cudaStreamSynchronize", stream)
            assert ctypes.string_at(managed, size) == b"\x07" * size
    finally:
        cuda.call("cudaFree", managed)


def test_cudamemset_fills_all_and_nothing_else(cuda: Runtime) -> None:
    """cudaMemset and cudaMemsetAsync write the value to each byte of the range, and to no other."""
    with cuda.memory(300) as x, cuda.stream() as stream:
        assert x.value is not None
        cuda.call("cudaMemset", ctypes.c_void_p(x.value + 10), 3, ctypes.c_size_t(100))
        cuda.call("cudaDeviceSynchronize")
        cuda.call("cudaMemsetAsync", ctypes.c_void_p(x.value + 200), 5, ctypes.c_size_t(90), stream)
        cuda.call("cudaStreamSynchronize", stream)
        assert cuda.read(x, 300) == b"\0" * 10 + b"\x03" * 100 + b"\0" * 90 + b"\x05" * 90 + b"\0" * 10


@pytest.mark.requires(devices=2)
def test_cudamemcpypeerasync_runs_in_stream_order(cuda: Runtime, device: torch.device) -> None:
    """A copy between devices runs after earlier and before later work on its stream."""
    size = 1 << 16
    calibrate(device)
    here = device.index or 0
    with cuda.memory(size) as source, cuda.stream() as stream:
        cuda.call("cudaSetDevice", 1 - here)
        try:
            target = cuda.pointer("cudaMalloc", ctypes.c_size_t(size))
        finally:
            cuda.call("cudaSetDevice", here)
        try:
            values = iter(range(1, 100))

            def trial() -> bool:
                value = next(values)
                busy(stream, device)
                cuda.call("cudaMemsetAsync", source, value, ctypes.c_size_t(size), stream)
                cuda.call("cudaMemcpyPeerAsync", target, 1 - here, source, here, ctypes.c_size_t(size), stream)
                cuda.call("cudaMemsetAsync", source, 255, ctypes.c_size_t(size), stream)
                working = cuda.code("cudaStreamQuery", stream) == NOT_READY
                cuda.call("cudaStreamSynchronize", stream)
                assert cuda.read(target, size) == bytes([value]) * size
                return working

            assert ever(trial)
            cuda.code("cudaGetLastError")
        finally:
            cuda.call("cudaFree", target)
