"""Quick tests of several GPUs together: copies between each two, memory of another process, and collectives.

Each GPU has a process, its rank, which sees all GPUs of the group; its own has the number of the rank. The ranks meet
through a file. What they hold are integers that depend on the rank, so that each result is known exactly.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from harness.devices.health import HealthError
from harness.ready.bench import IPC_LAZY, MIB, Bench, IpcHandle, LacksError, SlowError, same_values

_COUNT = 1 << 16
#: Elements of a collective that NCCL splits between its channels.
_LARGE = 1 << 20
#: Seconds. No collective of a few bytes on one node takes as long, once its communicator exists.
MOST_COLLECTIVE = 0.5
_ROUNDS = 6
_NO_HANDLE = b"none"


@dataclass(frozen=True, slots=True)
class Crew:
    """The ranks of a group, as one of them knows them.

    `labels`: the GPU of each rank. `folder`: for files that all ranks of a node share. `limit`: seconds to wait for
    others. `address`, `port`: where rank 0 listens, if the ranks are on several nodes.
    """

    rank: int
    labels: tuple[str, ...]
    folder: Path
    limit: float
    address: str = ""
    port: int = 0

    @property
    def world(self) -> int:
        """The number of ranks."""
        return len(self.labels)

    def store(self, dist: Any) -> Any:
        """Return the store through which the ranks meet."""
        limit = timedelta(seconds=self.limit)
        if self.address:
            first = self.rank == 0
            return dist.TCPStore(self.address, self.port, self.world, first, timeout=limit, wait_for_workers=False)
        store = dist.FileStore(str(self.folder / "store"), self.world)
        store.set_timeout(limit)
        return store

    def way(self, peer: int) -> str:
        """Return the way from the GPU of this rank to that of another, for texts."""
        return f"{self.labels[self.rank]} to {self.labels[peer]}"


def pairs(bench: Bench, crew: Crew) -> None:
    """Bytes arrive unchanged on each other GPU, after the work before the copy and before the work after it."""
    torch, cuda = bench.torch, bench.cuda
    size = bench.sizes.copy_bytes // 4
    pattern = torch.frombuffer(bytearray(bench.source.randbytes(size)), dtype=torch.uint8)
    here = pattern.to(bench.device)
    for step in range(1, crew.world):
        peer = (crew.rank + step) % crew.world
        bench.tell(crew.way(peer))
        cuda.call("cudaSetDevice", peer)
        found = cuda.integer("cudaGetDevice")
        cuda.call("cudaSetDevice", crew.rank)
        if found != peer:
            raise HealthError(f"after cudaSetDevice({peer}), cudaGetDevice says {found}")
        there = torch.device(bench.device.type, peer)
        copied = here.to(there)
        torch.cuda.synchronize(there)
        if not bool((copied.cpu() == pattern).all()):
            wrong = int((copied.cpu() != pattern).sum().item())
            raise HealthError(f"{crew.way(peer)}: {wrong} of {size} copied bytes are wrong")
        _ordered_copy(bench, crew, peer)


def _ordered_copy(bench: Bench, crew: Crew, peer: int) -> None:
    cuda, size = bench.cuda, _COUNT
    cuda.call("cudaSetDevice", peer)
    target = cuda.pointer("cudaMalloc", ctypes.c_size_t(size))
    cuda.call("cudaMemset", target, 0, ctypes.c_size_t(size))
    cuda.call("cudaDeviceSynchronize")
    cuda.call("cudaSetDevice", crew.rank)
    with cuda.stream() as stream, cuda.memory(size) as source:
        cuda.fill(source, 1, size, stream)
        cuda.call("cudaStreamSynchronize", stream)
        bench.sleep(bench.torch.cuda.ExternalStream(stream.value, bench.device), 5.0)
        cuda.fill(source, 2, size, stream)
        arguments = (target, peer, source, crew.rank, ctypes.c_size_t(size), stream)
        cuda.call("cudaMemcpyPeerAsync", *arguments)
        cuda.fill(source, 3, size, stream)
        cuda.call("cudaStreamSynchronize", stream)
        found = {*cuda.read(target, size)}
    cuda.call("cudaFree", target)
    if found != {2}:
        raise HealthError(f"{crew.way(peer)}: a copy between a fill of 2 and one of 3 brings {sorted(found)[:3]}")


def collectives(bench: Bench, crew: Crew) -> None:
    """All-reduce, broadcast and gather have exact values, in the order of streams, and in time."""
    torch = bench.torch
    dist = torch.distributed
    if not dist.is_available() or (bench.device.type == "cuda" and not dist.is_nccl_available()):
        raise LacksError("this torch has no NCCL")
    bench.tell("creation of the group")
    limit = timedelta(seconds=crew.limit)
    store = crew.store(dist)
    own = {"device_id": bench.device} if bench.device.type == "cuda" else {}
    dist.init_process_group(
        "nccl" if own else "gloo", store=store, rank=crew.rank, world_size=crew.world, timeout=limit, **own
    )
    steps: tuple[tuple[str, Callable[[Bench, Crew, Any], None]], ...] = (
        ("all_reduce", _all_reduce),
        ("broadcast", _broadcast),
        ("all_gather", _all_gather),
        ("all_reduce after late work", _late),
        ("all_reduce in time", _in_time),
    )
    for name, step in steps:
        bench.tell(name)
        step(bench, crew, dist)
        bench.synchronize()
    if not crew.address:
        bench.tell("memory of another process")
        _shared_memory(bench, crew, store)
    bench.tell("end of the group")
    _meet(store, crew, "done")
    store.set(f"left {crew.rank}", "1")
    if crew.rank == 0:  # its process serves the store of several nodes, so it leaves last
        store.wait([f"left {rank}" for rank in range(crew.world)], timedelta(seconds=crew.limit))
    abort = getattr(dist.distributed_c10d, "_abort_process_group", dist.destroy_process_group)
    abort()


def _all_reduce(bench: Bench, crew: Crew, dist: Any) -> None:
    torch, total = bench.torch, crew.world * (crew.world + 1) // 2
    for count in (1, 1000, _LARGE):
        x = torch.arange(count, device=bench.device) % 1000 * (crew.rank + 1)
        dist.all_reduce(x)
        bench.synchronize()
        same_values(x, torch.arange(count, device=bench.device) % 1000 * total, f"all_reduce of {count} numbers")
    x = torch.full((_LARGE,), float(crew.rank + 1), dtype=torch.float32, device=bench.device)
    dist.all_reduce(x)
    bench.synchronize()
    same_values(x, torch.full_like(x, float(total)), "all_reduce in float32")
    x = torch.full((_LARGE,), crew.rank + 1, device=bench.device)
    dist.all_reduce(x, op=dist.ReduceOp.MAX)
    bench.synchronize()
    same_values(x, torch.full_like(x, crew.world), "all_reduce of the maximum")


def _broadcast(bench: Bench, crew: Crew, dist: Any) -> None:
    torch = bench.torch
    for root in range(min(2, crew.world)):
        for number in range(2):
            value = 100 * root + 10 * number + 1
            x = torch.full((_COUNT,), value if crew.rank == root else -1, device=bench.device)
            dist.broadcast(x, root)
            bench.synchronize()
            same_values(x, torch.full_like(x, value), f"broadcast {number + 1} from rank {root}")


def _all_gather(bench: Bench, crew: Crew, dist: Any) -> None:
    torch = bench.torch
    own = torch.arange(_COUNT, device=bench.device) + crew.rank * _COUNT
    gathered = [torch.zeros_like(own) for _ in range(crew.world)]
    dist.all_gather(gathered, own)
    bench.synchronize()
    for rank, part in enumerate(gathered):
        wanted = torch.arange(_COUNT, device=bench.device) + rank * _COUNT
        same_values(part, wanted, f"all_gather, the part of rank {rank}")


def _late(bench: Bench, crew: Crew, dist: Any) -> None:
    torch = bench.torch
    if bench.device.type != "cuda":
        return
    x = torch.zeros(_COUNT, dtype=torch.int64, device=bench.device)
    bench.synchronize()
    bench.sleep(torch.cuda.current_stream(), 10.0)
    x.fill_(crew.rank + 1)
    dist.all_reduce(x)
    bench.synchronize()
    same_values(x, torch.full_like(x, crew.world * (crew.world + 1) // 2), "all_reduce after a fill")


def _in_time(bench: Bench, _: Crew, dist: Any) -> None:
    x = bench.torch.zeros(8, device=bench.device)
    least = float("inf")
    for _round in range(_ROUNDS):
        bench.synchronize()
        begin = time.perf_counter()
        dist.all_reduce(x)
        bench.synchronize()
        least = min(least, time.perf_counter() - begin)
    bench.figures["all_reduce_seconds"] = least
    if least > MOST_COLLECTIVE:
        raise SlowError(
            f"all_reduce of 32 bytes takes {least:.2f} s at best, in {_ROUNDS} rounds; expected less than "
            f"{MOST_COLLECTIVE:g} s"
        )


def _shared_memory(bench: Bench, crew: Crew, store: Any) -> None:
    """The next rank's memory, opened here, shows what its owner writes after that."""
    cuda, size = bench.cuda, MIB
    with cuda.memory(size) as own:
        cuda.call("cudaMemset", own, 1, ctypes.c_size_t(size))
        cuda.call("cudaDeviceSynchronize")
        handle = IpcHandle()
        code = cuda.code("cudaIpcGetMemHandle", ctypes.byref(handle), own)
        cuda.code("cudaGetLastError")
        store.set(f"handle {crew.rank}", _NO_HANDLE if code else bytes(handle))
        handles = [store.get(f"handle {rank}") for rank in range(crew.world)]
        if _NO_HANDLE in handles:  # as all ranks see: some containers and virtual machines share no memory
            return
        opened = ctypes.c_void_p()
        theirs = IpcHandle.from_buffer_copy(handles[(crew.rank + 1) % crew.world])
        code = cuda.code("cudaIpcOpenMemHandle", ctypes.byref(opened), theirs, ctypes.c_uint(IPC_LAZY))
        cuda.code("cudaGetLastError")
        if code == 0:
            cuda.read(opened, 16)
        _meet(store, crew, "opened")
        cuda.call("cudaMemset", own, crew.rank + 2, ctypes.c_size_t(size))
        cuda.call("cudaDeviceSynchronize")
        _meet(store, crew, "written")
        wanted = (crew.rank + 1) % crew.world + 2
        found = {*cuda.read(opened, size)} if code == 0 else {wanted}
        if code == 0:
            cuda.call("cudaIpcCloseMemHandle", opened)
        _meet(store, crew, "closed")
    if found != {wanted}:
        raise HealthError(
            f"memory of rank {(crew.rank + 1) % crew.world}, opened by rank {crew.rank}, shows {sorted(found)[:3]} "
            f"instead of {wanted}"
        )


def _meet(store: Any, crew: Crew, name: str) -> None:
    """Wait until every rank has come here."""
    store.set(f"{name} {crew.rank}", "1")
    store.wait([f"{name} {rank}" for rank in range(crew.world)], timedelta(seconds=crew.limit))
