"""Streams and events: waits, queries and order."""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from ..streams.busy import calibrate, ever
from .cudart import NON_BLOCKING, NOT_READY, SUCCESS, TO_DEVICE, TO_HOST, WITHOUT_TIME, HostFunction, Runtime, busy

pytestmark = pytest.mark.requires(device="cuda", rocm=False)

SIZE = 1 << 16


def test_cudastreamwaitevent_holds_the_stream_up(cuda: Runtime, device: torch.device) -> None:
    """Work enqueued after cudaStreamWaitEvent starts after the event's work has completed."""
    calibrate(device)
    with cuda.stream() as first, cuda.stream() as second, cuda.event(WITHOUT_TIME) as event, cuda.memory(SIZE) as x:

        def trial() -> bool:
            busy(first, device)
            cuda.call("cudaMemsetAsync", x, 1, ctypes.c_size_t(SIZE), first)
            cuda.call("cudaEventRecord", event, first)
            cuda.call("cudaStreamWaitEvent", second, event, 0)
            cuda.call("cudaMemsetAsync", x, 2, ctypes.c_size_t(SIZE), second)
            waited = cuda.code("cudaStreamQuery", second) == NOT_READY
            cuda.call("cudaStreamSynchronize", first)
            assert cuda.read(x, SIZE) == b"\x02" * SIZE
            return waited

        assert ever(trial)


def test_cudaeventquery_is_not_ready_until_the_work_is_done(cuda: Runtime, device: torch.device) -> None:
    """cudaEventQuery returns cudaErrorNotReady until the work before the record completes, then success."""
    calibrate(device)
    with cuda.stream() as stream, cuda.event(WITHOUT_TIME) as event:

        def trial() -> bool:
            busy(stream, device)
            cuda.call("cudaEventRecord", event, stream)
            early = cuda.code("cudaEventQuery", event)
            cuda.call("cudaStreamSynchronize", stream)
            assert cuda.code("cudaEventQuery", event) == SUCCESS
            return early == NOT_READY

        assert ever(trial)


def test_cudaeventsynchronize_waits_for_the_work(cuda: Runtime, device: torch.device) -> None:
    """When cudaEventSynchronize returns, all work before the record is complete."""
    calibrate(device)
    with cuda.stream() as stream, cuda.event(WITHOUT_TIME) as event:
        for _ in range(3):
            busy(stream, device)
            cuda.call("cudaEventRecord", event, stream)
            cuda.call("cudaEventSynchronize", event)
            assert cuda.code("cudaStreamQuery", stream) == SUCCESS


def test_cudaeventelapsedtime_is_the_time_between(cuda: Runtime, device: torch.device) -> None:
    """cudaEventElapsedTime is positive from an event to a later one, and negative in the other direction."""
    calibrate(device)
    with cuda.stream() as stream, cuda.event() as begin, cuda.event() as end:
        cuda.call("cudaEventRecord", begin, stream)
        busy(stream, device)
        cuda.call("cudaEventRecord", end, stream)
        cuda.call("cudaStreamSynchronize", stream)
        time_between, reverse = ctypes.c_float(), ctypes.c_float()
        cuda.call("cudaEventElapsedTime", ctypes.byref(time_between), begin, end)
        cuda.call("cudaEventElapsedTime", ctypes.byref(reverse), end, begin)
        assert time_between.value > 0 > reverse.value


@pytest.mark.parametrize("of_device", [False, True], ids=["cudaStreamSynchronize", "cudaDeviceSynchronize"])
def test_cudastreamquery_and_synchronize_agree(cuda: Runtime, device: torch.device, of_device: bool) -> None:
    """cudaStreamQuery returns cudaErrorNotReady while work is pending, and success after a synchronize."""
    calibrate(device)
    with cuda.stream() as stream:

        def trial() -> bool:
            busy(stream, device)
            early = cuda.code("cudaStreamQuery", stream)
            if of_device:
                cuda.call("cudaDeviceSynchronize")
            else:
                cuda.call("cudaStreamSynchronize", stream)
            assert cuda.code("cudaStreamQuery", stream) == SUCCESS
            return early == NOT_READY

        assert ever(trial)


def test_cudastreamcreatewithpriority_gives_the_priority(cuda: Runtime, device: torch.device) -> None:
    """cudaStreamGetPriority returns the priority that the stream was created with, for each priority of the device."""
    assert device.type == "cuda"
    least, greatest = ctypes.c_int(), ctypes.c_int()
    cuda.call("cudaDeviceGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
    assert greatest.value <= least.value
    for priority in range(greatest.value, least.value + 1):
        stream = cuda.pointer("cudaStreamCreateWithPriority", ctypes.c_uint(NON_BLOCKING), ctypes.c_int(priority))
        try:
            assert cuda.integer("cudaStreamGetPriority", stream) == priority
        finally:
            cuda.call("cudaStreamDestroy", stream)


def test_cudalaunchhostfunc_runs_in_stream_order(cuda: Runtime, device: torch.device) -> None:
    """A host function runs once, after the earlier work on its stream."""
    calibrate(device)
    with cuda.stream() as stream, cuda.event(WITHOUT_TIME) as before:
        seen: list[int] = []
        function = HostFunction(lambda _: seen.append(1))

        def trial() -> bool:
            seen.clear()
            busy(stream, device)
            cuda.call("cudaEventRecord", before, stream)
            cuda.call("cudaLaunchHostFunc", stream, function, None)
            early, working = bool(seen), cuda.code("cudaEventQuery", before) == NOT_READY
            assert not (early and working)
            cuda.call("cudaStreamSynchronize", stream)
            assert seen == [1]
            return working

        assert ever(trial)


def test_cudalaunchhostfunc_holds_the_stream_up(cuda: Runtime) -> None:
    """A host function runs on a thread of CUDA, and later work on the stream waits for its end."""
    may_end = threading.Event()
    with cuda.stream() as stream, cuda.event(WITHOUT_TIME) as after, cuda.memory(SIZE) as x:
        threads: list[int] = []

        def wait(_: object) -> None:
            threads.append(threading.get_ident())
            may_end.wait(30)

        function = HostFunction(wait)
        cuda.call("cudaMemsetAsync", x, 1, ctypes.c_size_t(SIZE), stream)
        cuda.call("cudaLaunchHostFunc", stream, function, None)
        cuda.call("cudaMemsetAsync", x, 2, ctypes.c_size_t(SIZE), stream)
        cuda.call("cudaEventRecord", after, stream)
        busy_still = cuda.code("cudaEventQuery", after)
        may_end.set()
        cuda.call("cudaStreamSynchronize", stream)
        assert busy_still == NOT_READY
        assert cuda.code("cudaEventQuery", after) == SUCCESS
        assert cuda.read(x, SIZE) == b"\x02" * SIZE
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


def test_cudalaunchhostfunc_sees_what_the_work_before_it_wrote(cuda: Runtime, device: torch.device) -> None:
    """Each host function between copies to pinned memory sees the previous copy and not the next one."""
    calibrate(device)
    host = cuda.pointer("cudaHostAlloc", ctypes.c_size_t(SIZE), 0)
    seen: list[bytes] = []
    look = HostFunction(lambda _: seen.append(ctypes.string_at(host, SIZE)))
    values = (3, 5, 7)
    try:
        with cuda.stream() as stream, cuda.memory(SIZE) as x:
            busy(stream, device)
            for value in values:
                cuda.call("cudaMemsetAsync", x, value, ctypes.c_size_t(SIZE), stream)
                cuda.call("cudaMemcpyAsync", host, x, ctypes.c_size_t(SIZE), TO_HOST, stream)
                cuda.call("cudaLaunchHostFunc", stream, look, None)
            cuda.call("cudaStreamSynchronize", stream)
    finally:
        cuda.call("cudaFreeHost", host)
    assert seen == [bytes([value]) * SIZE for value in values]


def test_cudamemcpyasync_to_pinned_memory_returns_at_once(cuda: Runtime, device: torch.device) -> None:
    """cudaMemcpyAsync between device and pinned memory, in either direction, returns before the stream reaches it.

    After the stream completes, the values are there.
    """
    calibrate(device)
    host = cuda.pointer("cudaHostAlloc", ctypes.c_size_t(SIZE), 0)
    try:
        with cuda.stream() as stream, cuda.memory(SIZE) as x:

            def trial(kind: int, target: ctypes.c_void_p, source: ctypes.c_void_p) -> bool:
                cuda.call("cudaMemset", x, 3, ctypes.c_size_t(SIZE))
                cuda.call("cudaDeviceSynchronize")
                ctypes.memset(host, 5, SIZE)
                busy(stream, device)
                cuda.call("cudaMemcpyAsync", target, source, ctypes.c_size_t(SIZE), kind, stream)
                working = cuda.code("cudaStreamQuery", stream) == NOT_READY
                cuda.code("cudaGetLastError")
                cuda.call("cudaStreamSynchronize", stream)
                value = b"\x03" if kind == TO_HOST else b"\x05"
                assert ctypes.string_at(host, SIZE) == cuda.read(x, SIZE) == value * SIZE
                return working

            assert ever(lambda: trial(TO_HOST, host, x))
            assert ever(lambda: trial(TO_DEVICE, x, host))
    finally:
        cuda.call("cudaFreeHost", host)


@pytest.mark.requires(devices=2)
def test_cudasetdevice_makes_the_device_current(cuda: Runtime, device: torch.device) -> None:
    """cudaGetDevice returns the device of cudaSetDevice in this thread, and device 0 in a new thread."""
    try:
        for index in (1, 0, 1):
            cuda.call("cudaSetDevice", index)
            with ThreadPoolExecutor(1) as thread:
                assert thread.submit(cuda.integer, "cudaGetDevice").result() == 0
            assert cuda.integer("cudaGetDevice") == index
    finally:
        cuda.call("cudaSetDevice", device.index or 0)
