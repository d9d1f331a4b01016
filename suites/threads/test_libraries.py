"""Library handles are per thread, so threads on separate streams get the same results as a single thread.

With a shared handle, one thread's call could run on another's stream, out of order with the operation that follows it.
Each step uses and changes the previous result, and the streams sleep at different steps, so that such an error gives a
wrong result.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from ..streams.busy import calibrate, sleep_on
from . import together

THREADS, ROUNDS = 4, 3


def in_threads(device: torch.device, steps: int, start: Callable[[int], Any], step: Callable[[int, Any], Any]) -> None:
    """Run `steps` steps in each thread on its own stream, several times; the result must equal that without threads.

    Thread n starts with n + 1 in each element, and each step adds one.
    """
    if device.type != "cpu":
        calibrate(device)
    expected = []
    for number in range(THREADS):
        x = start(number)
        for _ in range(steps):
            x = step(number, x)
        assert (x == number + 1 + steps).all()
        expected.append(x.cpu())

    def work(number: int) -> torch.Tensor:
        # Kept until the end: otherwise another thread could get its memory while a step still reads it.
        first = x = start(number)
        if device.type == "cpu":
            for _ in range(steps):
                x = step(number, x)
            return x
        torch.accelerator.synchronize(device)
        stream = torch.Stream(device)
        with stream:
            for position in range(steps):
                if position % 16 == number:
                    sleep_on(stream, 1)
                x = step(number, x)
        stream.synchronize()
        result: torch.Tensor = x.cpu()
        del first
        return result

    for _ in range(ROUNDS):
        for got, wanted in zip(together.run(THREADS, work), expected, strict=True):
            assert isinstance(got, torch.Tensor)
            assert torch.equal(got, wanted)


@pytest.mark.covers("test_cuda::TestCuda::test_cublas_multiple_threads_same_device")
@pytest.mark.parametrize("size", [64, 257])
def test_matmul_in_threads(device: torch.device, size: int) -> None:
    """Matrix products with scaling in four threads equal those in one thread, exactly in float32."""

    def start(number: int) -> torch.Tensor:
        return torch.full((size, size), float(number + 1), device=device)

    weight = torch.ones(size, size, device=device)

    in_threads(device, 48, start, lambda _, x: (x @ weight).div_(size).add_(1))


@pytest.mark.covers("test_cuda::TestCuda::test_cudnn_multiple_threads_same_device")
def test_conv2d_in_threads(device: torch.device) -> None:
    """Convolutions in threads equal those in one thread, with cuDNN if available: sums of ones, exact in float32."""
    weight = torch.ones(1, 1, 2, 2, device=device)

    def start(number: int) -> torch.Tensor:
        return torch.full((1, 1, 96, 96), float(number + 1), device=device)

    with torch.backends.cudnn.flags(enabled=True):
        in_threads(device, 40, start, lambda _, x: F.conv2d(x, weight).div_(4.0).add_(1))


@pytest.mark.covers("test_cuda::TestCuda::test_cusparse_multiple_threads_same_device")
@pytest.mark.requires(sparse=True)
def test_sparse_mm_in_threads(device: torch.device) -> None:
    """Products of sparse and dense matrices in threads equal those in one thread, exactly in float32."""
    size = 128
    weight = torch.ones(size, size, device=device).to_sparse_coo()

    def start(number: int) -> torch.Tensor:
        return torch.full((size, size), float(number + 1), device=device)

    in_threads(device, 48, start, lambda _, x: torch.sparse.mm(weight, x).div_(size).add_(1))


@pytest.mark.requires(accelerator=True)
@pytest.mark.types("float64")
def test_cholesky_solve_in_threads(device: torch.device) -> None:
    """Factorizations in threads, each on its own stream, give correct integer solutions, within float64 rounding."""
    size = 64
    matrix = torch.eye(size, dtype=torch.float64, device=device) * 2 + torch.ones(
        size, size, dtype=torch.float64, device=device
    )

    def work(number: int) -> float:
        with torch.Stream(device):
            wanted = torch.full((size, 1), float(number + 1), dtype=torch.float64, device=device)
            right = matrix @ wanted
            worst = 0.0
            for _ in range(20):
                solution = torch.cholesky_solve(right, torch.linalg.cholesky(matrix))
                worst = max(worst, (solution - wanted).abs().max().item())
        return worst

    # Torch loads the library at its first use, which several threads must not do concurrently
    # (https://github.com/pytorch/pytorch/issues/90613).
    torch.linalg.cholesky(matrix)
    torch.accelerator.synchronize(device)
    assert all(isinstance(worst, float) and worst < 1e-10 for worst in together.run(THREADS, work))


@pytest.mark.requires(device="cuda", silicon=True)
@pytest.mark.covers("test_cuda::TestCuda::test_cublas_multiple_threads_same_device")
def test_current_blas_handle_is_per_thread(device: torch.device) -> None:
    """`current_blas_handle` is constant per thread, and different for concurrent threads."""

    all_have_one = threading.Barrier(THREADS, timeout=together.LIMIT)

    def work(_: int) -> tuple[int, int]:
        first = torch.cuda.current_blas_handle()
        torch.ones(4, 4, device=device) @ torch.ones(4, 4, device=device)
        all_have_one.wait()
        return first, torch.cuda.current_blas_handle()

    mine = torch.cuda.current_blas_handle()
    pairs = [pair for pair in together.run(THREADS, work) if isinstance(pair, tuple)]

    assert all(first == second != 0 for first, second in pairs)
    assert len({mine, *(first for first, _ in pairs)}) == THREADS + 1


@pytest.mark.requires(device="cuda", silicon=True, torch=">=2.13")
@pytest.mark.covers("test_cuda::TestCuda::test_current_solver_handle")
def test_current_solver_handle_is_the_same_each_time(device: torch.device) -> None:
    """`current_solver_handle` is not null, and is the same for a thread before and after a factorization."""
    first = torch.cuda.current_solver_handle()
    torch.linalg.cholesky(torch.eye(8, device=device))

    assert first != 0
    assert torch.cuda.current_solver_handle() == first
