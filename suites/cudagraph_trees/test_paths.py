"""Conditions for replaying the recording of a path: addresses of inputs, dead outputs, the number of differences."""

from __future__ import annotations

import warnings

import pytest
import torch

from . import _torch_private as private
from . import trees
from .test_backward import PENDING_BACKWARD, cubed
from .trees import both_compilers, compiled, on_cuda, watched, whole_numbers

ROW = "test_cudagraph_trees::CudaGraphTreeTests::"

pytestmark = [on_cuda, pytest.mark.timeout(trees.LIMIT)]


@both_compilers
@pytest.mark.requires(torch=">=2.13")  # earlier releases record once more
@pytest.mark.covers(f"{ROW}test_fallback_to_eager_if_recompiling_too_many_times")
def test_cudagraph_unexpected_rerecord_limit_ends_recordings(compiler: str, device: torch.device) -> None:
    """A function whose input moves among the trees' outputs is recorded again up to the limit, and then is eager.

    The message has the limit, and why the recordings did not fit.
    """
    with watched(triton__cudagraph_unexpected_rerecord_limit=2) as watch, torch.no_grad():
        first = compiled(lambda x: (x + 1, x * 2, x - 3, -x, x * 4), compiler)
        second = compiled(lambda y: y * 10, compiler)
        seen = []
        for step, place in enumerate([0, 0, 0, 1, 2, 3, 4, 0, 2]):
            torch.compiler.cudagraph_mark_step_begin()
            x = whole_numbers(16, device=device, start=step)
            outputs = first(x)
            watch.counts()
            found = second(outputs[place])
            wanted = (x + 1, x * 2, x - 3, -x, x * 4)[place] * 10
            trees.assert_same(trees.values(found), [wanted], f"step {step}, place {place}")
            counts = watch.counts()
            seen.append((counts.warm_ups, counts.recordings, counts.replays, counts.skips))
            del outputs, found
        warm_up, recording, replay, skip, eager = (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (0, 0, 0, 0)
        assert seen == [warm_up, recording, replay, recording, recording, skip, eager, eager, eager]
        (reason,) = watch.reasons()
        assert "function 1 exceeding max re-recording limit (=2) on cudagraph node 0" in reason
        assert "data pointer changed" in reason


@both_compilers
def test_outputs_that_died_before_a_recording_die_before_its_replays(compiler: str, device: torch.device) -> None:
    """A recording is replayed if the same outputs have died as before, and is recorded again if one is alive."""
    with watched() as watch, torch.no_grad():
        pair = compiled(lambda x: (x + 1, x * 2), compiler)
        later = compiled(lambda y: torch.cat([y, y]) - 5, compiler)
        seen = []
        for step in range(9):
            torch.compiler.cudagraph_mark_step_begin()
            x = whole_numbers(512, device=device, start=step)
            first, second = pair(x)
            if step not in (5, 7):
                del first
            watch.counts()
            third = later(second)
            trees.assert_same(trees.values(third), [torch.cat([x * 2, x * 2]) - 5], f"step {step}")
            counts = watch.counts()
            seen.append((counts.warm_ups, counts.recordings, counts.replays))
            first = second = third = None
        warm_up, recording, replay = (1, 0, 0), (0, 1, 0), (0, 0, 1)
        assert seen == [warm_up, recording, *[replay] * 3, recording, *[replay] * 3]


@pytest.mark.xfail(
    torch.__version__ < (2, 15),
    raises=AssertionError,
    reason="an output that only autograd holds counts as dead, and the gradient is wrong: "
    "https://github.com/pytorch/pytorch/pull/194124",
    strict=True,
)
@both_compilers
def test_output_that_autograd_saved_is_alive(compiler: str, device: torch.device) -> None:
    """An output that code between two graphs saved for its backward keeps its values until then.

    Only the autograd graph refers to the output. When the second graph was recorded into its memory, nothing did.
    """
    weight = torch.ones(64, device=device, requires_grad=True)
    with watched() as watch:
        first = compiled(lambda x: x + 1, compiler)
        second = compiled(lambda x: (x * 2, x * 3, x * 5), compiler)
        for step in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            x = whole_numbers(64, device=device, start=step)
            loss = (first(x) * weight).sum() if step == 3 else first(x).sum()
            found = second(x)
            trees.assert_same(trees.values(found), [x * 2, x * 3, x * 5], f"step {step}")
            del found
        assert watch.counts().recordings == 2
        loss.backward()
        assert weight.grad is not None
        trees.assert_same([weight.grad], [x + 1], "gradient")


@both_compilers
def test_mutated_output_behind_an_empty_one_is_recorded(compiler: str, device: torch.device) -> None:
    """An output of the trees is recognized as such, even if an output before it has no memory."""

    def change(x: torch.Tensor) -> torch.Tensor:
        x.add_(2)
        return x * 5

    keep = {"cudagraph_backend_keep_input_mutation": True, "cudagraph_backend_support_input_mutation": True}
    with private.dynamo_config(**keep), watched(triton__cudagraph_support_input_mutation=True) as watch:
        make, fast = compiled(lambda x: (x[:0] * 2, x + 1), compiler), compiled(change, compiler)
        for step in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            x = whole_numbers(8, device=device, start=step)
            empty, y = make(x)
            z = fast(y)
            trees.assert_same(trees.values([empty, y, z]), [x[:0], x + 3, (x + 3) * 5], f"step {step}")
            del empty, y, z
        counts = watch.counts()
        assert (counts.recordings, counts.skips, watch.reasons()) == (2, 0, [])


@both_compilers
def test_mutated_input_of_the_program_after_an_output_of_the_trees(compiler: str, device: torch.device) -> None:
    """A function that mutated an output of the trees in a warm-up is not recorded with a tensor of the program.

    The recording would mutate a copy of that tensor.
    """

    def change(x: torch.Tensor) -> torch.Tensor:
        x.add_(2)
        return x * 5

    keep = {"cudagraph_backend_keep_input_mutation": True, "cudagraph_backend_support_input_mutation": True}
    with private.dynamo_config(**keep), watched(triton__cudagraph_support_input_mutation=True) as watch:
        first, second = compiled(lambda x: x + 1, compiler), compiled(lambda x: x * 3, compiler)
        fast = compiled(change, compiler)
        for step in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            x = whole_numbers(8, device=device, start=step)
            y = first(x)
            given, wanted = (second(y), (x + 1) * 3) if step == 0 else (x.clone(), x)
            z = fast(given)
            trees.assert_same(trees.values([y, given, z]), [x + 1, wanted + 2, (wanted + 2) * 5], f"step {step}")
            del y, given, z
        assert watch.reasons()


@both_compilers
def test_pending_backward_is_warned_of_at_the_third_forward(compiler: str, device: torch.device) -> None:
    """torch warns of pending backwards once, at the third forward, when two forwards wait for their backward."""
    with watched():
        fast = compiled(cubed, compiler)
        inputs = [whole_numbers(16, device=device, start=n).requires_grad_() for n in range(5)]
        kept, seen = [], []
        for x in inputs:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                kept.append(fast(x))
            seen.append(sum(PENDING_BACKWARD.search(str(each.message)) is not None for each in caught))
        assert seen == [0, 0, 1, 0, 0]
