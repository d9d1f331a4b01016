"""What a quick test gets and how it ends: the device, sizes, sleeping streams, figures, and the errors it may raise.

Quick tests run in a disposable process with one GPU. A test returns if the device did what the test's docstring says,
and raises `HealthError` with what it found otherwise. It raises `CannotTestError` if it cannot say either.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.backends.backend import Backend
from harness.checks.state.devices import loaded_cudart
from harness.core.errors import HarnessError
from harness.devices.health import HealthError

if TYPE_CHECKING:
    import torch

MIB = 1 << 20
#: Milliseconds for which a stream sleeps, so that what comes too early is seen to do so.
SLEEP_MS = 20.0
#: Trials of what must be seen at least once. Each later trial sleeps longer, for a host that is busy.
TRIALS = 5


class CannotTestError(HarnessError):
    """A test cannot run here. The text says why: a type that the card lacks, a function that torch lacks."""


class LacksError(CannotTestError):
    """The card or this torch lacks what the test is about, which is no reason to doubt the card."""


class SlowError(HealthError):
    """The result is right, and takes far longer than on any host."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much a test does. `memory_share`: the part of the free memory that patterns are written to.

    `copy_bytes`, `edge`: what is copied and multiplied for correctness. `timed`: whether speeds are measured, with the
    sizes of ``suites/performance``, so that the floors of a hardware file hold for them.
    """

    memory_share: float
    copy_bytes: int
    edge: int
    allocations: int
    timed: bool


#: For GPUs. 0.5 of the free memory of a card with 80 GiB is written and read five times in a tenth of a second each.
FULL = Sizes(memory_share=0.5, copy_bytes=64 * MIB, edge=2048, allocations=2000, timed=True)
#: For devices that processors simulate.
SMALL = Sizes(memory_share=1 / 256, copy_bytes=4 * MIB, edge=256, allocations=200, timed=False)


@dataclass(slots=True)
class Bench:
    """A GPU under test, in its process. `tell` gets the place within a test, which is reported if the place hangs."""

    torch: Any
    backend: Backend
    device: torch.device
    seed: int
    sizes: Sizes
    figures: dict[str, float] = field(default_factory=dict)
    tell: Callable[[str], object] = lambda _: None
    _runtime: Runtime | None = None

    @property
    def source(self) -> random.Random:
        """Random numbers that depend on the seed of the run alone."""
        return random.Random(self.seed)

    @property
    def cuda(self) -> Runtime:
        """The CUDA runtime that torch calls. Raise CannotTestError for a device without one."""
        if self._runtime is None:
            self._runtime = Runtime.of_torch(self.torch, self.device.type)
        return self._runtime

    def synchronize(self) -> None:
        """Wait for the device."""
        self.backend.synchronize(self.torch, self.device.index or 0)

    def sleep(self, stream: Any, milliseconds: float = SLEEP_MS) -> None:
        """Enqueue a sleep on a stream. Raise LacksError for a device that cannot."""
        sleep = getattr(self.torch.cuda, "_sleep", None) if self.device.type == "cuda" else None
        if sleep is None:
            raise LacksError("torch cannot make a stream of this device sleep")
        # By the highest clock, so that the sleep is not too short.
        properties = self.torch.cuda.get_device_properties(self.device)
        with self.torch.cuda.stream(stream):
            sleep(int(milliseconds * getattr(properties, "clock_rate", 2_000_000)))


def ever(trial: Callable[[float], bool], trials: int = TRIALS) -> bool:
    """Return whether a trial succeeds once. A trial gets the milliseconds to sleep: twice as many each time."""
    return any(trial(SLEEP_MS * 2**number) for number in range(trials))


def same_values(found: Any, wanted: Any, what: str = "the result") -> None:
    """Raise HealthError with the first difference of two tensors. NaN is a difference."""
    wrong = ~(found == wanted)
    if count := int(wrong.sum().item()):
        place = int(wrong.flatten().int().argmax().item())
        first, right = (x.flatten()[place].item() for x in (found, wanted))
        where = f"{count} of {found.numel()} elements are wrong; the first, at {place}"
        raise HealthError(f"{what}: {where}, is {first} instead of {right}")


# The CUDA runtime that torch has loaded, called through ctypes: for contracts that torch has no function for.
#
# Names, parameters and error codes are those of NVIDIA's "CUDA Runtime API".

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
