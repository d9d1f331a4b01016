"""Library handles: each thread has its own, so that threads on streams of their own get what they would alone.

Were a handle shared, one thread's call could run on the stream that another has set, beside the operation that should
come after it. The streams sleep at odd steps, so that such a mix-up is wrong and not only early: each step uses the
result of the one before and changes it, so that a step that ran elsewhere, and found it unfinished, shows.
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
    """Run `steps` steps in each thread on a stream of its own, a few times; each must give what it gives alone.

    Thread n starts with n + 1 everywhere, and a step adds one: that is what it must give alone.
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
        # Kept to the end: once dropped, its memory could be given to another thread while a step still reads it.
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
    """Contract: products of matrices, each scaled by the operation that follows, are in each of four threads what one
    thread gets: all ones times a whole number, exact in float32."""

    def start(number: int) -> torch.Tensor:
        return torch.full((size, size), float(number + 1), device=device)

    weight = torch.ones(size, size, device=device)

    in_threads(device, 48, start, lambda _, x: (x @ weight).div_(size).add_(1))


@pytest.mark.covers("test_cuda::TestCuda::test_cudnn_multiple_threads_same_device")
def test_conv2d_in_threads(device: torch.device) -> None:
    """Contract: convolutions that shrink the image by one each time are the same for threads as for one, cuDNN being
    allowed where there is one: sums of ones, exact in float32."""
    weight = torch.ones(1, 1, 2, 2, device=device)

    def start(number: int) -> torch.Tensor:
        return torch.full((1, 1, 96, 96), float(number + 1), device=device)

    with torch.backends.cudnn.flags(enabled=True):
        in_threads(device, 40, start, lambda _, x: F.conv2d(x, weight).div_(4.0).add_(1))


@pytest.mark.covers("test_cuda::TestCuda::test_cusparse_multiple_threads_same_device")
@pytest.mark.requires(not_={"device": "soft"})  # which has no sparse tensors
def test_sparse_mm_in_threads(device: torch.device) -> None:
    """Contract: products of a sparse matrix and a dense one, each scaled by the operation that follows, are in each
    thread what one thread gets: a sparse matrix of ones in every place, exact in float32."""
    size = 128
    weight = torch.ones(size, size, device=device).to_sparse_coo()

    def start(number: int) -> torch.Tensor:
        return torch.full((size, size), float(number + 1), device=device)

    in_threads(device, 48, start, lambda _, x: torch.sparse.mm(weight, x).div_(size).add_(1))


@pytest.mark.requires(device="cuda")
def test_cholesky_solve_in_threads(device: torch.device) -> None:
    """Contract: factorisations (cuSOLVER) in threads give each its own solution: triangular systems whose solutions are
    whole numbers, to within float64's rounding."""
    size = 64
    matrix = torch.eye(size, dtype=torch.float64, device=device) * 2 + torch.ones(
        size, size, dtype=torch.float64, device=device
    )

    def work(number: int) -> float:
        stream = torch.cuda.Stream(device)
        with torch.cuda.stream(stream):
            wanted = torch.full((size, 1), float(number + 1), dtype=torch.float64, device=device)
            right = matrix @ wanted
            worst = 0.0
            for _ in range(20):
                solution = torch.cholesky_solve(right, torch.linalg.cholesky(matrix))
                worst = max(worst, (solution - wanted).abs().max().item())
        return worst

    torch.cuda.synchronize(device)
    assert all(isinstance(worst, float) and worst < 1e-10 for worst in together.run(THREADS, work))


@pytest.mark.requires(device="cuda", silicon=True)
@pytest.mark.covers("test_cuda::TestCuda::test_cublas_multiple_threads_same_device")
def test_current_blas_handle_is_the_threads_own(device: torch.device) -> None:
    """Contract: `current_blas_handle` is the same for a thread each time it asks, and no two threads that live at the
    same time have one in common."""

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
    """Contract: `current_solver_handle` gives a handle, not null, the same to a thread each time, before and after a
    factorisation."""
    first = torch.cuda.current_solver_handle()
    torch.linalg.cholesky(torch.eye(8, device=device))

    assert first != 0
    assert torch.cuda.current_solver_handle() == first
