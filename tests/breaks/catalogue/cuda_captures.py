"""Captures of `torch.cuda.graph` that fail, on the simulated CUDA."""

from __future__ import annotations

import functools
from typing import Any

from tests.breaks.breaks import Theme, replace
from tests.breaks.kernels import torch_with_cuda

broken = Theme()
_SUITE = "suites/graphs/test_failed_captures.py"
_on_cuda = functools.partial(broken, device="simcuda")


def _after_an_exception() -> object:
    """Let a capture end by an exception. Return whether the stream is restored, and the memory that stays reserved."""
    torch = torch_with_cuda()
    x, before = torch.ones(1 << 20, device="cuda"), torch.cuda.current_stream()
    torch.cuda.synchronize()
    reserved = torch.cuda.memory_reserved()
    try:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            x * 2
            raise LookupError
    except LookupError:
        pass
    restored, capturing = torch.cuda.current_stream() == before, torch.cuda.is_current_stream_capturing()
    torch.cuda.set_stream(before)
    if not capturing:
        torch.cuda.empty_cache()
    return restored, torch.cuda.memory_reserved() - reserved


@_on_cuda("A capture that ends by an exception leaves its stream current.", _SUITE, shows=_after_an_exception)
def failed_captures_leave_their_stream() -> None:
    import torch

    def around(leave: Any) -> Any:
        return lambda self, kind, *more: self.cuda_graph.capture_end() if kind else leave(self, kind, *more)

    replace(torch.cuda.graph, "__exit__", around)


@_on_cuda("A graph whose capture ended by an exception is kept for good.", _SUITE, shows=_after_an_exception)
def failed_captures_keep_their_graph() -> None:
    import torch

    kept: list[Any] = []

    def around(leave: Any) -> Any:
        def leaves(self: Any, kind: Any, *more: Any) -> None:
            if kind:
                kept.append(self.cuda_graph)
            leave(self, kind, *more)

        return leaves

    replace(torch.cuda.graph, "__exit__", around)


@_on_cuda("A capture that ends by an exception goes on.", _SUITE, shows=_after_an_exception)
def failed_captures_go_on() -> None:
    import torch

    kept: list[Any] = []

    def around(leave: Any) -> Any:
        return lambda self, kind, *more: kept.append(self) if kind else leave(self, kind, *more)

    replace(torch.cuda.graph, "__exit__", around)
