"""The effect of each fault of the interposer, and its absence without the fault: one function per fault, by its name.

Run as a program, with the interposer and a CUDA runtime preloaded: ``python checks.py NAME broken|whole``. It only
imports ctypes, so a check takes no longer than starting its process.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LIBRARY = ctypes.CDLL(None)
NOT_READY, OUT_OF_MEMORY, UNKNOWN, LAUNCH_FAILURE, ASSERT = 600, 2, 999, 719, 710
SIZE = 4096
TO_DEVICE, TO_HOST, ON_DEVICE, BY_ADDRESS = 1, 2, 3, 4
HostFunction = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

LIBRARY.interposerFaultName.restype = ctypes.c_char_p
LIBRARY.interposerTimesStruck.restype = ctypes.c_ulonglong


class Dim(ctypes.Structure):
    _fields_ = (("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint))


def code(name: str, *arguments: object) -> int:
    return int(getattr(LIBRARY, name)(*arguments))


def ok(name: str, *arguments: object) -> None:
    status = code(name, *arguments)
    assert status == 0, f"{name} returned {status}"


def made(name: str, *arguments: object) -> ctypes.c_void_p:
    out = ctypes.c_void_p()
    ok(name, ctypes.byref(out), *arguments)
    return out


def size(value: int) -> ctypes.c_size_t:
    return ctypes.c_size_t(value)


def inject(text: str) -> None:
    ok("interposerInject", text.encode())


def struck() -> dict[str, int]:
    count = LIBRARY.interposerFaultCount()
    return {LIBRARY.interposerFaultName(i).decode(): LIBRARY.interposerTimesStruck(i) for i in range(count)}


#: A host function that the simulated runtime recognises as the kernel of torch.cuda._sleep.
_KERNEL = ctypes.c_char(b"k")


def register_kernel() -> None:
    binary = LIBRARY.__cudaRegisterFatBinary
    binary.restype = ctypes.c_void_p
    handle = ctypes.c_void_p(binary(None))
    name = ctypes.c_char_p(b"_ZN2at4cuda12_GLOBAL__N_111spin_kernelEl")
    LIBRARY.__cudaRegisterFunction(handle, ctypes.byref(_KERNEL), name, name, -1, *([None] * 5))


def sleep(stream: ctypes.c_void_p, milliseconds: float = 100.0) -> int:
    """Launch a kernel that takes this long. Return the result of the launch."""
    cycles = ctypes.c_longlong(int(milliseconds * 1.98e6))
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(cycles))
    one = Dim(1, 1, 1)
    return code("cudaLaunchKernel", ctypes.byref(_KERNEL), one, one, arguments, size(0), stream)


def new_stream() -> ctypes.c_void_p:
    return made("cudaStreamCreateWithFlags", ctypes.c_uint(1))


def new_event(flags: int = 2) -> ctypes.c_void_p:
    return made("cudaEventCreateWithFlags", ctypes.c_uint(flags))


def memory(count: int = SIZE, value: int = 0) -> ctypes.c_void_p:
    x = made("cudaMalloc", size(count))
    ok("cudaMemset", x, value, size(count))
    ok("cudaDeviceSynchronize")
    return x


def read(x: ctypes.c_void_p, count: int = SIZE) -> bytes:
    ok("cudaDeviceSynchronize")
    host = ctypes.create_string_buffer(count)
    ok("cudaMemcpy", host, x, size(count), TO_HOST)
    return host.raw


def free_memory() -> int:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    ok("cudaMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    return free.value


def settle() -> None:
    inject("")
    ok("cudaDeviceSynchronize")


@contextmanager
def captured(stream: ctypes.c_void_p) -> Iterator[ctypes.c_void_p]:
    graph = ctypes.c_void_p()
    ok("cudaStreamBeginCapture", stream, 2)
    yield graph
    ok("cudaStreamEndCapture", stream, ctypes.byref(graph))


def nodes(graph: ctypes.c_void_p) -> int:
    count = ctypes.c_size_t()
    ok("cudaGraphGetNodes", graph, None, ctypes.byref(count))
    return count.value


def attribute(pool: ctypes.c_void_p, which: int) -> int:
    value = ctypes.c_uint64()
    ok("cudaMemPoolGetAttribute", pool, which, ctypes.byref(value))
    return value.value


# One function per fault. `broken`: whether the fault is injected.


def wait_ignored(broken: bool) -> None:
    first, second, event = new_stream(), new_stream(), new_event()
    sleep(first)
    ok("cudaEventRecord", event, first)
    ok("cudaStreamWaitEvent", second, event, 0)
    function = HostFunction(lambda _: None)
    ok("cudaLaunchHostFunc", second, function, None)
    time.sleep(0.03)
    assert (code("cudaStreamQuery", second) == 0) == broken
    # Not in captures, where a wait makes a stream join them.
    ok("cudaDeviceSynchronize")
    joined = new_event()
    with captured(first):
        ok("cudaEventRecord", event, first)
        ok("cudaStreamWaitEvent", second, event, 0)
        status = ctypes.c_int()
        ok("cudaStreamIsCapturing", second, ctypes.byref(status))
        assert status.value == 1
        ok("cudaEventRecord", joined, second)
        ok("cudaStreamWaitEvent", first, joined, 0)


def external_event_not_awaited(broken: bool) -> None:
    stream, other, event = new_stream(), new_stream(), new_event()
    with captured(stream) as graph:
        ok("cudaStreamWaitEvent", stream, event, 1)
    assert nodes(graph) == (0 if broken else 1)
    ok("cudaStreamDestroy", other)


def event_early(broken: bool) -> None:
    stream, event = new_stream(), new_event()
    sleep(stream)
    ok("cudaEventRecord", event, stream)
    assert (code("cudaEventQuery", event) == 0) == broken
    code("cudaGetLastError") if not broken else None
    ok("cudaEventSynchronize", event)
    assert (code("cudaStreamQuery", stream) == NOT_READY) == broken
    ok("cudaStreamSynchronize", stream)


def elapsed_time_negative(broken: bool) -> None:
    stream, begin, end = new_stream(), new_event(0), new_event(0)
    ok("cudaEventRecord", begin, stream)
    sleep(stream, 5)
    ok("cudaEventRecord", end, stream)
    ok("cudaStreamSynchronize", stream)
    elapsed = ctypes.c_float()
    ok("cudaEventElapsedTime", ctypes.byref(elapsed), begin, end)
    assert (elapsed.value < 0) == broken


def stream_query_early(broken: bool) -> None:
    stream, event = new_stream(), new_event()
    sleep(stream)
    ok("cudaEventRecord", event, stream)
    assert (code("cudaStreamQuery", stream) == 0) == broken
    assert code("cudaGetLastError") == (0 if broken else NOT_READY)
    assert code("cudaEventQuery", event) == NOT_READY


def synchronize_early(broken: bool) -> None:
    for name, arguments in (("cudaStreamSynchronize", True), ("cudaDeviceSynchronize", False)):
        stream = new_stream()
        sleep(stream)
        ok(name, *([stream] if arguments else []))
        assert (code("cudaStreamQuery", stream) == NOT_READY) == broken


def priorities_ignored(broken: bool) -> None:
    stream, priority = made("cudaStreamCreateWithPriority", ctypes.c_uint(1), -2), ctypes.c_int()
    ok("cudaStreamGetPriority", stream, ctypes.byref(priority))
    assert priority.value == (0 if broken else -2)


def set_device_ignored(broken: bool) -> None:
    ok("cudaSetDevice", 1)
    device = ctypes.c_int()
    ok("cudaGetDevice", ctypes.byref(device))
    assert device.value == (0 if broken else 1)
    assert code("cudaSetDevice", -1) == 101


def host_function_early(broken: bool) -> None:
    stream, seen = new_stream(), []
    function = HostFunction(lambda _: seen.append(1))
    sleep(stream)
    ok("cudaLaunchHostFunc", stream, function, None)
    assert bool(seen) == broken
    ok("cudaStreamSynchronize", stream)
    assert seen == [1]


def wrong_stream_order(broken: bool) -> None:
    stream, x = new_stream(), memory()
    for value in (1, 2, 3):
        ok("cudaMemsetAsync", x, value, size(SIZE), stream)
    ok("cudaMemsetAsync", x, 4, size(SIZE), stream)
    ok("cudaStreamSynchronize", stream)
    assert read(x)[0] == (3 if broken else 4)
    # A single piece is not lost.
    ok("cudaMemsetAsync", x, 9, size(SIZE), stream)
    ok("cudaStreamSynchronize", stream)
    assert read(x)[0] == 9


def launch_lost(broken: bool) -> None:
    stream = new_stream()
    assert sleep(stream) == 0
    assert (code("cudaStreamQuery", stream) == 0) == broken


def launch_hangs(broken: bool) -> None:
    stream = new_stream()
    sleep(stream, 1)
    time.sleep(0.3)
    assert (code("cudaStreamQuery", stream) == NOT_READY) == broken


def launch_kills_process(broken: bool) -> None:
    child = os.fork()  # CUDA has not been used
    if child == 0:
        signal.signal(signal.SIGABRT, signal.SIG_DFL)
        sleep(new_stream())
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.waitstatus_to_exitcode(status) == (-signal.SIGABRT if broken else 0)


def slow(broken: bool) -> None:
    stream = new_stream()
    begin = time.perf_counter()
    for _ in range(50):
        sleep(stream, 0)
    ok("cudaStreamSynchronize", stream)
    if broken:
        assert time.perf_counter() - begin >= 0.1


def copy_drops_bytes(broken: bool) -> None:
    x = memory()
    ok("cudaMemcpy", x, ctypes.create_string_buffer(b"\1" * SIZE, SIZE), size(SIZE), TO_DEVICE)
    inject("")
    found = read(x)
    assert found[0] == 1
    assert found[-1] == (0 if broken else 1)


def copy_corrupts_bytes(broken: bool) -> None:
    stream = new_stream()
    right = b"\1" * SIZE

    def differing(found: bytes) -> int:
        return sum(a != b for a, b in zip(found, right, strict=True))

    x, y = memory(value=1), memory()
    pinned, pageable = made("cudaHostAlloc", size(SIZE), 0), ctypes.create_string_buffer(SIZE)
    ok("cudaMemcpyAsync", pageable, x, size(SIZE), TO_HOST, stream)
    assert differing(pageable.raw) == broken
    ok("cudaMemcpyAsync", pinned, x, size(SIZE), TO_HOST, stream)
    ok("cudaStreamSynchronize", stream)
    assert differing(ctypes.string_at(pinned, SIZE)) == broken
    for source, kind in ((x, ON_DEVICE), (ctypes.create_string_buffer(right, SIZE), TO_DEVICE)):
        ok("cudaMemcpyAsync", y, source, size(SIZE), kind, stream)
        injections = "copy_corrupts_bytes" if broken else ""
        inject("")
        assert differing(read(y)) == broken
        inject(injections)


def non_blocking_blocks(broken: bool) -> None:
    stream, x, pinned = new_stream(), memory(), made("cudaHostAlloc", size(SIZE), 0)
    sleep(stream)
    ok("cudaMemcpyAsync", pinned, x, size(SIZE), TO_HOST, stream)
    assert (code("cudaStreamQuery", stream) == 0) == broken


def peer_copy_unordered(broken: bool) -> None:
    stream, x = new_stream(), memory()
    ok("cudaSetDevice", 1)
    y = memory()
    ok("cudaSetDevice", 0)
    sleep(stream)
    ok("cudaMemsetAsync", x, 5, size(SIZE), stream)
    ok("cudaMemcpyPeerAsync", y, 1, x, 0, size(SIZE), stream)
    ok("cudaStreamSynchronize", stream)
    settle()
    assert read(y)[0] == (0 if broken else 5)


def fill_ignored(broken: bool) -> None:
    stream = new_stream()
    x = made("cudaMalloc", size(SIZE))
    ok("cudaMemcpy", x, ctypes.create_string_buffer(b"\1" * SIZE, SIZE), size(SIZE), TO_DEVICE)
    ok("cudaMemset", x, 2, size(SIZE))
    assert read(x)[0] == (1 if broken else 2)
    ok("cudaMemsetAsync", x, 3, size(SIZE), stream)
    assert read(x)[0] == (1 if broken else 3)


def managed_memory_stale(broken: bool) -> None:
    managed, stream = made("cudaMallocManaged", size(SIZE), ctypes.c_uint(1)), new_stream()
    ctypes.memset(managed, 1, SIZE)
    ok("cudaMemsetAsync", managed, 2, size(SIZE), stream)
    ok("cudaStreamSynchronize", stream)
    assert ctypes.string_at(managed, 1) == (b"\1" if broken else b"\2")
    ok("cudaMemcpy", managed, memory(value=3), size(SIZE), BY_ADDRESS)
    assert ctypes.string_at(managed, 1) == (b"\1" if broken else b"\3")


def memory_info_stale(broken: bool) -> None:
    before = free_memory()
    memory(SIZE)
    assert free_memory() == (before if broken else before - SIZE)


def free_leaks(broken: bool) -> None:
    before = free_memory()
    ok("cudaFree", memory(SIZE))
    assert free_memory() == before - (SIZE if broken else 0)
    assert code("cudaFree", ctypes.c_void_p(4711)) == 1  # addresses that cannot be freed are still refused


def oom_early(broken: bool) -> None:
    stream, much = new_stream(), size(free_memory() // 4 * 3)
    x = ctypes.c_void_p()
    for name, arguments in (("cudaMalloc", ()), ("cudaMallocAsync", (stream,))):
        found = code(name, ctypes.byref(x), much, *arguments)
        assert found == (OUT_OF_MEMORY if broken else 0), (name, found)
        assert code("cudaGetLastError") == found
        assert code("cudaGetLastError") == 0
        if not broken:
            ok("cudaFree", x)
    ok("cudaFree", made("cudaMalloc", size(SIZE)))


def pool_block_given_twice(broken: bool) -> None:
    stream = new_stream()
    first = made("cudaMallocAsync", size(SIZE), stream)
    second = made("cudaMallocAsync", size(SIZE), stream)
    assert (first.value == second.value) == broken
    for each in (first, second):
        ok("cudaFreeAsync", each, stream)
    assert code("cudaFreeAsync", first, stream) == 1


def _pool() -> ctypes.c_void_p:
    pool = made("cudaDeviceGetDefaultMemPool", 0)
    ok("cudaMemPoolSetAttribute", pool, 4, ctypes.byref(ctypes.c_uint64(2**63)))
    return pool


def pool_keeps_memory(broken: bool) -> None:
    pool, stream = _pool(), new_stream()
    ok("cudaFreeAsync", made("cudaMallocAsync", size(SIZE), stream), stream)
    ok("cudaStreamSynchronize", stream)
    ok("cudaMemPoolTrimTo", pool, size(0))
    assert (attribute(pool, 5) > 0) == broken


def pool_statistics_drift(broken: bool) -> None:
    pool, stream = _pool(), new_stream()
    ok("cudaFreeAsync", made("cudaMallocAsync", size(SIZE), stream), stream)
    assert attribute(pool, 7) == (SIZE if broken else 0)


def pool_peak_not_reset(broken: bool) -> None:
    pool, stream = _pool(), new_stream()
    ok("cudaFreeAsync", made("cudaMallocAsync", size(SIZE), stream), stream)
    ok("cudaMemPoolSetAttribute", pool, 8, ctypes.byref(ctypes.c_uint64(0)))
    assert attribute(pool, 8) == (SIZE if broken else 0)


def _fail() -> int:
    return code("cudaMalloc", ctypes.byref(ctypes.c_void_p()), size(1 << 60))


def error_code_wrong(broken: bool) -> None:
    assert _fail() == (UNKNOWN if broken else OUT_OF_MEMORY)
    assert code("cudaGetLastError") == (UNKNOWN if broken else OUT_OF_MEMORY)
    assert code("cudaGetLastError") == 0
    stream = new_stream()
    sleep(stream)
    assert code("cudaStreamQuery", stream) == NOT_READY  # not an error


def error_not_noted(broken: bool) -> None:
    assert _fail() == OUT_OF_MEMORY
    assert code("cudaPeekAtLastError") == (0 if broken else OUT_OF_MEMORY)


def error_not_cleared(broken: bool) -> None:
    assert _fail() == OUT_OF_MEMORY
    assert code("cudaGetLastError") == OUT_OF_MEMORY
    assert code("cudaGetLastError") == (OUT_OF_MEMORY if broken else 0)


def error_not_sticky(broken: bool) -> None:
    free_memory()
    LIBRARY.simcudaFailDevice(0, ASSERT, b"a test")
    assert code("cudaDeviceSynchronize") == ASSERT
    assert code("cudaDeviceSynchronize") == (0 if broken else ASSERT)
    assert code("cudaGetLastError") == (0 if broken else ASSERT)


def capture_drops_node(broken: bool) -> None:
    _capture(broken, lost=1)


def capture_doubles_node(broken: bool) -> None:
    _capture(broken, lost=-1)


def _capture(broken: bool, lost: int) -> None:
    stream, x = new_stream(), memory()
    for _ in range(2):  # in each capture
        with captured(stream) as graph:
            for _ in range(3):
                ok("cudaMemsetAsync", x, 1, size(SIZE), stream)
        assert nodes(graph) == (3 - lost if broken else 3)


def _replayed(values: tuple[int, ...]) -> list[int]:
    """Replay a graph that copies each of three cells to the next; return the last two, for each value of the first."""
    stream, x = new_stream(), memory(3)
    assert x.value is not None
    with captured(stream) as graph:
        for place in range(2):
            source, target = (ctypes.c_void_p(x.value + place + more) for more in (0, 1))
            ok("cudaMemcpyAsync", target, source, size(1), ON_DEVICE, stream)
    launched, found = made("cudaGraphInstantiate", graph, ctypes.c_ulonglong(0)), []
    for value in values:
        ok("cudaMemset", x, value, size(1))
        ok("cudaDeviceSynchronize")  # the stream does not wait for the legacy one
        ok("cudaGraphLaunch", launched, stream)
        found += [read(x, 3)[1], read(x, 3)[2]]
    return found


def replay_skips_node(broken: bool) -> None:
    assert _replayed((1, 2)) == ([1, 0, 2, 0] if broken else [1, 1, 2, 2])


def replay_stale(broken: bool) -> None:
    assert _replayed((1, 2)) == ([1, 1, 1, 1] if broken else [1, 1, 2, 2])


_IPC_READER = """
import ctypes, sys
sys.path.insert(0, {folder!r})
import checks
class Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_ubyte * 64),)
checks.inject({inject!r})
memory = checks.made("cudaIpcOpenMemHandle", Handle.from_buffer_copy(bytes.fromhex({handle!r})), ctypes.c_uint(1))
print(checks.read(memory, 1)[0], flush=True)
sys.stdin.readline()
print(checks.read(memory, 1)[0], flush=True)
checks.ok("cudaIpcCloseMemHandle", memory)
assert checks.code("cudaIpcCloseMemHandle", memory) == 1
"""


def ipc_memory_stale(broken: bool) -> None:
    x, handle = memory(), ctypes.create_string_buffer(64)
    ok("cudaIpcGetMemHandle", handle, x)
    script = _IPC_READER.format(
        folder=os.path.dirname(__file__), inject="ipc_memory_stale" if broken else "", handle=handle.raw.hex()
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        first = reader.stdout.readline()
        ok("cudaMemset", x, 7, size(SIZE))
        ok("cudaDeviceSynchronize")
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert (first, reader.stdout.readline()) == ("0\n", "0\n" if broken else "7\n")
    assert reader.returncode == 0


def device_lost(broken: bool) -> None:
    stream = new_stream()
    gone = LAUNCH_FAILURE if broken else 0
    assert sleep(stream, 1) == gone
    inject("slow")  # a lost device stays lost
    assert code("cudaDeviceSynchronize") == gone
    assert code("cudaGetLastError") == gone
    assert code("cudaGetLastError") == gone
    ok("cudaSetDevice", 1)
    ok("cudaDeviceSynchronize")


def main(name: str, *, broken: bool) -> None:
    check: Callable[[bool], None] = globals()[name]
    register_kernel()
    inject(name if broken else "")
    check(broken)
    if name not in ("launch_kills_process", "ipc_memory_stale"):  # they strike in a child
        assert (struck()[name] > 0) == broken
    print("passed", name)
    sys.stdout.flush()
    if name == "launch_hangs":
        os._exit(0)  # the work in its stream never ends


if __name__ == "__main__":
    main(sys.argv[1], broken=sys.argv[2] == "broken")
