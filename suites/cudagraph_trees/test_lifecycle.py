"""Tree managers and their memory: one manager per device and thread, which a reset frees; streams and workspaces."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from suites.streams.busy import calibrate, sleep_on

from . import _torch_private as private
from . import operators, trees
from .trees import Counts, both_compilers, compiled, on_cuda, watched, whole_numbers, with_triton

ROW = "test_cudagraph_trees::CudaGraphTreeTests::"

pytestmark = [on_cuda, pytest.mark.timeout(trees.LIMIT)]


@both_compilers
@pytest.mark.covers(f"{ROW}test_cleanup")
def test_compiler_reset_drops_the_manager_and_frees_its_memory(compiler: str, device: torch.device) -> None:
    """The first call creates a manager and memory in its pool; a reset frees both once the outputs are dead.

    Code compiled afterwards starts from scratch and is correct.
    """
    with watched() as watch:
        for round_ in range(3):
            assert private.manager(device) is None
            fast = compiled(lambda x: x @ x + 1, compiler)
            for number in range(4):
                x = whole_numbers(32, 32, device=device, start=number)
                trees.assert_same(trees.values(fast(x)), [x @ x + 1], f"round {round_}, call {number}")
            assert private.manager(device) is not None
            assert private.graph_segments(), "the trees have no memory"
            assert watch.counts() == Counts(warm_ups=1, recordings=1, replays=2)
            del fast
            torch.compiler.reset()
            gc.collect()
            torch.cuda.synchronize()
            assert private.manager(device) is None
            assert private.live_bytes_of_graphs() == 0


@both_compilers
@pytest.mark.covers(f"{ROW}test_cleanup")
def test_output_outlives_the_manager(compiler: str, device: torch.device) -> None:
    """An output that is kept across a compiler reset keeps its values and its memory."""
    x = whole_numbers(64, device=device)
    with watched():
        fast = compiled(lambda x: x * 2 + 1, compiler)
        for _ in range(3):
            out = fast(x)
        del fast
    gc.collect()
    others = [torch.full((64,), -1.0, device=device) for _ in range(50)]
    assert torch.equal(out, x * 2 + 1)
    assert all((other == -1).all() for other in others)


@with_triton
# Earlier releases let threads record concurrently: "already recording to mempool_id".
@pytest.mark.requires(torch=">=2.13")
@pytest.mark.covers(f"{ROW}test_multithreaded_cudagraph_trees")
def test_tree_manager_of_each_thread_is_its_own(device: torch.device) -> None:
    """Each thread that calls a compiled function has its own manager, warm-up and recording."""
    start = threading.Barrier(3)
    one_at_a_time = threading.Lock()

    def calls(fast: Callable[[torch.Tensor], torch.Tensor], first: int) -> int:
        start.wait(60)
        for number in range(6):
            x = whole_numbers(128, device=device, start=first + number)
            trees.assert_same(trees.values(fast(x)), [x * x + 3], f"call {number}")
        manager = id(private.manager(device))
        start.wait(60)  # no manager is freed, and its id reused, before all threads have stored their managers
        with one_at_a_time:
            private.reset_trees()
        return manager

    with watched() as watch:
        fast = compiled(lambda x: x * x + 3, trees.INDUCTOR)
        x = whole_numbers(128, device=device)
        trees.assert_same(trees.values(fast(x)), [x * x + 3], "before the threads")  # compiled in one thread only
        before = watch.counts()
        with ThreadPoolExecutor(3) as threads:
            managers = [one.result() for one in [threads.submit(calls, fast, 7 * n) for n in range(3)]]
        mine = id(private.manager(device))
        assert before == Counts(warm_ups=1)
        counts = watch.counts()
        assert counts == Counts(warm_ups=3, recordings=3, replays=12)
    assert len({*managers, mine}) == 4


@pytest.mark.requires(device="cuda", devices=2)
@both_compilers
@pytest.mark.covers(f"{ROW}test_manager_per_device")
def test_tree_manager_of_each_device_is_its_own(compiler: str, device: torch.device) -> None:
    """Functions called with tensors of two devices have their graphs on each device, with one manager per device."""
    second = torch.device(device.type, 1)
    with watched() as watch:
        for where in (second, device):
            fast = compiled(lambda x: x * 5, compiler, dynamic=False)
            for number in range(4):
                x = whole_numbers(16, device=where, start=number)
                found = fast(x)
                assert found.device == where
                trees.assert_same(trees.values(found), [x * 5], f"{where}, call {number}")
                del found
        assert watch.counts() == Counts(warm_ups=2, recordings=2, replays=4)
        assert [private.descendants(where) for where in (device, second)] == [[0], [0]]
        both = [private.manager(where) for where in (device, second)]
        assert None not in both
        assert both[0] is not both[1]


@pytest.mark.requires(device="cuda", devices=2)
def test_compiler_reset_ends_the_recordings_of_each_device(device: torch.device) -> None:
    """A pending backward raises after a reset, since its recordings are gone, even if another device has none."""
    with watched():
        for where in (torch.device(device.type, 1), device):
            assert private.manager(device) is None
            fast = compiled(lambda x: x * x, trees.CUDAGRAPHS, dynamic=False)
            for step in range(4):
                torch.compiler.cudagraph_mark_step_begin()
                x = whole_numbers(16, device=where, start=step).requires_grad_()
                loss = fast(x).sum()
                if step < 3:
                    loss.backward()
            torch.compiler.reset()
            with pytest.raises(AssertionError, match="after shutdown"):
                loss.backward()
            assert x.grad is None


@both_compilers
@pytest.mark.covers(f"{ROW}test_single_stream_use", f"{ROW}test_warmup_stream_sync")
def test_warm_ups_and_recordings_keep_the_order_of_the_callers_stream(compiler: str, device: torch.device) -> None:
    """Warm-up and recording run on the trees' own stream, after the caller's earlier work and before its later work.

    Late writes to the input are visible, and results are ready, even if the work itself takes long.
    """
    with watched():
        fast = compiled(lambda x: operators.slow(x * 2) - 1, compiler)
        calibrate(device)
        stream = torch.cuda.Stream(device)
        late = torch.zeros(1 << 16, device=device)
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for value in range(1, 7):
                sleep_on(stream, 20)
                late.fill_(value)
                found = fast(late)
                seen = found.clone()
                stream.synchronize()
                assert (seen == 2 * value + 1).all(), f"call {value} ran before its input was written"
                del found
        streams = {segment["stream"] for segment in private.graph_segments()}
        assert len(streams) == 1, "memory of one tree was allocated on several streams"
        assert streams.isdisjoint({stream.cuda_stream, 0}), "memory of the tree was allocated on the caller's stream"


@both_compilers
@pytest.mark.covers(f"{ROW}test_side_stream_memory_allocation")
def test_recording_with_work_on_a_side_stream_inside(compiler: str, device: torch.device) -> None:
    """Replays are correct if an operator computes and allocates on a side stream during recording, and joins it."""
    with watched() as watch:
        fast = compiled(lambda x: operators.beside(x * 3) - 1, compiler)
        for number in range(5):
            x = whole_numbers(256, device=device, start=number)
            trees.assert_same(trees.values(fast(x)), [x * 3 + 1], f"call {number}")
        assert watch.counts() == Counts(warm_ups=1, recordings=1, replays=3)


@pytest.mark.parametrize("compiler", [trees.CUDAGRAPHS, pytest.param(trees.INDUCTOR, marks=with_triton)])
@pytest.mark.covers(f"{ROW}test_workspace_allocation_error")
def test_cublas_workspaces_do_not_stay_in_the_pool(compiler: str, device: torch.device) -> None:
    """The cuBLAS workspace is freed around warm-ups and recordings, so the pool does not grow with their number.

    Eager products before, between and after are correct.
    """
    x = whole_numbers(64, 64, device=device) % 3
    with watched():
        held = []
        for size in range(8):
            fast = compiled(lambda x: x @ x, compiler, dynamic=False)
            part = x[: 32 + 4 * size, : 32 + 4 * size].contiguous()
            for number in range(3):
                assert torch.equal(part @ part, (part.cpu() @ part.cpu()).to(device))
                trees.assert_same(trees.values(fast(part)), [part @ part], f"size {size}, call {number}")
            held.append(private.live_bytes_of_graphs())
        growth = [b - a for a, b in itertools.pairwise(held[2:])]
        assert max(growth) < 1 << 20, f"each recording holds more than its input and output: {held}"


@both_compilers
@pytest.mark.covers(f"{ROW}test_cleanup")
def test_compiler_reset_frees_managers_of_dropped_functions(compiler: str, device: torch.device) -> None:
    """Many rounds of compiling, recording and dropping functions with a reset leave no additional memory allocated."""
    with watched():
        held = []
        for _ in range(5):
            fast = compiled(lambda x: (x + 1).sum(0), compiler)
            for number in range(3):
                fast(whole_numbers(512, 64, device=device, start=number))
            del fast
            torch.compiler.reset()
            gc.collect()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            held.append(torch.cuda.memory_allocated(device))
        assert held[-1] <= held[1], f"memory grew: {held}"
