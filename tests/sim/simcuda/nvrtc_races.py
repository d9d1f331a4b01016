"""Programs with and without an order between streams (see `race_programs`) whose work NVRTC has compiled."""

from __future__ import annotations

import functools
from typing import Any

import torch

from tests.sim.simcuda.race_programs import is_ordered, races, reuses

cuda: Any = torch.cuda  # partly untyped

N = 1024
_SOURCE = """
extern "C" __global__ void copy(float* from, float* to) { to[threadIdx.x] = from[threadIdx.x]; }
"""


@functools.cache
def _kernel() -> Any:
    torch.zeros(1, device="cuda")  # opens the context
    return cuda._compile_kernel(_SOURCE, "copy")


def copy(source: torch.Tensor, to: torch.Tensor) -> None:
    _kernel()((1, 1, 1), (N // 2, 1, 1), (source, to))


def start() -> tuple[torch.Tensor, torch.Tensor, torch.cuda.Stream, torch.cuda.Stream]:
    _kernel()
    x, y = (torch.ones(N, device="cuda") for _ in range(2))
    cuda.synchronize()
    return x, y, cuda.Stream(), cuda.Stream()


@races
def compiled_kernel_reads_without_a_wait() -> None:
    x, y, first, second = start()
    with cuda.stream(first):
        x.add_(1)
    with cuda.stream(second):
        copy(x, y)


@races
def compiled_kernel_writes_without_a_wait() -> None:
    x, y, first, second = start()
    with cuda.stream(first):
        copy(x, y)
    with cuda.stream(second):
        y.sum()


@races
def compiled_kernels_write_the_same() -> None:
    x, y, first, second = start()
    for stream in (first, second):
        with cuda.stream(stream):
            copy(x, y)


@is_ordered
def compiled_kernels_with_a_wait() -> None:
    x, y, first, second = start()
    with cuda.stream(first):
        copy(x, y)
    second.wait_stream(first)
    with cuda.stream(second):
        y.sum()


@is_ordered
def compiled_kernels_only_read_the_same() -> None:
    """The parameter does not point to constants, and the kernel does not write through it."""
    x, y, first, second = start()
    other = torch.ones(N, device="cuda")
    cuda.synchronize()
    for stream, to in ((first, y), (second, other)):
        with cuda.stream(stream):
            copy(x, to)


@is_ordered
def compiled_kernels_of_two_halves() -> None:
    x, y, first, second = start()
    for stream, part in ((first, y[: N // 2]), (second, y[N // 2 :])):
        with cuda.stream(stream):
            copy(x, part)


@races
def jiterated_function_without_a_wait() -> None:
    x, _, first, second = start()
    double = cuda.jiterator._create_jit_fn("template <typename T> T twice(T x) { return x + x; }")
    double(x)
    cuda.synchronize()
    with cuda.stream(first):
        x.add_(1)
    with cuda.stream(second):
        double(x)


@reuses
def compiled_kernel_on_memory_of_another_stream() -> None:
    _, y, first, second = start()
    with cuda.stream(first):
        short = torch.ones(N, device="cuda")
    second.wait_stream(first)
    with cuda.stream(second):
        copy(short, y)
    del short
    with cuda.stream(first):
        torch.zeros(N, device="cuda")
