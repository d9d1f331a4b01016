"""Trees in training: forward and backward recorded in one path, skipped apart, pending, accumulated."""

from __future__ import annotations

import gc
import re
import warnings
from typing import Any

import pytest
import torch

from suites._torch_private_compiled import counter

from . import _torch_private as private
from . import operators, trees
from .trees import Counts, both_compilers, compiled, on_cuda, watched, whole_numbers, with_triton

ROW = "test_cudagraph_trees::CudaGraphTreeTests::"
#: What torch warns of, in the words of 2.11 and of later releases.
PENDING_BACKWARD = re.compile("pending, uninvoked backwards|still require backward")

pytestmark = [on_cuda, pytest.mark.timeout(trees.LIMIT)]


def cubed(x: torch.Tensor) -> torch.Tensor:
    return x * x * x + 2 * x


def gradient(x: torch.Tensor) -> torch.Tensor:
    """Of the sum of `cubed`."""
    return 3 * x.detach() * x.detach() + 2


def train(fast: Any, device: torch.device, steps: int, *, marked: bool = False) -> None:
    """Some steps, each with its own input, whose outputs and gradients must be those of the formula."""
    for step in range(steps):
        if marked:
            torch.compiler.cudagraph_mark_step_begin()
        x = whole_numbers(16, device=device, start=step).requires_grad_()
        y = fast(x)
        trees.assert_same(trees.values(y), [cubed(x).detach()], f"step {step}, forward")
        y.sum().backward()
        assert x.grad is not None
        trees.assert_same([x.grad], [gradient(x)], f"step {step}, gradient")


@both_compilers
@pytest.mark.parametrize("marked", [False, True], ids=["unmarked", "marked"])
@pytest.mark.covers(f"{ROW}test_forward_backward", f"{ROW}test_forward_generation")
def test_recording_of_forward_and_backward_is_one_path(marked: bool, compiler: str, device: torch.device) -> None:
    """Contract: forward and backward are warmed up, recorded and replayed, each once a step; the backward's recording
    hangs below the forward's, whose saved tensors it reads. A new forward begins a new generation once a backward
    ran, or where the program marks its steps."""
    with watched() as watch:
        train(compiled(cubed, compiler), device, 6, marked=marked)
        assert watch.counts() == Counts(warm_ups=2, recordings=2, replays=8)
        assert private.descendants(device) == [1]


@both_compilers
@pytest.mark.covers(f"{ROW}test_forward_backward_not_called", f"{ROW}test_warn_on_pending_backward")
def test_recording_of_forwards_whose_backward_never_runs(compiler: str, device: torch.device) -> None:
    """Contract: as long as a backward may follow, forwards do not overwrite earlier ones: their outputs keep their
    values, at the price of a warm-up for each, and none is replayed; torch warns of that. Steps that are marked end
    it."""
    with watched() as watch:
        fast = compiled(cubed, compiler)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            inputs = [whole_numbers(16, device=device, start=n).requires_grad_() for n in range(6)]
            outputs = [fast(x) for x in inputs]
        wanted = [cubed(x).detach() for x in inputs]
        trees.assert_same(trees.values(outputs), wanted, "forwards without a backward")
        assert watch.counts() == Counts(warm_ups=6)
        del outputs
        assert any(PENDING_BACKWARD.search(str(warning.message)) for warning in caught)
        for number in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            out = fast(inputs[number])
            trees.assert_same(trees.values(out), [wanted[number]], f"marked step {number}")
            del out
        assert watch.counts().replays >= 3


@both_compilers
@pytest.mark.covers(f"{ROW}test_forward_backward")
def test_recording_of_two_models_one_after_the_other(compiler: str, device: torch.device) -> None:
    """Contract: a second compiled model takes the output of the first, and both backward passes run: one path of four
    graphs, in which nothing is overwritten before its use."""
    with watched() as watch:
        first, second = compiled(cubed, compiler), compiled(lambda y: y * y, compiler)
        for step in range(6):
            x = (whole_numbers(16, device=device, start=step) % 3).requires_grad_()
            second(first(x)).sum().backward()
            assert x.grad is not None
            trees.assert_same([x.grad], [2 * cubed(x).detach() * gradient(x)], f"step {step}")
        counts = watch.counts()
        assert (counts.warm_ups, counts.recordings, counts.skips) == (4, 4, 0)
        assert counts.replays == 16
        assert private.descendants(device) == [3]


@pytest.mark.parametrize("partition", [False, True], ids=["whole", "partition"])
@with_triton
@pytest.mark.covers(
    f"{ROW}test_forward_with_skipped_cudagraphed_backward",
    f"{ROW}test_graph_partition_forward_with_skipped_cudagraphed_backward",
)
def test_recording_of_a_forward_whose_backward_cannot_be(partition: bool, device: torch.device) -> None:
    """Contract: where only the backward cannot be captured, the forward is still recorded, and replayed in each step
    that the program marks; gradients are right. (A backward that is no graph does not end a generation by itself.)"""
    with watched(graph_partition=partition) as watch:
        fast = compiled(lambda x: operators.SafeForward.apply(x * 3), trees.INDUCTOR)
        for step in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            x = whole_numbers(16, device=device, start=step).requires_grad_()
            y = fast(x)
            trees.assert_same(trees.values(y), [x.detach() * 6], f"step {step}")
            weights = whole_numbers(16, device=device, start=2 * step + 1)
            y.backward(weights)
            assert x.grad is not None
            trees.assert_same([x.grad], [6 * weights], f"gradient of step {step}")
        counts = watch.counts()
        assert counts.replays >= 4
        if not partition:
            assert (counts.warm_ups, counts.recordings, counts.skips) == (1, 1, 1)
            assert any("unsafe_twice" in reason for reason in watch.reasons())


@with_triton
@pytest.mark.covers(
    f"{ROW}test_cache_hit_forward_miss_backward",
    f"{ROW}test_backward_gets_cached_cudagraphs",
    f"{ROW}test_cached_forward_backward",
)
def test_recording_of_code_from_the_inductor_cache(device: torch.device) -> None:
    """Contract: a forward compiled anew, or found in the cache of compiled graphs, is recorded alike, and so is its
    backward, whether it is found there too or compiled for the first time."""
    with private.fresh_cache():
        settings = {"fx_graph_cache": True, "fx_graph_remote_cache": False}
        with watched(**settings) as watch:
            fast = compiled(cubed, trees.INDUCTOR)
            for number in range(3):  # only the forward is called and compiled
                x = whole_numbers(16, device=device, start=number).requires_grad_()
                torch.compiler.cudagraph_mark_step_begin()
                trees.assert_same(trees.values(fast(x)), [cubed(x).detach()], f"forward {number}")
            assert watch.counts() == Counts(warm_ups=1, recordings=1, replays=1)
        for known in (1, 2):  # the forward is known and the backward is new, and then both are known
            with watched(**settings) as watch:
                before = counter("inductor", "fxgraph_cache_hit")
                train(compiled(cubed, trees.INDUCTOR), device, 5)
                assert watch.counts() == Counts(warm_ups=2, recordings=2, replays=6)
                assert counter("inductor", "fxgraph_cache_hit") - before == known


@both_compilers
@pytest.mark.covers(f"{ROW}test_accumulate_grad")
def test_recorded_backward_accumulates_in_memory_of_the_program(compiler: str, device: torch.device) -> None:
    """Contract: gradients that a program has allocated itself grow by each replayed backward as by an eager one."""
    weight = whole_numbers(16, device=device).requires_grad_()
    weight.grad = own = torch.zeros_like(weight)
    memory = own.data_ptr()
    with watched() as watch:
        fast = compiled(lambda w, x: (w * x).sum(), compiler)
        total = torch.zeros(16, device=device)
        for step in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            x = whole_numbers(16, device=device, start=step)
            fast(weight, x).backward()
            total += x
            trees.assert_same([weight.grad], [total], f"step {step}")
            assert weight.grad is own, f"step {step} has put another gradient in place of the program's"
        assert own.data_ptr() == memory
        assert watch.counts().replays >= 8


@both_compilers
@pytest.mark.covers(f"{ROW}test_grad_accumulation_dealloc_error_message")
def test_recorded_grad_that_was_overwritten_is_an_error(compiler: str, device: torch.device) -> None:
    """Contract: a `.grad` that a recorded backward allocated lies in the trees' memory, and is gone in the next
    generation: using it raises, and since torch 2.13 the message says it is a gradient and what to do."""
    weight = whole_numbers(16, device=device).requires_grad_()
    with watched():
        fast = compiled(lambda w, x: (w * x).sum(), compiler)
        x = whole_numbers(16, device=device, start=2)
        torch.compiler.cudagraph_mark_step_begin()
        fast(weight, x).backward()
        kept = weight.grad
        weight.grad = None
        torch.compiler.cudagraph_mark_step_begin()
        fast(weight, x)
        assert kept is not None
        with pytest.raises(RuntimeError, match=r"(?i)overwritten by a subsequent run") as caught:
            kept + 1
        if torch.__version__ >= (2, 13):
            assert "gradient" in str(caught.value)
            assert "set .grad to None before each backward" in str(caught.value)
        del kept, caught
        gc.collect()


@with_triton
@pytest.mark.covers(f"{ROW}test_dynamic_backward")
def test_recordings_of_gradients_of_any_size(device: torch.device) -> None:
    """Contract: with sizes that vary, forward and backward have a recording for each size, and every size has its
    right gradients, also when it comes back."""
    with watched() as watch:
        fast = compiled(cubed, trees.INDUCTOR, dynamic=True)
        for step, size in enumerate([8, 12, 16, 8, 12, 16, 8, 12, 16, 16, 8]):
            x = whole_numbers(size, device=device, start=step).requires_grad_()
            fast(x).sum().backward()
            assert x.grad is not None
            trees.assert_same([x.grad], [gradient(x)], f"step {step}, size {size}")
        counts = watch.counts()
        assert (counts.warm_ups, counts.recordings, counts.replays) == (6, 6, 10)


@pytest.mark.requires(device="cuda", devices=2, triton=True)
@pytest.mark.covers(f"{ROW}test_cached_boxed_forward_device_index")
def test_recordings_of_a_cached_forward_on_a_second_device(device: torch.device) -> None:
    """Contract: code that was compiled for one device and then for another has its graphs on the device of its inputs,
    forward and backward, from the cache as well."""
    second = torch.device(device.type, 1)
    with private.fresh_cache():
        for known in (0, 4):  # a forward and a backward for each device
            with watched(fx_graph_cache=True, fx_graph_remote_cache=False) as watch:
                before = counter("inductor", "fxgraph_cache_hit")
                fast = compiled(cubed, trees.INDUCTOR)
                for where in (device, second):
                    train(fast, where, 4)
                    assert private.descendants(where) == [1]
                assert counter("inductor", "fxgraph_cache_hit") - before == known
                assert watch.counts() == Counts(warm_ups=4, recordings=4, replays=8)
