"""Captures and graphs: the nodes of a capture, and the effect of each launch."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from ..streams.busy import calibrate, ever
from .cudart import EXTERNAL, NOT_READY, ON_DEVICE, WITHOUT_TIME, Runtime, at, busy

pytestmark = pytest.mark.requires(device="cuda", rocm=False)

SIZE = 256


def needed(cuda: Runtime, node: int | None) -> list[int | None]:
    """Return the dependencies of a node in a graph of three. The function has one more parameter since CUDA 13."""
    found, count = (ctypes.c_void_p * 3)(), ctypes.c_size_t(3)
    version = ctypes.c_int()
    cuda.call("cudaRuntimeGetVersion", ctypes.byref(version))
    data = (None,) if version.value >= 13000 else ()
    cuda.call("cudaGraphNodeGetDependencies", ctypes.c_void_p(node), found, *data, ctypes.byref(count))
    return list(found)[: count.value]


@contextmanager
def launchable(cuda: Runtime, graph: ctypes.c_void_p) -> Iterator[ctypes.c_void_p]:
    """Instantiate the graph for launches, and destroy it afterwards."""
    launched = cuda.pointer("cudaGraphInstantiate", graph, ctypes.c_ulonglong(0))
    try:
        yield launched
    finally:
        cuda.call("cudaGraphExecDestroy", launched)
        cuda.call("cudaGraphDestroy", graph)


def test_cudastreamendcapture_has_each_piece_of_work_once(cuda: Runtime) -> None:
    """A capture of three operations is a graph of three nodes, each of which depends on the previous one."""
    with cuda.stream() as stream, cuda.memory(4 * SIZE) as x:

        def work() -> None:
            cuda.call("cudaMemsetAsync", x, 1, ctypes.c_size_t(SIZE), stream)
            cuda.call("cudaMemcpyAsync", at(x, SIZE), x, ctypes.c_size_t(SIZE), ON_DEVICE, stream)
            cuda.call("cudaMemsetAsync", at(x, 2 * SIZE), 2, ctypes.c_size_t(SIZE), stream)

        graph = cuda.graph_of(stream, work)
        try:
            count = ctypes.c_size_t()
            cuda.call("cudaGraphGetNodes", graph, None, ctypes.byref(count))
            assert count.value == 3
            nodes = (ctypes.c_void_p * 3)()
            cuda.call("cudaGraphGetNodes", graph, nodes, ctypes.byref(count))
            before = [needed(cuda, node) for node in nodes]
            assert sorted(len(each) for each in before) == [0, 1, 1]
            # no node is a dependency of both others, so it is a chain
            assert len({each[0] for each in before if each}) == 2
        finally:
            cuda.call("cudaGraphDestroy", graph)
        assert cuda.read(x, SIZE) == b"\0" * SIZE


def test_cudagraphlaunch_runs_every_node_each_time(cuda: Runtime) -> None:
    """Each launch of a graph runs each node, with the current contents of its inputs."""
    with cuda.stream() as stream, cuda.memory(4 * SIZE) as x:

        def work() -> None:
            for place in range(3):
                source, target = at(x, place * SIZE), at(x, (place + 1) * SIZE)
                cuda.call("cudaMemcpyAsync", target, source, ctypes.c_size_t(SIZE), ON_DEVICE, stream)

        with launchable(cuda, cuda.graph_of(stream, work)) as launched:
            for value in (1, 2, 3):
                cuda.call("cudaMemsetAsync", x, value, ctypes.c_size_t(SIZE), stream)
                cuda.call("cudaGraphLaunch", launched, stream)
                cuda.call("cudaStreamSynchronize", stream)
                assert cuda.read(x, 4 * SIZE) == bytes([value]) * 4 * SIZE


def test_cudagraphlaunch_waits_for_an_external_event(cuda: Runtime, device: torch.device) -> None:
    """A graph that captured cudaEventWaitExternal waits, at each launch, for the latest record on another stream."""
    calibrate(device)
    with cuda.stream() as other, cuda.stream() as stream, cuda.event(WITHOUT_TIME) as event, cuda.memory(2 * SIZE) as x:

        def work() -> None:
            cuda.call("cudaStreamWaitEvent", stream, event, EXTERNAL)
            cuda.call("cudaMemcpyAsync", at(x, SIZE), x, ctypes.c_size_t(SIZE), ON_DEVICE, stream)

        with launchable(cuda, cuda.graph_of(stream, work)) as launched:
            values = iter(range(1, 100))

            def trial() -> bool:
                value = next(values)
                busy(other, device)
                cuda.call("cudaMemsetAsync", x, value, ctypes.c_size_t(SIZE), other)
                cuda.call("cudaEventRecord", event, other)
                cuda.call("cudaGraphLaunch", launched, stream)
                working = cuda.code("cudaEventQuery", event) == NOT_READY
                cuda.call("cudaStreamSynchronize", stream)
                assert cuda.read(at(x, SIZE), SIZE) == bytes([value]) * SIZE
                return working

            assert ever(trial)


def test_cudagraphlaunch_records_an_external_event(cuda: Runtime, device: torch.device) -> None:
    """A graph that captured cudaEventRecordExternal records the event at each launch, after its earlier nodes."""
    calibrate(device)
    with cuda.stream() as stream, cuda.stream() as other, cuda.event(WITHOUT_TIME) as event, cuda.memory(3 * SIZE) as x:

        def work() -> None:
            cuda.call("cudaMemcpyAsync", at(x, SIZE), x, ctypes.c_size_t(SIZE), ON_DEVICE, stream)
            cuda.call("cudaEventRecordWithFlags", event, stream, ctypes.c_uint(EXTERNAL))

        with launchable(cuda, cuda.graph_of(stream, work)) as launched:
            values = iter(range(1, 100))

            def trial() -> bool:
                value = next(values)
                busy(stream, device)
                cuda.call("cudaMemsetAsync", x, value, ctypes.c_size_t(SIZE), stream)
                cuda.call("cudaGraphLaunch", launched, stream)
                cuda.call("cudaStreamWaitEvent", other, event, 0)
                cuda.call("cudaMemcpyAsync", at(x, 2 * SIZE), at(x, SIZE), ctypes.c_size_t(SIZE), ON_DEVICE, other)
                working = cuda.code("cudaEventQuery", event) == NOT_READY
                cuda.call("cudaStreamSynchronize", other)
                assert cuda.read(at(x, 2 * SIZE), SIZE) == bytes([value]) * SIZE
                return working

            assert ever(trial)
