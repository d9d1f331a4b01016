"""Graphs of work, by the interface that the release and the device have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from suites import accelerator_graphs


def captured(device: torch.device, work: Callable[[], object]) -> Any:
    """A graph of `work`, which must have run before; the capture itself runs nothing. It has `replay()`.

    `torch.accelerator.Graph` where torch has it for the device, else CUDA's.
    """
    stream = torch.Stream(device)
    stream.wait_stream(torch.accelerator.current_stream(device))
    if accelerator_graphs.served():
        graph: Any = accelerator_graphs.new()
        with stream, graph:
            work()
    else:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
    torch.accelerator.synchronize(device)
    return graph


def rehearsed(device: torch.device, work: Callable[[], object], times: int) -> None:
    """Run `work` on a stream beside the current one, as is needed before it is captured."""
    stream = torch.Stream(device)
    stream.wait_stream(torch.accelerator.current_stream(device))
    with stream:
        for _ in range(times):
            work()
    torch.accelerator.current_stream(device).wait_stream(stream)
    torch.accelerator.synchronize(device)
