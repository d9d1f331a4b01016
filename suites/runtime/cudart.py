"""The CUDA runtime that torch has loaded, through ctypes, with the functions that the process's libraries use."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from ..streams.busy import sleep_on

# Enumeration values of the CUDA Runtime API.
SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, INVALID_DEVICE, INVALID_HANDLE, ASSERT, NOT_READY = 0, 1, 2, 101, 400, 710, 600
TO_DEVICE, TO_HOST, ON_DEVICE, BY_ADDRESS = 1, 2, 3, 4  # cudaMemcpyKind
INVALID_DIRECTION, ALREADY_REGISTERED, NOT_REGISTERED = 21, 712, 713
CAPTURE_UNSUPPORTED, CAPTURE_INVALIDATED = 900, 901
NON_BLOCKING = 1  # cudaStreamNonBlocking
WITHOUT_TIME = 2  # cudaEventDisableTiming
EXTERNAL = 1  # cudaEventRecordExternal, cudaEventWaitExternal
CAPTURE_RELAXED = 2  # cudaStreamCaptureModeRelaxed
ATTACH_GLOBAL = 1  # cudaMemAttachGlobal
MIB = 1 << 20

#: A function that a stream calls on the host.
HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class IpcHandle(ctypes.Structure):
    """cudaIpcMemHandle_t. It is passed by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


class Runtime:
    """Calls functions of the runtime by name. Integers are C ints; wider values need a ctypes type."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    @classmethod
    def of_torch(cls) -> Runtime:
        """Return the runtime that torch calls. Skip the case if torch links it statically.

        The process's own scope is used if it has the runtime, as for torch itself, so that a library preloaded before
        the runtime is used too. Otherwise the runtime is found by its soname, and not by a path, which could open a
        second file of the same name that torch does not call.
        """
        torch.cuda.init()
        process = ctypes.CDLL(None)
        if hasattr(process, "cudaStreamQuery"):
            return cls(process)
        for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
            if found := re.search(r"/(libcudart[^/]*?\.so\.\d+)[^/]*$", line):
                return cls(ctypes.CDLL(found[1]))
        pytest.skip("torch has loaded no library of the CUDA runtime")

    def code(self, name: str, *arguments: object) -> int:
        """Return the error code of the call."""
        return int(getattr(self._library, name)(*arguments))

    def call(self, name: str, *arguments: object) -> None:
        """Make a call that must succeed."""
        status = self.code(name, *arguments)
        assert status == SUCCESS, f"{name} returned error {status}"

    def pointer(self, name: str, *arguments: object) -> ctypes.c_void_p:
        """Return the address or handle that the call writes to its first parameter."""
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *arguments)
        return made

    def integer(self, name: str, *arguments: object) -> int:
        """Return the value that the call writes to its last parameter."""
        value = ctypes.c_int(-1)
        self.call(name, *arguments, ctypes.byref(value))
        return value.value

    def free_memory(self) -> int:
        """Return the free memory of the current device, in bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value

    @contextmanager
    def memory(self, size: int) -> Iterator[ctypes.c_void_p]:
        """Yield zeroed memory of the current device, and free it."""
        made = self.pointer("cudaMalloc", ctypes.c_size_t(size))
        try:
            self.call("cudaMemset", made, 0, ctypes.c_size_t(size))
            self.call("cudaDeviceSynchronize")
            yield made
        finally:
            self.call("cudaFree", made)

    @contextmanager
    def stream(self) -> Iterator[ctypes.c_void_p]:
        """Yield a stream that does not synchronize with the legacy stream."""
        made = self.pointer("cudaStreamCreateWithFlags", ctypes.c_uint(NON_BLOCKING))
        try:
            yield made
        finally:
            self.call("cudaStreamSynchronize", made)
            self.call("cudaStreamDestroy", made)

    @contextmanager
    def event(self, flags: int = 0) -> Iterator[ctypes.c_void_p]:
        made = self.pointer("cudaEventCreateWithFlags", ctypes.c_uint(flags))
        try:
            yield made
        finally:
            self.call("cudaEventDestroy", made)

    def read(self, memory: ctypes.c_void_p, size: int) -> bytes:
        """Return the contents of device memory after all of its work is complete."""
        self.call("cudaDeviceSynchronize")
        host = ctypes.create_string_buffer(size)
        self.call("cudaMemcpy", host, memory, ctypes.c_size_t(size), TO_HOST)
        return host.raw

    def graph_of(self, stream: ctypes.c_void_p, work: Callable[[], object]) -> ctypes.c_void_p:
        """Return the graph of the work captured on the stream."""
        self.call("cudaStreamBeginCapture", stream, CAPTURE_RELAXED)
        try:
            work()
        finally:
            graph = ctypes.c_void_p()
            self.call("cudaStreamEndCapture", stream, ctypes.byref(graph))
        return graph


def busy(stream: ctypes.c_void_p, device: torch.device) -> None:
    """Enqueue long-running work on the stream."""
    assert stream.value is not None
    sleep_on(torch.cuda.ExternalStream(stream.value, device))


def at(memory: ctypes.c_void_p, offset: int) -> ctypes.c_void_p:
    """Return the address at a byte offset."""
    assert memory.value is not None
    return ctypes.c_void_p(memory.value + offset)
