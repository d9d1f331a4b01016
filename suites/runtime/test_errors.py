"""Errors: return codes, the last error, and sticky errors."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from .. import children
from .cudart import (
    ALREADY_REGISTERED,
    ASSERT,
    CAPTURE_INVALIDATED,
    CAPTURE_RELAXED,
    CAPTURE_UNSUPPORTED,
    INVALID_DEVICE,
    INVALID_DIRECTION,
    INVALID_HANDLE,
    INVALID_VALUE,
    NOT_REGISTERED,
    OUT_OF_MEMORY,
    SUCCESS,
    WITHOUT_TIME,
    Runtime,
)

pytestmark = pytest.mark.requires(device="cuda", rocm=False)

TOO_MUCH = ctypes.c_size_t(1 << 60)


def test_cudamalloc_of_too_much_is_out_of_memory(cuda: Runtime) -> None:
    """cudaMalloc of more than the device has returns cudaErrorMemoryAllocation."""
    address = ctypes.c_void_p()
    assert cuda.code("cudaMalloc", ctypes.byref(address), TOO_MUCH) == OUT_OF_MEMORY
    cuda.code("cudaGetLastError")


def test_cudasetdevice_of_none_is_an_invalid_device(cuda: Runtime) -> None:
    """cudaSetDevice with an invalid number returns cudaErrorInvalidDevice and changes nothing."""
    before = cuda.integer("cudaGetDevice")
    assert cuda.code("cudaSetDevice", 4711) == INVALID_DEVICE
    cuda.code("cudaGetLastError")
    assert cuda.integer("cudaGetDevice") == before


def test_cudaeventelapsedtime_of_events_without_time_is_an_invalid_handle(cuda: Runtime) -> None:
    """cudaEventElapsedTime with an event without timing, in either position, returns cudaErrorInvalidResourceHandle."""
    time_between = ctypes.c_float()
    with cuda.event(WITHOUT_TIME) as begin, cuda.event(WITHOUT_TIME) as end, cuda.event() as timed:
        for event in (begin, end, timed):
            cuda.call("cudaEventRecord", event, None)
            cuda.call("cudaEventSynchronize", event)
        for one, other in ((begin, end), (begin, timed), (timed, end)):
            assert cuda.code("cudaEventElapsedTime", ctypes.byref(time_between), one, other) == INVALID_HANDLE
            cuda.code("cudaGetLastError")


def test_cudagetlasterror_returns_the_last_error_once(cuda: Runtime) -> None:
    """cudaPeekAtLastError keeps the last error, cudaGetLastError resets it, and successful calls do not change it."""
    cuda.code("cudaGetLastError")
    address = ctypes.c_void_p()
    cuda.code("cudaMalloc", ctypes.byref(address), TOO_MUCH)
    cuda.integer("cudaGetDevice")
    assert cuda.code("cudaPeekAtLastError") == OUT_OF_MEMORY
    assert cuda.code("cudaGetLastError") == OUT_OF_MEMORY
    assert cuda.code("cudaGetLastError") == SUCCESS
    assert cuda.code("cudaPeekAtLastError") == SUCCESS


def _not_recorded(cuda: Runtime) -> int:
    with cuda.event() as begin, cuda.event() as end:
        return cuda.code("cudaEventElapsedTime", ctypes.byref(ctypes.c_float()), begin, end)


def _registered_twice(cuda: Runtime) -> int:
    page, size = mmap.mmap(-1, mmap.PAGESIZE), ctypes.c_size_t(mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    cuda.call("cudaHostRegister", ctypes.c_void_p(address), size, ctypes.c_uint(0))
    try:
        return cuda.code("cudaHostRegister", ctypes.c_void_p(address), size, ctypes.c_uint(0))
    finally:
        cuda.call("cudaHostUnregister", ctypes.c_void_p(address))


def _never_registered(cuda: Runtime) -> int:
    page = ctypes.create_string_buffer(mmap.PAGESIZE)
    return cuda.code("cudaHostUnregister", page)


def _copy_to_nowhere(cuda: Runtime) -> int:
    there, here = ctypes.create_string_buffer(8), ctypes.create_string_buffer(8)
    return cuda.code("cudaMemcpy", there, here, ctypes.c_size_t(8), 77)


#: Failing calls, and their error codes according to the CUDA Runtime API's page on the function.
WRONG_CALLS: dict[str, tuple[Callable[[Runtime], int], int]] = {
    "cudaMalloc": (lambda cuda: cuda.code("cudaMalloc", ctypes.byref(ctypes.c_void_p()), TOO_MUCH), OUT_OF_MEMORY),
    "cudaSetDevice": (lambda cuda: cuda.code("cudaSetDevice", 4711), INVALID_DEVICE),
    "cudaDeviceGetAttribute": (
        lambda cuda: cuda.code("cudaDeviceGetAttribute", ctypes.byref(ctypes.c_int()), 1, 4711),
        INVALID_DEVICE,
    ),
    "cudaDeviceGetAttribute of none": (
        lambda cuda: cuda.code("cudaDeviceGetAttribute", ctypes.byref(ctypes.c_int()), 1 << 20, 0),
        INVALID_VALUE,
    ),
    "cudaDeviceCanAccessPeer": (
        lambda cuda: cuda.code("cudaDeviceCanAccessPeer", ctypes.byref(ctypes.c_int()), 0, 4711),
        INVALID_DEVICE,
    ),
    "cudaMemcpy": (_copy_to_nowhere, INVALID_DIRECTION),
    "cudaEventElapsedTime": (_not_recorded, INVALID_HANDLE),
    "cudaHostRegister": (_registered_twice, ALREADY_REGISTERED),
    "cudaHostUnregister": (_never_registered, NOT_REGISTERED),
}


@pytest.mark.usefixtures("in_use")
@pytest.mark.parametrize("call", WRONG_CALLS)
def test_cuda_call_that_fails_leaves_its_own_error(cuda: Runtime, call: str) -> None:
    """A failing call returns the documented error, which is then the last error until cudaGetLastError resets it."""
    wrong, error = WRONG_CALLS[call]
    cuda.code("cudaGetLastError")
    assert wrong(cuda) == error
    asked = [cuda.code(name) for name in ("cudaPeekAtLastError", "cudaGetLastError", "cudaGetLastError")]
    assert asked == [error, error, SUCCESS]


@pytest.mark.usefixtures("in_use")
def test_cudagetlasterror_is_per_thread(cuda: Runtime) -> None:
    """The last error is per host thread: a thread neither sees nor resets that of another."""

    def in_a_thread() -> tuple[int, int]:
        before = cuda.code("cudaGetLastError")
        cuda.code("cudaSetDevice", 4711)
        return before, cuda.code("cudaPeekAtLastError")

    cuda.code("cudaGetLastError")
    cuda.code("cudaMalloc", ctypes.byref(ctypes.c_void_p()), TOO_MUCH)
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(in_a_thread).result() == (SUCCESS, INVALID_DEVICE)
        assert cuda.code("cudaGetLastError") == OUT_OF_MEMORY
        assert thread.submit(cuda.code, "cudaGetLastError").result() == INVALID_DEVICE


@pytest.mark.usefixtures("in_use")
@pytest.mark.parametrize("call", ["cudaStreamSynchronize", "cudaStreamQuery"])
def test_cuda_call_that_a_capture_forbids_ends_it(cuda: Runtime, call: str) -> None:
    """cudaStreamQuery of a capturing stream returns cudaErrorStreamCaptureUnsupported.

    The capture then ends with cudaErrorStreamCaptureInvalidated and without a graph.
    """
    graph = ctypes.c_void_p()
    with cuda.stream() as stream:
        cuda.call("cudaStreamBeginCapture", stream, CAPTURE_RELAXED)
        refused = cuda.code(call, stream)
        ended = cuda.code("cudaStreamEndCapture", stream, ctypes.byref(graph))
        assert (refused, ended) == (CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED)
        assert graph.value is None
        assert cuda.code("cudaGetLastError") == CAPTURE_INVALIDATED


_AFTER_AN_ASSERTION = """
import ctypes, os, sys, torch
from suites.runtime.cudart import TO_HOST, Runtime
cuda = Runtime.of_torch()
x, bad = torch.zeros(4, device=DEVICE), torch.tensor([9], device=DEVICE)
torch.cuda.synchronize()
try:
    x.index_select(0, bad)
except RuntimeError:
    pass  # it may have happened already
"""
#: The end of a script, without torch's destructors, which use the device.
_END = """
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.timeout(150)
@pytest.mark.own_process
def test_cudagetlasterror_resets_an_assertion_until_the_next_call(device: torch.device) -> None:
    """After a device-side assertion, each call to the device returns cudaErrorAssert.

    cudaGetLastError returns it once per call, and resets what the thread remembers, as documented.
    """
    script = """
calls = 2 * ["cudaDeviceSynchronize", "cudaGetLastError"] + ["cudaPeekAtLastError"]
print([cuda.code(name) for name in calls])
"""
    assert children.fork(_AFTER_AN_ASSERTION + script + _END, device).lines() == [str([ASSERT] * 4 + [0])]


@pytest.mark.timeout(150)
@pytest.mark.own_process
def test_cuda_calls_after_an_assertion_all_return_it(device: torch.device) -> None:
    """After a device-side assertion, allocation, copy, fill and synchronize return cudaErrorAssert."""
    script = """
cuda.code("cudaDeviceSynchronize")
host, size = ctypes.create_string_buffer(4), ctypes.c_size_t(4)
there = ctypes.c_void_p(x.data_ptr())
print(
    cuda.code("cudaMalloc", ctypes.byref(ctypes.c_void_p()), size),
    cuda.code("cudaMemcpy", host, there, size, TO_HOST),
    cuda.code("cudaMemset", there, 1, size),
    cuda.code("cudaStreamSynchronize", None),
)
"""
    ended = children.fork(_AFTER_AN_ASSERTION + script + _END, device)
    assert ended.lines() == [" ".join([str(ASSERT)] * 4)]
