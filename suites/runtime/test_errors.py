"""Errors: which one is returned, what the last one is, and which stay."""

from __future__ import annotations

import ctypes

import pytest
import torch

from .. import children
from .cudart import ASSERT, INVALID_DEVICE, INVALID_HANDLE, OUT_OF_MEMORY, SUCCESS, WITHOUT_TIME, Runtime

pytestmark = pytest.mark.requires(device="cuda", rocm=False)

TOO_MUCH = ctypes.c_size_t(1 << 60)


def test_cudamalloc_of_too_much_is_out_of_memory(cuda: Runtime) -> None:
    """Contract: cudaMalloc of more than the device has returns cudaErrorMemoryAllocation."""
    address = ctypes.c_void_p()
    assert cuda.code("cudaMalloc", ctypes.byref(address), TOO_MUCH) == OUT_OF_MEMORY
    cuda.code("cudaGetLastError")


def test_cudasetdevice_of_none_is_an_invalid_device(cuda: Runtime) -> None:
    """Contract: cudaSetDevice with a number that no device has returns cudaErrorInvalidDevice, and changes nothing."""
    before = cuda.integer("cudaGetDevice")
    assert cuda.code("cudaSetDevice", 4711) == INVALID_DEVICE
    cuda.code("cudaGetLastError")
    assert cuda.integer("cudaGetDevice") == before


def test_cudaeventelapsedtime_of_events_without_time_is_an_invalid_handle(cuda: Runtime) -> None:
    """Contract: the time between events of which one is without timing, the first, the second or both, is refused with
    cudaErrorInvalidResourceHandle."""
    time_between = ctypes.c_float()
    with cuda.event(WITHOUT_TIME) as begin, cuda.event(WITHOUT_TIME) as end, cuda.event() as timed:
        for event in (begin, end, timed):
            cuda.call("cudaEventRecord", event, None)
            cuda.call("cudaEventSynchronize", event)
        for one, other in ((begin, end), (begin, timed), (timed, end)):
            assert cuda.code("cudaEventElapsedTime", ctypes.byref(time_between), one, other) == INVALID_HANDLE
            cuda.code("cudaGetLastError")


def test_cudagetlasterror_tells_the_last_error_once(cuda: Runtime) -> None:
    """Contract: an error stays until it is asked for: cudaPeekAtLastError leaves it, cudaGetLastError resets it, and
    calls that succeed do not touch it."""
    cuda.code("cudaGetLastError")
    address = ctypes.c_void_p()
    cuda.code("cudaMalloc", ctypes.byref(address), TOO_MUCH)
    cuda.integer("cudaGetDevice")
    assert cuda.code("cudaPeekAtLastError") == OUT_OF_MEMORY
    assert cuda.code("cudaGetLastError") == OUT_OF_MEMORY
    assert cuda.code("cudaGetLastError") == SUCCESS
    assert cuda.code("cudaPeekAtLastError") == SUCCESS


@pytest.mark.timeout(150)
def test_cudagetlasterror_keeps_an_assertion(device: torch.device) -> None:
    """Contract: after an assertion on the device, each call that reaches it returns cudaErrorAssert until the process
    ends, and cudaGetLastError does not reset it."""
    script = """
import torch
from suites.runtime.cudart import Runtime
cuda = Runtime.of_torch()
x, bad = torch.zeros(4, device=DEVICE), torch.tensor([9], device=DEVICE)
torch.cuda.synchronize()
try:
    x.index_select(0, bad)
except RuntimeError:
    pass  # it may have happened already
calls = 2 * ["cudaDeviceSynchronize", "cudaGetLastError"] + ["cudaPeekAtLastError"]
print([cuda.code(name) for name in calls])
import os, sys
sys.stdout.flush()
os._exit(0)
"""
    assert children.run(script, device).lines() == [str([ASSERT] * 5)]
