"""Quick tests of what the driver promises: order, waits, graphs, memory accounts, errors, and the time of a launch.

A stream sleeps before it writes, so that whatever does not wait for the write is seen to read too early. A test that
could not show this, since the host was busy for longer than the sleep, says that it is unknown.
"""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Callable
from typing import Any

from harness.devices.health import HealthError
from harness.ready.bench import (
    ATTACH_GLOBAL,
    BY_ADDRESS,
    EXTERNAL,
    INVALID_DEVICE,
    INVALID_DIRECTION,
    MIB,
    NON_BLOCKING,
    NOT_READY,
    ON_DEVICE,
    OUT_OF_MEMORY,
    RELEASE_THRESHOLD,
    RESERVED_CURRENT,
    SUCCESS,
    TO_DEVICE,
    TO_HOST,
    USED_CURRENT,
    USED_HIGH,
    Bench,
    CannotTestError,
    HostFunction,
    LacksError,
    Runtime,
    SlowError,
    at,
    ever,
)

_SIZE = 1 << 16
_LARGE = 64 * MIB
#: Seconds. No GPU takes as long for one small kernel, launched from an idle host; a virtual machine takes 50 us.
MOST_LAUNCH = 1e-3
_KERNELS, _KERNELS_TIMED, _LEAST_TRIALS, _MOST_TRIALS = 20, 1000, 5, 60


def kernels_in_order(bench: Bench) -> None:
    """A chain of operations that do not commute runs once each, in their order, on the default and on a new stream."""
    torch = bench.torch
    expected = 1
    for step in range(1, 33):
        expected = (expected * 3 + step) % 65521
    for stream in (torch.cuda.current_stream(), torch.cuda.Stream()) if bench.device.type == "cuda" else (None,):
        with torch.cuda.stream(stream):
            x = torch.ones(4096, dtype=torch.int64, device=bench.device)
            for step in range(1, 33):
                x = (x * 3 + step) % 65521
        bench.synchronize()
        _all_equal("a chain of 32 operations", x.tolist(), expected)


def waits(bench: Bench) -> None:
    """What waits for a stream, an event or the device sees all work before it; queries and waits agree."""
    cuda = bench.cuda
    with cuda.stream() as stream, cuda.event() as event, cuda.memory(_SIZE) as x, cuda.pinned(_SIZE) as host:

        def write_late(value: int, sleep: float) -> None:
            ctypes.memset(host, 255, _SIZE)
            _sleep(bench, stream, sleep)
            cuda.fill(x, value, _SIZE, stream)
            cuda.move(host, x, _SIZE, TO_HOST, stream)
            cuda.call("cudaEventRecord", event, stream)

        def arrived(name: str, value: int) -> None:
            _same("after " + name, ctypes.string_at(host, _SIZE), value)

        values = itertools.cycle(range(1, 200))
        waiting: dict[str, Callable[[], object]] = {
            "cudaStreamSynchronize": lambda: cuda.call("cudaStreamSynchronize", stream),
            "cudaDeviceSynchronize": lambda: cuda.call("cudaDeviceSynchronize"),
            "cudaEventSynchronize": lambda: cuda.call("cudaEventSynchronize", event),
            "cudaStreamQuery": lambda: _poll(cuda, "cudaStreamQuery", stream),
            "cudaEventQuery": lambda: _poll(cuda, "cudaEventQuery", event),
        }
        for name, wait in waiting.items():
            value = next(values)
            write_late(value, 5.0)
            wait()
            arrived(name, value)
            cuda.call("cudaDeviceSynchronize")


def stream_waits(bench: Bench) -> None:
    """A stream that waits for an event of another stream, or whose host function waits, goes on after it."""
    cuda = bench.cuda
    with cuda.stream() as first, cuda.stream() as second, cuda.event() as event, cuda.memory(_SIZE) as x:
        _sleep(bench, first, 10.0)
        cuda.fill(x, 1, _SIZE, first)
        cuda.call("cudaEventRecord", event, first)
        cuda.call("cudaStreamWaitEvent", second, event, 0)
        cuda.fill(x, 2, _SIZE, second)
        cuda.call("cudaStreamSynchronize", first)
        _same("a fill after cudaStreamWaitEvent", cuda.read(x, _SIZE), 2)
    _host_functions(bench)


def _host_functions(bench: Bench) -> None:
    cuda = bench.cuda
    seen: list[bytes] = []
    with cuda.stream() as stream, cuda.memory(_SIZE) as x, cuda.pinned(_SIZE) as host:
        look = HostFunction(lambda _: seen.append(ctypes.string_at(host, 16)))
        ctypes.memset(host, 255, _SIZE)
        _sleep(bench, stream, 5.0)
        for value in (3, 5):
            cuda.fill(x, value, _SIZE, stream)
            cuda.move(host, x, _SIZE, TO_HOST, stream)
            cuda.call("cudaLaunchHostFunc", stream, look, None)
        cuda.call("cudaStreamSynchronize", stream)
    if seen != [b"\x03" * 16, b"\x05" * 16]:
        raise HealthError(f"host functions saw {[each[:1].hex() for each in seen]} instead of ['03', '05']")


def adjacent_order(bench: Bench) -> None:
    """Adjacent fills, copies and kernels of one stream run in their order."""
    cuda = bench.cuda
    with cuda.stream() as stream, cuda.memory(4 * _SIZE) as x:
        for value in range(1, 6):
            _sleep(bench, stream, 2.0)
            cuda.fill(x, value, _SIZE, stream)
            for place in range(3):
                cuda.move(at(x, (place + 1) * _SIZE), at(x, place * _SIZE), _SIZE, ON_DEVICE, stream)
            cuda.call("cudaStreamSynchronize", stream)
            _same("a row of copies after a fill", cuda.read(x, 4 * _SIZE), value)


def asynchronous_copies(bench: Bench) -> None:
    """A copy between the device and pinned memory returns before its stream has reached it, both ways."""
    cuda = bench.cuda
    with cuda.stream() as stream, cuda.memory(_SIZE) as x, cuda.pinned(_SIZE) as host:
        for kind, target, source in ((TO_HOST, host, x), (TO_DEVICE, x, host)):
            late: list[float] = []

            def trial(
                sleep: float,
                kind: int = kind,
                target: object = target,
                source: object = source,
                late: list[float] = late,
            ) -> bool:
                _sleep(bench, stream, sleep)
                busy = cuda.code("cudaStreamQuery", stream) == NOT_READY
                cuda.code("cudaMemcpyAsync", target, source, ctypes.c_size_t(_SIZE), kind, stream)
                still = cuda.code("cudaStreamQuery", stream) == NOT_READY
                cuda.call("cudaStreamSynchronize", stream)
                cuda.code("cudaGetLastError")
                if busy and not still:
                    late.append(sleep)
                return still

            if not ever(trial):
                if len(late) < 3:
                    raise CannotTestError("the host was too busy to see that a copy returns at once")
                raise HealthError(
                    f"cudaMemcpyAsync to or from pinned memory waited for its stream in {len(late)} trials, expected "
                    "that it returns at once"
                )


def events(bench: Bench) -> None:
    """The time between two events is positive and as long as the work; streams have the priority asked for."""
    cuda = bench.cuda
    with cuda.stream() as stream, cuda.event(0) as begin, cuda.event(0) as end:
        cuda.call("cudaEventRecord", begin, stream)
        _sleep(bench, stream, 5.0)
        cuda.call("cudaEventRecord", end, stream)
        cuda.call("cudaStreamSynchronize", stream)
        took = ctypes.c_float()
        cuda.call("cudaEventElapsedTime", ctypes.byref(took), begin, end)
        if not took.value > 0:
            raise HealthError(f"the time between two events is {took.value:g} ms, expected more than 0")
    least, greatest = ctypes.c_int(), ctypes.c_int()
    cuda.call("cudaDeviceGetStreamPriorityRange", ctypes.byref(least), ctypes.byref(greatest))
    for priority in range(greatest.value, least.value + 1):
        made = cuda.pointer("cudaStreamCreateWithPriority", ctypes.c_uint(NON_BLOCKING), ctypes.c_int(priority))
        found = cuda.integer("cudaStreamGetPriority", made)
        cuda.code("cudaStreamDestroy", made)
        if found != priority:
            raise HealthError(f"a stream of priority {priority} has priority {found}")


def fills(bench: Bench) -> None:
    """A fill writes each byte of its range and no other; the host sees what is written to managed memory."""
    cuda = bench.cuda
    with cuda.stream() as stream, cuda.memory(300) as x:
        cuda.call("cudaMemset", x, 0, ctypes.c_size_t(300))
        cuda.call("cudaMemset", at(x, 10), 3, ctypes.c_size_t(100))
        cuda.call("cudaDeviceSynchronize")
        cuda.fill(at(x, 200), 5, 90, stream)
        cuda.call("cudaStreamSynchronize", stream)
        if cuda.read(x, 300) != b"\0" * 10 + b"\3" * 100 + b"\0" * 90 + b"\5" * 90 + b"\0" * 10:
            raise HealthError("cudaMemset of parts of 300 bytes wrote other bytes than it should")
        managed = cuda.pointer("cudaMallocManaged", ctypes.c_size_t(_SIZE), ctypes.c_uint(ATTACH_GLOBAL))
        with cuda.memory(_SIZE) as y:
            ctypes.memset(managed, 1, _SIZE)
            cuda.fill(y, 7, _SIZE, stream)
            cuda.move(managed, y, _SIZE, BY_ADDRESS, stream)
            cuda.call("cudaStreamSynchronize", stream)
            _same("managed memory after a copy", ctypes.string_at(managed, _SIZE), 7)
            cuda.fill(managed, 9, _SIZE, stream)
            cuda.call("cudaStreamSynchronize", stream)
            _same("managed memory after a fill", ctypes.string_at(managed, _SIZE), 9)
        cuda.call("cudaFree", managed)


def graphs(bench: Bench) -> None:
    """A capture has each piece of work once; each replay runs all of it, on the present input."""
    torch, cuda = bench.torch, bench.cuda
    with cuda.stream() as stream, cuda.memory(4 * _SIZE) as x:
        # Clean streams for a capture: the fill is not part of it.
        cuda.fill(x, 0, 4 * _SIZE, stream)
        cuda.call("cudaStreamSynchronize", stream)

        def work() -> None:
            for place in range(3):
                cuda.move(at(x, (place + 1) * _SIZE), at(x, place * _SIZE), _SIZE, ON_DEVICE, stream)

        with cuda.graph(stream, work) as (launched, count):
            if count != 3:
                raise HealthError(f"a capture of three copies has {count} nodes")
            for value in (1, 2, 3):
                cuda.fill(x, value, _SIZE, stream)
                cuda.call("cudaGraphLaunch", launched, stream)
                cuda.call("cudaStreamSynchronize", stream)
                _same(f"replay {value} of a graph of copies", cuda.read(x, 4 * _SIZE), value)
    if not hasattr(torch.cuda, "CUDAGraph"):
        return
    source, total = (torch.zeros(1024, dtype=torch.int64, device=bench.device) for _ in range(2))
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            total.add_(source)
            total.mul_(2)
    expected = 0
    for value in (1, 10, 100):
        source.fill_(value)
        graph.replay()
        expected = 2 * (expected + value)
        bench.synchronize()
        _all_equal("a graph of a sum and a product", total.tolist(), expected)


def external_events(bench: Bench) -> None:
    """A graph that waits for an external event waits for the latest record on another stream."""
    cuda = bench.cuda
    with cuda.stream() as other, cuda.stream() as stream, cuda.event() as event, cuda.memory(2 * _SIZE) as x:
        cuda.fill(x, 0, 2 * _SIZE, stream)
        cuda.call("cudaStreamSynchronize", stream)

        def work() -> None:
            cuda.call("cudaStreamWaitEvent", stream, event, EXTERNAL)
            cuda.move(at(x, _SIZE), x, _SIZE, ON_DEVICE, stream)

        with cuda.graph(stream, work) as (launched, _):
            for value in (1, 2, 3):
                _sleep(bench, other, 10.0)
                cuda.fill(x, value, _SIZE, other)
                cuda.call("cudaEventRecord", event, other)
                cuda.call("cudaGraphLaunch", launched, stream)
                cuda.call("cudaStreamSynchronize", stream)
                _same("a graph that waits for an external event", cuda.read(at(x, _SIZE), _SIZE), value)


def memory_accounts(bench: Bench) -> None:
    """Free memory falls by what is allocated and rises by what is freed, and most of it can be allocated."""
    cuda = bench.cuda
    bench.backend.empty_cache(bench.torch)
    lost = []
    for _ in range(3):
        before, total = cuda.memory_info()
        block = cuda.pointer("cudaMalloc", ctypes.c_size_t(_LARGE))
        during, _ = cuda.memory_info()
        cuda.call("cudaFree", block)
        after, _ = cuda.memory_info()
        # Another process may allocate or free at the same time, but not the same amount three times.
        lost.append((before - during, before - after))
    if all(taken < _LARGE for taken, _ in lost):
        raise HealthError(f"cudaMalloc of {_LARGE >> 20} MiB lowers the free memory by {[each[0] for each in lost]}")
    if all(kept >= _LARGE for _, kept in lost):
        raise HealthError(f"cudaFree returned nothing of {_LARGE >> 20} MiB, three times")
    before, total = cuda.memory_info()
    if before < total * 9 // 10:
        raise LacksError(f"other processes use {total - before} of {total} bytes of memory")
    block = ctypes.c_void_p()
    size = before // 4 * 3
    if (code := cuda.code("cudaMalloc", ctypes.byref(block), ctypes.c_size_t(size))) != SUCCESS:
        cuda.code("cudaGetLastError")
        raise HealthError(f"cudaMalloc of three quarters of {before} free bytes returned error {code}")
    cuda.call("cudaFree", block)


def pools(bench: Bench) -> None:
    """A memory pool counts what is used, gives no byte twice, resets its marks, and returns memory when trimmed."""
    cuda = bench.cuda
    handle = cuda.pointer("cudaDeviceGetDefaultMemPool", bench.device.index or 0)

    def attribute(which: int) -> int:
        value = ctypes.c_uint64()
        cuda.call("cudaMemPoolGetAttribute", handle, which, ctypes.byref(value))
        return value.value

    def put(which: int, value: int) -> None:
        cuda.call("cudaMemPoolSetAttribute", handle, which, ctypes.byref(ctypes.c_uint64(value)))

    threshold = attribute(RELEASE_THRESHOLD)
    put(RELEASE_THRESHOLD, 2**63)
    try:
        with cuda.stream() as stream:
            cuda.call("cudaMemPoolTrimTo", handle, ctypes.c_size_t(0))
            used, reserved = attribute(USED_CURRENT), attribute(RESERVED_CURRENT)
            sizes = (MIB, 1000, 4 * MIB, 1000, MIB)
            blocks = [(cuda.pointer("cudaMallocAsync", ctypes.c_size_t(size), stream), size) for size in sizes]
            _disjoint(blocks)
            _is("the used bytes of a pool", attribute(USED_CURRENT) - used >= sum(sizes), attribute(USED_CURRENT))
            for block, _ in blocks:
                cuda.call("cudaFreeAsync", block, stream)
            cuda.call("cudaStreamSynchronize", stream)
            _is(
                "the used bytes of a pool after all are freed", attribute(USED_CURRENT) == used, attribute(USED_CURRENT)
            )
            put(USED_HIGH, 0)
            _is("the most used bytes after a reset", attribute(USED_HIGH) == used, attribute(USED_HIGH))
            cuda.call("cudaMemPoolTrimTo", handle, ctypes.c_size_t(0))
            _is(
                "the bytes of a pool after a trim", attribute(RESERVED_CURRENT) <= reserved, attribute(RESERVED_CURRENT)
            )
    finally:
        put(RELEASE_THRESHOLD, threshold)


def _disjoint(blocks: list[tuple[ctypes.c_void_p, int]]) -> None:
    ordered = sorted((block.value or 0, size) for block, size in blocks)
    for (begin, size), (after, _) in itertools.pairwise(ordered):
        if begin + size > after:
            raise HealthError(f"two live blocks of a pool overlap at {after:#x}")


def errors(bench: Bench) -> None:
    """A wrong call returns its documented error, which is the last error until it is read, once."""
    cuda = bench.cuda
    there, here = ctypes.create_string_buffer(8), ctypes.create_string_buffer(8)
    calls: dict[str, tuple[Callable[[], int], int]] = {
        "cudaSetDevice of no device": (lambda: cuda.code("cudaSetDevice", 4711), INVALID_DEVICE),
        "cudaMalloc of 2^60 bytes": (
            lambda: cuda.code("cudaMalloc", ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1 << 60)),
            OUT_OF_MEMORY,
        ),
        "cudaMemcpy of no direction": (
            lambda: cuda.code("cudaMemcpy", there, here, ctypes.c_size_t(8), 77),
            INVALID_DIRECTION,
        ),
    }
    cuda.code("cudaGetLastError")
    for name, (wrong, error) in calls.items():
        found = [wrong(), *(cuda.code("cudaGetLastError") for _ in range(2))]
        if found != [error, error, SUCCESS]:
            raise HealthError(
                f"{name} and two calls of cudaGetLastError returned {found}, expected {[error, error, 0]}"
            )


def allocations(bench: Bench) -> None:
    """Thousands of blocks of many sizes are allocated and freed; each keeps its own value, and none is lost."""
    torch, source = bench.torch, bench.source
    live: list[tuple[int, Any]] = []
    for number in range(bench.sizes.allocations):
        size = source.choice((1, 100, 1000, 5000, 70000, 300000))
        live.append((number, torch.full((size,), number, dtype=torch.int32, device=bench.device)))
        if len(live) > 40:
            wanted, block = live.pop(source.randrange(len(live)))
            if number % 8 == 0:
                _block(wanted, block)
    for wanted, block in live:
        _block(wanted, block)


def _block(wanted: int, block: Any) -> None:
    low, high = block.aminmax()
    if (low.item(), high.item()) != (wanted, wanted):
        raise HealthError(f"a block of {wanted} has values from {low.item()} to {high.item()}")


def launches(bench: Bench) -> None:
    """A small kernel is launched and has ended in less than a millisecond, and each has its effect."""
    torch = bench.torch
    x = torch.zeros(64, dtype=torch.int64, device=bench.device)
    kernels = _KERNELS_TIMED if bench.sizes.timed else _KERNELS
    least, trials = float("inf"), 0
    while trials < _LEAST_TRIALS or (trials < _MOST_TRIALS and least > MOST_LAUNCH / 2):
        trials += 1
        bench.synchronize()
        begin = time.perf_counter()
        for _ in range(kernels):
            x.add_(1)
        bench.synchronize()
        least = min(least, (time.perf_counter() - begin) / kernels)
    bench.figures["launch_latency"] = least
    _all_equal("a counter of kernels", x.tolist(), trials * kernels)
    if least > MOST_LAUNCH:
        raise SlowError(
            f"one of {kernels} small kernels takes {least * 1e6:.0f} us at best, in {trials} trials; expected less "
            f"than {MOST_LAUNCH * 1e6:.0f} us"
        )


def _sleep(bench: Bench, stream: ctypes.c_void_p, milliseconds: float) -> None:
    bench.sleep(bench.torch.cuda.ExternalStream(stream.value, bench.device), milliseconds)


def _poll(cuda: Runtime, name: str, handle: ctypes.c_void_p) -> None:
    """Wait until a query says that the work is complete."""
    while (code := cuda.code(name, handle)) == NOT_READY:
        time.sleep(0.0005)
    if code != SUCCESS:
        raise HealthError(f"{name} returned error {code}")
    cuda.code("cudaGetLastError")


def _same(what: str, found: bytes, wanted: int) -> None:
    if found != bytes([wanted]) * len(found):
        place = next(place for place, byte in enumerate(found) if byte != wanted)
        count = len(found) - found.count(wanted)
        raise HealthError(
            f"{what}: {count} of {len(found)} bytes are wrong; byte {place} is {found[place]} instead of {wanted}"
        )


def _all_equal(what: str, found: list[int], wanted: int) -> None:
    if wrong := [value for value in found if value != wanted]:
        raise HealthError(f"{what} gives {wrong[0]} instead of {wanted}, in {len(wrong)} of {len(found)} places")


def _is(what: str, holds: bool, value: int) -> None:
    if not holds:
        raise HealthError(f"{what}: {value}, which is not what was allocated and freed")
