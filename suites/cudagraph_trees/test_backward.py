"""CUDA graph trees in training: forward and backward in one path, separate skips, pending backwards, accumulation."""

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
#: The warning's text in 2.11 and in later releases.
PENDING_BACKWARD = re.compile("pending, uninvoked backwards|still require backward")

pytestmark = [on_cuda, pytest.mark.timeout(trees.LIMIT)]


def cubed(x: torch.Tensor) -> torch.Tensor:
    return x * x * x + 2 * x


def gradient(x: torch.Tensor) -> torch.Tensor:
    """Return the gradient of the sum of `cubed`."""
    return 3 * x.detach() * x.detach() + 2


def train(fast: Any, device: torch.device, steps: int, *, marked: bool = False) -> None:
    """Run training steps with a different input each, and check outputs and gradients against the formula."""
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
    """Forward and backward are warmed up, recorded and replayed once per step.

    The backward's recording is a child of the forward's, whose saved tensors it reads. The next forward starts a new
    generation if a backward ran, or if the program marks its steps.
    """
    with watched() as watch:
        train(compiled(cubed, compiler), device, 6, marked=marked)
        assert watch.counts() == Counts(warm_ups=2, recordings=2, replays=8)
        assert private.descendants(device) == [1]


@both_compilers
@pytest.mark.covers(f"{ROW}test_forward_backward_not_called", f"{ROW}test_warn_on_pending_backward")
def test_recording_of_forwards_whose_backward_never_runs(compiler: str, device: torch.device) -> None:
    """While a backward may follow, forwards do not overwrite earlier outputs: each is a warm-up, and none is replayed.

    Torch warns about this, and marking the steps ends it.
    """
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
    """Two compiled models in sequence, both with backward passes, form one path of four graphs with correct values."""
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
def test_recording_of_a_forward_whose_backward_cannot_be_captured(partition: bool, device: torch.device) -> None:
    """If only the backward cannot be captured, the forward is recorded, and replayed in each marked step.

    The gradients are correct. A backward without a graph does not end a generation by itself.
    """
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
    """A forward from the cache of compiled graphs is recorded like a new one, and so is its backward, cached or not."""
    with private.fresh_cache():
        settings = {"fx_graph_cache": True, "fx_graph_remote_cache": False}
        with watched(**settings) as watch:
            fast = compiled(cubed, trees.INDUCTOR)
            for number in range(3):  # only the forward is called, and therefore compiled
                x = whole_numbers(16, device=device, start=number).requires_grad_()
                torch.compiler.cudagraph_mark_step_begin()
                trees.assert_same(trees.values(fast(x)), [cubed(x).detach()], f"forward {number}")
            assert watch.counts() == Counts(warm_ups=1, recordings=1, replays=1)
        for known in (1, 2):  # first only the forward is cached, then both
            with watched(**settings) as watch:
                before = counter("inductor", "fxgraph_cache_hit")
                train(compiled(cubed, trees.INDUCTOR), device, 5)
                assert watch.counts() == Counts(warm_ups=2, recordings=2, replays=6)
                assert counter("inductor", "fxgraph_cache_hit") - before == known


@both_compilers
@pytest.mark.covers(f"{ROW}test_accumulate_grad")
def test_recorded_backward_accumulates_in_memory_of_the_program(compiler: str, device: torch.device) -> None:
    """A replayed backward accumulates into gradients that the program allocated, like an eager backward."""
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
            assert weight.grad is own, f"step {step} replaced the program's gradient tensor"
        assert own.data_ptr() == memory
        assert watch.counts().replays >= 8


@both_compilers
@pytest.mark.covers(f"{ROW}test_grad_accumulation_dealloc_error_message")
def test_recorded_grad_that_was_overwritten_is_an_error(compiler: str, device: torch.device) -> None:
    """A `.grad` that a recorded backward allocated is in the trees' memory, and using it in the next generation raises.

    Since torch 2.13 the message says that it is a gradient and what to do.
    """
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


class SavedIsGradient(torch.autograd.Function):
    """The sum of two tensors. The gradient of the first is a tensor that the forward saved."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x * x)
        return x + y

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the saved tensor itself, and a new one."""
        (saved,) = ctx.saved_tensors
        return saved, gradients[0] * 3


@both_compilers
def test_gradient_that_is_a_saved_tensor(compiler: str, device: torch.device) -> None:
    """A recorded backward may return a tensor that the forward saved: each step has its own values.

    Only the inputs of the backward hold the tensor then, and the replay must keep it for its output
    (`preserved_aliased_inputs` of torch/_inductor/cudagraph_trees.py).
    """
    with watched() as watch:
        fast = compiled(SavedIsGradient.apply, compiler)
        for step in range(6):
            x, y = (whole_numbers(16, device=device, start=step + more).requires_grad_() for more in (0, 5))
            fast(x, y).sum().backward()
            assert x.grad is not None
            assert y.grad is not None
            trees.assert_same([x.grad, y.grad], [(x * x).detach(), torch.full_like(y, 3)], f"step {step}")
        assert watch.counts() == Counts(warm_ups=2, recordings=2, replays=8)


@with_triton
@pytest.mark.covers(f"{ROW}test_dynamic_backward")
def test_recordings_of_gradients_of_any_size(device: torch.device) -> None:
    """With varying sizes, forward and backward have one recording per size, with correct gradients."""
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
    """Code compiled for one device and then another has its graphs on the device of its inputs, also from the cache."""
    second = torch.device(device.type, 1)
    with private.fresh_cache():
        for known in (0, 4):  # one forward and one backward per device
            with watched(fx_graph_cache=True, fx_graph_remote_cache=False) as watch:
                before = counter("inductor", "fxgraph_cache_hit")
                fast = compiled(cubed, trees.INDUCTOR)
                for where in (device, second):
                    train(fast, where, 4)
                    assert private.descendants(where) == [1]
                assert counter("inductor", "fxgraph_cache_hit") - before == known
                assert watch.counts() == Counts(warm_ups=4, recordings=4, replays=8)
