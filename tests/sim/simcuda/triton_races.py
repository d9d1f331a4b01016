"""Programs with and without an order between streams (see `race_programs`) whose work is written in Triton."""

from __future__ import annotations

from typing import Any

import torch

from tests.sim.simcuda import triton_kernels as kernels
from tests.sim.simcuda.race_programs import is_ordered, races

cuda: Any = torch.cuda  # partly untyped

N = 1024


def two_streams() -> tuple[torch.cuda.Stream, torch.cuda.Stream]:
    return cuda.Stream(), cuda.Stream()


def ones() -> torch.Tensor:
    x = torch.ones(N, device="cuda")
    cuda.synchronize()
    return x


def run_both(first: tuple[int, int], second: tuple[int, int]) -> None:
    x = ones()
    for stream, (start, size) in zip(two_streams(), (first, second), strict=True):
        with cuda.stream(stream):
            kernels.fill_with_sum[(1,)](x, start, BLOCK=size)


@races
def triton_kernel_without_a_wait() -> None:
    x, out = ones(), ones()
    first, second = two_streams()
    with cuda.stream(first):
        kernels.add[(4,)](x, x, out, N, BLOCK=256)
    with cuda.stream(second):
        out.sum()


@is_ordered
def triton_kernel_with_a_wait() -> None:
    x, out = ones(), ones()
    first, second = two_streams()
    with cuda.stream(first):
        kernels.add[(4,)](x, x, out, N, BLOCK=256)
    second.wait_stream(first)
    with cuda.stream(second):
        out.sum()


@is_ordered
def triton_kernels_of_two_halves() -> None:
    run_both((0, 512), (512, 512))


@races
def triton_kernels_that_overlap_by_one_element() -> None:
    run_both((0, 512), (511, 512))


@is_ordered
def triton_gathers_from_one_tensor() -> None:
    x, index = ones(), torch.arange(N, device="cuda")
    outs = ones(), ones()
    for stream, out in zip(two_streams(), outs, strict=True):
        with cuda.stream(stream):
            kernels.gather[(1,)](x, index, out, BLOCK=N)


@races
def triton_gather_from_what_another_stream_writes() -> None:
    x, index, out = ones(), torch.arange(N, device="cuda"), ones()
    first, second = two_streams()
    with cuda.stream(first):
        kernels.gather[(1,)](x, index, out, BLOCK=N)
    with cuda.stream(second):
        x.add_(1)


@is_ordered
def triton_atomics_of_two_streams() -> None:
    counter = torch.zeros(1, dtype=torch.int32, device="cuda")
    cuda.synchronize()
    for stream in two_streams():
        with cuda.stream(stream):
            kernels.count[(8,)](counter)
    cuda.synchronize()
    assert counter.item() == 16


@races
def triton_kernel_in_a_graph_without_a_wait() -> None:
    x, out, graph = ones(), ones(), cuda.CUDAGraph()
    kernels.add[(4,)](x, x, out, N, BLOCK=256)
    cuda.synchronize()
    with cuda.graph(graph):
        kernels.add[(4,)](x, x, out, N, BLOCK=256)
    first, second = two_streams()
    with cuda.stream(first):
        graph.replay()
    with cuda.stream(second):
        out.sum()
