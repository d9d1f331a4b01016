"""Memory pools of the CUDA runtime: the device's default pool, and pools that a case creates."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from .cudart import Runtime

# cudaMemPoolAttr
RELEASE_THRESHOLD, RESERVED_CURRENT, RESERVED_HIGH, USED_CURRENT, USED_HIGH = 4, 5, 6, 7, 8

_PINNED, _ON_DEVICE = 1, 1  # cudaMemAllocationTypePinned, cudaMemLocationTypeDevice


class _Properties(ctypes.Structure):
    """cudaMemPoolProps."""

    _fields_ = (
        ("allocation_type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location_type", ctypes.c_int),
        ("location", ctypes.c_int),
        ("security_attributes", ctypes.c_void_p),
        ("most", ctypes.c_size_t),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 54),
    )


class Pool:
    """A pool, its attributes and its blocks."""

    def __init__(self, cuda: Runtime, handle: ctypes.c_void_p) -> None:
        self.cuda = cuda
        self.handle = handle

    def attribute(self, which: int) -> int:
        value = ctypes.c_uint64()
        self.cuda.call("cudaMemPoolGetAttribute", self.handle, which, ctypes.byref(value))
        return value.value

    def set(self, which: int, value: int) -> None:
        self.cuda.call("cudaMemPoolSetAttribute", self.handle, which, ctypes.byref(ctypes.c_uint64(value)))

    def trim(self, kept: int = 0) -> None:
        self.cuda.call("cudaMemPoolTrimTo", self.handle, ctypes.c_size_t(kept))

    def block(self, size: int, stream: ctypes.c_void_p) -> ctypes.c_void_p:
        """Return a new block of this pool."""
        return self.cuda.pointer("cudaMallocFromPoolAsync", ctypes.c_size_t(size), self.handle, stream)

    def free(self, block: ctypes.c_void_p, stream: ctypes.c_void_p) -> None:
        """Free a block, and synchronize its stream."""
        self.cuda.call("cudaFreeAsync", block, stream)
        self.cuda.call("cudaStreamSynchronize", stream)


@contextmanager
def default_pool(cuda: Runtime, device: torch.device) -> Iterator[Pool]:
    """Yield the device's default pool, trimmed before and after."""
    pool = Pool(cuda, cuda.pointer("cudaDeviceGetDefaultMemPool", device.index or 0))
    pool.trim()
    yield pool
    cuda.call("cudaDeviceSynchronize")
    pool.trim()


@contextmanager
def new_pool(cuda: Runtime, device: torch.device) -> Iterator[Pool]:
    """Yield a new pool, which keeps freed memory until it is trimmed."""
    wanted = _Properties(allocation_type=_PINNED, location_type=_ON_DEVICE, location=device.index or 0)
    pool = Pool(cuda, cuda.pointer("cudaMemPoolCreate", ctypes.byref(wanted)))
    try:
        pool.set(RELEASE_THRESHOLD, 2**63)
        yield pool
    finally:
        cuda.call("cudaDeviceSynchronize")
        cuda.call("cudaMemPoolDestroy", pool.handle)
