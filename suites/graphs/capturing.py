"""Graphs of both APIs: `torch.accelerator.Graph` on any accelerator, and `torch.cuda.CUDAGraph`.

A case that takes `api` (see `apis`) checks a contract that both share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import pytest
import torch

ELEMENTS = 1 << 12


class Api(Protocol):
    """The common interface of the two APIs."""

    name: str

    def new(self, *, keep_graph: bool = False) -> Any:
        """Return a graph without a capture."""

    def begin(self, graph: Any, pool: Any = None, mode: str = "thread_local") -> None:
        """Begin to capture the current stream."""

    def capturing(self, graph: Any, stream: torch.Stream, pool: Any = None, mode: str = "thread_local") -> Any:
        """Capture the block's work on `stream`."""


class Accelerator:
    """`torch.accelerator.Graph`, whose options are constructor arguments or attributes."""

    name = "accelerator"

    def new(self, *, keep_graph: bool = False) -> Any:
        return torch.accelerator.Graph(keep_graph=keep_graph)

    def begin(self, graph: Any, pool: Any = None, mode: str = "thread_local") -> None:
        graph.graph_pool, graph.capture_error_mode = pool, mode
        graph.capture_begin()

    @contextmanager
    def capturing(
        self, graph: Any, stream: torch.Stream, pool: Any = None, mode: str = "thread_local"
    ) -> Iterator[None]:
        graph.graph_pool, graph.capture_error_mode = pool, mode
        with stream, graph:
            yield


class Cuda:
    """`torch.cuda.CUDAGraph`, captured with `torch.cuda.graph`."""

    name = "cuda"

    def new(self, *, keep_graph: bool = False) -> Any:
        return torch.cuda.CUDAGraph(keep_graph)

    def begin(self, graph: Any, pool: Any = None, mode: str = "thread_local") -> None:
        options = {} if pool is None else {"pool": pool}
        graph.capture_begin(capture_error_mode=mode, **options)

    @contextmanager
    def capturing(
        self, graph: Any, stream: torch.Stream, pool: Any = None, mode: str = "thread_local"
    ) -> Iterator[None]:
        own = torch.cuda.Stream(
            stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type
        )
        with torch.cuda.graph(graph, pool=pool, stream=own, capture_error_mode=mode):
            yield


_ACCELERATOR = pytest.param(Accelerator(), id="accelerator", marks=pytest.mark.requires(accelerator_graphs=True))


def _cuda(*marks: pytest.MarkDecorator) -> Any:
    return pytest.param(Cuda(), id="cuda", marks=[pytest.mark.requires(device="cuda"), *marks])


#: Runs a case with both APIs, where available.
apis = pytest.mark.parametrize("api", [_ACCELERATOR, _cuda()])

#: Like `apis`, but without CUDA's API, for a capture that cannot end: torch then leaves its allocator and the current
#: stream in the capture's state for the rest of the process. Cases for CUDA do this in a child process.
apis_in_this_process = pytest.mark.parametrize("api", [_ACCELERATOR])

#: Like `apis`, for a capture that raises when it begins. Before 2.13, torch's CUDA generator then stays in the
#: capture's state and cannot draw.
apis_that_refuse = pytest.mark.parametrize("api", [_ACCELERATOR, _cuda(pytest.mark.requires(torch=">=2.13"))])

#: Like `apis`, for a graph that is printed. Since 2.14, torch prints CUDA graphs through the runtime of cuda.bindings,
#: NVIDIA's package, which needs NVIDIA's driver.
_PRINTS = [pytest.mark.requires(silicon=True)] if torch.__version__ >= (2, 14) else []
apis_that_print = pytest.mark.parametrize("api", [_ACCELERATOR, _cuda(*_PRINTS)])

on_cuda = pytest.mark.requires(device="cuda")


def captured(
    api: Api,
    device: torch.device,
    work: Callable[[], object],
    *,
    pool: Any = None,
    stream: torch.Stream | None = None,
    rehearse: bool = True,
    **options: Any,
) -> Any:
    """Return a graph of `work`.

    By default, `work` first runs once on the capture stream, so that first-use initialization is complete.
    """
    stream = torch.Stream(device) if stream is None else stream
    stream.wait_stream(torch.accelerator.current_stream(device))
    if rehearse:
        with stream:
            work()
    torch.accelerator.synchronize(device)
    graph = api.new(**options)
    with api.capturing(graph, stream, pool):
        work()
    torch.accelerator.synchronize(device)
    return graph


def works(device: torch.device) -> bool:
    """Return whether the device still computes, which must hold after every error."""
    torch.accelerator.synchronize(device)
    return bool(torch.arange(100, device=device).sum().item() == 4950)
