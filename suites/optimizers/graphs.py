"""Graphs of work, through the API that the torch release and the device support."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_NOT_SERVED = "Graph is not supported on device type: cuda"


def captured(device: torch.device, work: Callable[[], object]) -> Any:
    """Return a graph of `work`, which must have run before; the capture itself does not run it.

    The graph has `replay()`. Use `torch.accelerator.Graph` if torch supports it for the device, and CUDA's graphs
    otherwise.
    """
    stream = torch.Stream(device)
    stream.wait_stream(torch.accelerator.current_stream(device))
    graph = accelerator_graph()
    if graph is not None:
        with stream, graph:
            work()
    else:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
    torch.accelerator.synchronize(device)
    return graph


def accelerator_graph() -> Any:
    """Return a `torch.accelerator.Graph`, or None if torch has none for CUDA, as in 2.11 to 2.15."""
    make: Any = getattr(torch.accelerator, "Graph", None)
    if make is None:
        return None
    try:
        return make()
    except RuntimeError as problem:
        if _NOT_SERVED not in str(problem):
            raise
        return None


def rehearsed(device: torch.device, work: Callable[[], object], times: int) -> None:
    """Run `work` on a side stream, as required before its capture."""
    stream = torch.Stream(device)
    stream.wait_stream(torch.accelerator.current_stream(device))
    with stream:
        for _ in range(times):
            work()
    torch.accelerator.current_stream(device).wait_stream(stream)
    torch.accelerator.synchronize(device)
