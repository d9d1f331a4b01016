"""The CUDA runtime that torch has loaded, called through ctypes: for contracts that torch has no function for.

Names, parameters and error codes are those of NVIDIA's "CUDA Runtime API".
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from harness.checks.state.devices import loaded_cudart
from harness.devices.known_answers import HealthError
from harness.ready.bench import CannotTestError, LacksError

SUCCESS, OUT_OF_MEMORY, INVALID_DEVICE, NOT_READY = 0, 2, 101, 600  # cudaError_t
TO_DEVICE, TO_HOST, ON_DEVICE, BY_ADDRESS = 1, 2, 3, 4  # cudaMemcpyKind
INVALID_DIRECTION = 21
NON_BLOCKING = 1  # cudaStreamNonBlocking
WITHOUT_TIME = 2  # cudaEventDisableTiming
EXTERNAL = 1  # cudaEventRecordExternal, cudaEventWaitExternal
CAPTURE_RELAXED = 2  # cudaStreamCaptureModeRelaxed
ATTACH_GLOBAL = 1  # cudaMemAttachGlobal
IPC_LAZY = 1  # cudaIpcMemLazyEnablePeerAccess
RELEASE_THRESHOLD, RESERVED_CURRENT, USED_CURRENT, USED_HIGH = 4, 5, 7, 8  # cudaMemPoolAttr

#: A function that a stream calls on the host.
HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class IpcHandle(ctypes.Structure):
    """cudaIpcMemHandle_t, which is passed by value."""

    _fields_ = (("reserved", ctypes.c_ubyte * 64),)


class Runtime:
    """Calls functions of the runtime by name. Integers are C ints; wider values need a ctypes type."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    @classmethod
    def of_torch(cls, torch: Any, kind: str) -> Runtime:
        """Return the runtime of this process. Raise CannotTestError if there is none that can be called.

        A library in front of the runtime is called as by torch, and no second copy of the runtime is loaded.
        """
        if kind != "cuda" or getattr(torch.version, "hip", None) is not None:
            raise LacksError("the device has no CUDA runtime")
        if (library := loaded_cudart(torch)) is None:
            raise CannotTestError("torch has loaded no library of the CUDA runtime")
        return cls(library)

    def code(self, name: str, *arguments: object) -> int:
        """Return the error code of a call. Raise LacksError if the runtime has no such function."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise LacksError(f"the CUDA runtime has no {name}") from None
        return int(function(*arguments))

    def call(self, name: str, *arguments: object) -> None:
        """Make a call that must succeed. Raise HealthError."""
        if (status := self.code(name, *arguments)) != SUCCESS:
            raise HealthError(f"{name} returned error {status}")

    def pointer(self, name: str, *arguments: object) -> ctypes.c_void_p:
        """Return the address or handle that a call writes to its first parameter."""
        made = ctypes.c_void_p()
        self.call(name, ctypes.byref(made), *arguments)
        return made

    def integer(self, name: str, *arguments: object) -> int:
        """Return the value that a call writes to its last parameter."""
        value = ctypes.c_int(-1)
        self.call(name, *arguments, ctypes.byref(value))
        return value.value

    def memory_info(self) -> tuple[int, int]:
        """Return the free and the total memory of the current device, in bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def fill(self, memory: ctypes.c_void_p, value: int, size: int, stream: ctypes.c_void_p) -> None:
        """Enqueue a fill of device memory."""
        self.call("cudaMemsetAsync", memory, value, ctypes.c_size_t(size), stream)

    def move(
        self, target: ctypes.c_void_p, source: ctypes.c_void_p, size: int, kind: int, stream: ctypes.c_void_p
    ) -> None:
        """Enqueue a copy."""
        self.call("cudaMemcpyAsync", target, source, ctypes.c_size_t(size), kind, stream)

    def read(self, memory: ctypes.c_void_p, size: int) -> bytes:
        """Return the contents of device memory after all work."""
        self.call("cudaDeviceSynchronize")
        host = ctypes.create_string_buffer(size)
        self.call("cudaMemcpy", host, memory, ctypes.c_size_t(size), TO_HOST)
        return host.raw

    @contextmanager
    def memory(self, size: int) -> Iterator[ctypes.c_void_p]:
        """Yield device memory, and free it."""
        made = self.pointer("cudaMalloc", ctypes.c_size_t(size))
        try:
            yield made
        finally:
            self.code("cudaFree", made)

    @contextmanager
    def pinned(self, size: int) -> Iterator[ctypes.c_void_p]:
        """Yield pinned memory of the host, and free it."""
        made = self.pointer("cudaHostAlloc", ctypes.c_size_t(size), 0)
        try:
            yield made
        finally:
            self.code("cudaFreeHost", made)

    @contextmanager
    def stream(self) -> Iterator[ctypes.c_void_p]:
        """Yield a stream that does not synchronize with the legacy stream."""
        made = self.pointer("cudaStreamCreateWithFlags", ctypes.c_uint(NON_BLOCKING))
        try:
            yield made
        finally:
            self.code("cudaStreamSynchronize", made)
            self.code("cudaStreamDestroy", made)

    @contextmanager
    def event(self, flags: int = WITHOUT_TIME) -> Iterator[ctypes.c_void_p]:
        """Yield an event."""
        made = self.pointer("cudaEventCreateWithFlags", ctypes.c_uint(flags))
        try:
            yield made
        finally:
            self.code("cudaEventDestroy", made)

    @contextmanager
    def graph(self, stream: ctypes.c_void_p, work: Callable[[], object]) -> Iterator[tuple[ctypes.c_void_p, int]]:
        """Yield a launchable graph of the work, captured on the stream, and the number of its nodes."""
        self.call("cudaStreamBeginCapture", stream, CAPTURE_RELAXED)
        graph, count = ctypes.c_void_p(), ctypes.c_size_t()
        try:
            work()
        finally:
            self.call("cudaStreamEndCapture", stream, ctypes.byref(graph))
        try:
            self.call("cudaGraphGetNodes", graph, None, ctypes.byref(count))
            launched = self.pointer("cudaGraphInstantiate", graph, ctypes.c_ulonglong(0))
            try:
                yield launched, count.value
            finally:
                self.code("cudaGraphExecDestroy", launched)
        finally:
            self.code("cudaGraphDestroy", graph)


def at(memory: ctypes.c_void_p, offset: int) -> ctypes.c_void_p:
    """Return the address at a byte offset."""
    return ctypes.c_void_p((memory.value or 0) + offset)
