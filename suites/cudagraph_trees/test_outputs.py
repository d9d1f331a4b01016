"""Outputs of trees: what they are while they live, how they alias, and the error for one that was overwritten."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch

from . import _torch_private as private
from . import trees
from .trees import (
    CUDAGRAPHS,
    INDUCTOR,
    Counts,
    both_compilers,
    compiled,
    on_cuda,
    repeated,
    watched,
    whole_numbers,
    with_triton,
)

ROW = "test_cudagraph_trees::CudaGraphTreeTests::"

OVERWRITTEN = r"(?i)overwritten by a subsequent run"

pytestmark = [on_cuda, pytest.mark.timeout(trees.LIMIT)]


# How outputs may share storage, with each other and with inputs.


def two_views(x: torch.Tensor) -> object:
    y = x + 1
    return y[:2], y[1:], y.t()


def whole_and_part(x: torch.Tensor) -> object:
    y = x * 2
    return y, y[1], x + 3


def the_same_twice(x: torch.Tensor) -> object:
    y = x - 1
    return y, y


def view_of_input(x: torch.Tensor) -> object:
    return x[1:], x + 1, x


def nothing_at_all(x: torch.Tensor) -> object:
    return x + 1, torch.empty(0, 5, device=x.device), x[:0], None


def numbers_too(x: torch.Tensor) -> object:
    return x + 1, 7, x.shape[0], "text"


OUTPUTS: dict[str, Callable[[torch.Tensor], object]] = {
    "two_views": two_views,
    "whole_and_part": whole_and_part,
    "the_same_twice": the_same_twice,
    "view_of_input": view_of_input,
    "nothing_at_all": nothing_at_all,
    "numbers_too": numbers_too,
}


@pytest.mark.parametrize("name", OUTPUTS)
@both_compilers
@pytest.mark.covers(f"{ROW}test_output_alias", f"{ROW}test_empty_storage")
def test_outputs_of_every_kind_are_replayed(name: str, compiler: str, device: torch.device) -> None:
    """Contract: views of one tensor, views of inputs, empty tensors and plain values come out of replays
    as of eager runs, and what shares memory there shares it here."""
    work = OUTPUTS[name]

    def shared(found: object) -> list[tuple[int, int]]:
        storages = [one.untyped_storage()._cdata for one in flat(found)]
        return [(i, j) for j, b in enumerate(storages) for i, a in enumerate(storages[:j]) if a == b]

    def flat(found: object) -> list[torch.Tensor]:
        assert isinstance(found, tuple)
        return [one for one in found if isinstance(one, torch.Tensor)]

    with watched() as watch:
        fast = compiled(work, compiler)
        for number in range(5):
            x = whole_numbers(3, 3, device=device, start=number)
            found, wanted = fast(x), work(x)
            trees.assert_same(trees.values(found), trees.values(wanted), f"call {number}")
            assert shared(found) == shared(wanted), f"call {number}"
            inputs = x.untyped_storage().data_ptr()
            assert [one.untyped_storage().data_ptr() == inputs for one in flat(found)] == [
                one.untyped_storage().data_ptr() == inputs for one in flat(wanted)
            ]
            del found, wanted
        assert watch.counts() == Counts(warm_ups=1, recordings=1, replays=3)


@both_compilers
@pytest.mark.covers(f"{ROW}test_live_outputs_multiple_graphs", f"{ROW}test_peristed_output_livenes")
def test_outputs_of_a_whole_step_live_together(compiler: str, device: torch.device) -> None:
    """Contract: outputs of all functions called in one step keep their values until the next step begins, however
    many there are and in whatever order they are dropped."""
    with watched():
        functions = [
            compiled(lambda x: x + 1, compiler),
            compiled(lambda x: x * 2, compiler),
            compiled(lambda x: (x - 3, x * x), compiler),
        ]
        plain: list[Callable[[torch.Tensor], object]] = [lambda x: x + 1, lambda x: x * 2, lambda x: (x - 3, x * x)]
        for step in range(5):
            torch.compiler.cudagraph_mark_step_begin()
            x = whole_numbers(128, device=device, start=step)
            outputs = [function(x) for function in functions]
            for number in (1, 0, 2) if step % 2 else (2, 0, 1):
                wanted = trees.values(plain[number](x))
                trees.assert_same(trees.values(outputs[number]), wanted, f"step {step}, function {number}")
                outputs[number] = None


@both_compilers
@pytest.mark.covers(f"{ROW}test_tensor_dies_between_checkpoint", f"{ROW}test_checkpointing_resets_persistent_refs")
def test_outputs_that_died_before_a_recording_are_free_again(compiler: str, device: torch.device) -> None:
    """Contract: where one of two outputs died before a new function is recorded below, the other keeps its values, and
    the recording may use the memory of the dead one; replays with both alive are right again."""
    with watched():
        pair = compiled(lambda x: (x + 1, x * 2), compiler)
        later = compiled(lambda y: torch.cat([y, y]) - 5, compiler)
        for step in range(6):
            torch.compiler.cudagraph_mark_step_begin()
            x = whole_numbers(512, device=device, start=step)
            first, second = pair(x)
            if step != 4:
                del first
            third = later(second) if step >= 2 else None
            trees.assert_same(trees.values(second), [x * 2], f"step {step}, second output")
            if third is not None:
                trees.assert_same(trees.values(third), [torch.cat([x * 2, x * 2]) - 5], f"step {step}, below")
            if step == 4:
                trees.assert_same(trees.values(first), [x + 1], f"step {step}, first output")
            first = second = third = None


@both_compilers
@pytest.mark.covers(
    f"{ROW}test_aliased_output_checkpoint",
    f"{ROW}test_checkpoint_shared_output_storage_deallocation",
    f"{ROW}test_aliased_storage_single_weakref",
)
def test_outputs_that_share_memory_are_freed_once(compiler: str, device: torch.device) -> None:
    """Contract: two outputs in one storage, one of which dies, the first or the second, keep that storage; when both
    are dead it is freed once, and later recordings and replays of other functions below them are right."""
    with watched() as watch:
        alias = compiled(lambda x: (*(x + 1).chunk(2), *(x * 3).chunk(2)), compiler)
        others = [compiled(work, compiler) for work in (lambda y: y + 10, lambda y: y * 7, lambda y: y - 4)]
        plain: list[Callable[[torch.Tensor], torch.Tensor]] = [lambda y: y + 10, lambda y: y * 7, lambda y: y - 4]
        for step in range(9):
            torch.compiler.cudagraph_mark_step_begin()
            x = whole_numbers(8, device=device, start=step)
            outputs = list(alias(x))
            wanted = [*(x + 1).chunk(2), *(x * 3).chunk(2)]
            storages = [one.untyped_storage().data_ptr() for one in outputs]
            assert storages[0] == storages[1] != storages[2] == storages[3]
            del outputs[1:3], wanted[1:3]
            below = others[step % 3](outputs[-1])
            trees.assert_same(trees.values(outputs), wanted, f"step {step}")
            trees.assert_same(trees.values(below), [plain[step % 3](wanted[-1])], f"step {step}, below")
            del outputs, below
        assert watch.counts().recordings == 4


@both_compilers
@pytest.mark.parametrize("in_recording", [False, True], ids=["warmed_up", "recorded"])
@pytest.mark.covers(
    f"{ROW}test_error_on_dealloc_use",
    f"{ROW}test_error_on_dealloc_use2",
    f"{ROW}test_tensor_no_longer_in_pool",
    f"{ROW}test_storage_access_error",
    f"{ROW}test_clear_storage_data_ptr_access_error",
)
def test_overwritten_output_is_an_error(in_recording: bool, compiler: str, device: torch.device) -> None:
    """Contract: an output of a warm-up or a recording, kept into the next generation, is gone: each use of it raises,
    and tells that it was overwritten and what to do. A clone is as it was."""
    with watched():
        fast = compiled(lambda x: x * x + 1, compiler)
        x = whole_numbers(64, device=device)
        if in_recording:
            fast(x)
        kept = fast(x)
        clone = kept.clone()
        view = kept[:4]
        fast(x + 1)

        uses: list[Callable[[torch.Tensor], object]] = [
            lambda gone: gone + 1,
            lambda gone: gone.data_ptr(),
            lambda gone: gone.untyped_storage().data_ptr(),
        ]
        for gone in (kept, view):
            for use in uses:
                with pytest.raises(RuntimeError, match=OVERWRITTEN):
                    use(gone)
        with pytest.raises(RuntimeError, match=OVERWRITTEN) as caught:
            kept.sum()
        assert "clone the tensor" in str(caught.value)
        assert "cudagraph_mark_step_begin()" in str(caught.value)
        assert torch.equal(clone, x * x + 1)
        del kept, view, gone
        gc.collect()


@both_compilers
@pytest.mark.covers(
    f"{ROW}test_output_node_has_stack_traces_inference", f"{ROW}test_output_node_has_stack_traces_training"
)
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_overwritten_output_error_names_the_line_that_made_it(
    training: bool, compiler: str, device: torch.device
) -> None:
    """Contract: the error for an overwritten output names the line of the program that made it, and not that of another
    output, in inference and in training."""

    def work(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        tripled = x * 3
        raised = x + 7
        return tripled, raised

    with watched():
        fast = compiled(work, compiler)
        x = whole_numbers(16, device=device).requires_grad_(training)
        torch.compiler.cudagraph_mark_step_begin()
        kept = fast(x)
        torch.compiler.cudagraph_mark_step_begin()
        fast(x)
        lines = ["tripled = x * 3", "raised = x + 7"]
        for gone, line in zip(kept, lines, strict=True):
            with pytest.raises(RuntimeError, match=OVERWRITTEN) as caught:
                gone + 1
            assert [one in str(caught.value) for one in lines] == [one == line for one in lines]
        del kept, gone, caught
        gc.collect()


@both_compilers
@pytest.mark.covers(f"{ROW}test_remove_hooks_on_cached_tensors")
def test_register_hook_on_an_output_does_not_come_back(compiler: str, device: torch.device) -> None:
    """Contract: outputs of replays may be the same tensor object each time, but a hook that a program puts on one is
    not on the next."""
    called: list[int] = []
    with watched() as watch:
        fast = compiled(lambda x: x * x, compiler)
        for number in range(6):
            leaf = whole_numbers(8, device=device, start=number).requires_grad_()
            out = fast(leaf)
            assert not out._backward_hooks, f"call {number} has a hook already"
            out.register_hook(lambda _, number=number: called.append(number))  # type: ignore[misc]
            out.backward(torch.ones_like(out))
            assert leaf.grad is not None
            assert torch.equal(leaf.grad, 2 * leaf)
            del out
        assert watch.counts().replays >= 4
    assert called == list(range(6))


@both_compilers
@pytest.mark.covers(f"{ROW}test_multiple_insert_removal_caching")
def test_output_of_a_replay_may_be_dropped_and_taken_up_again(compiler: str, device: torch.device) -> None:
    """Contract: between replays an output's Python object may die or live on; its values are those of the last
    replay, and memory does not grow."""
    with watched() as watch:
        fast = compiled(lambda x: x + 5, compiler)
        x = whole_numbers(1024, device=device)
        for number in range(3):
            trees.assert_same(trees.values(fast(x)), [x + 5], f"call {number}")
        before = private.live_bytes_of_graphs()
        kept = None
        for number in range(10):
            out = fast(x + number)
            if number % 3 == 0:
                kept = out
            trees.assert_same(trees.values(out), [x + number + 5], f"replay {number}")
            trees.assert_same(trees.values(kept), [x + number + 5], f"kept at replay {number}")
            del out
        del kept
        assert private.live_bytes_of_graphs() == before
        counts = watch.counts()
        assert (counts.recordings, counts.replays) == (1, 11)


@both_compilers
@pytest.mark.covers(f"{ROW}test_amp_cache_disabled")
def test_autocast_keeps_no_casts_in_a_graphs_pool(compiler: str, device: torch.device) -> None:
    """Contract: autocast keeps no cast of a replay's output, whose memory the next replay overwrites: changed in place,
    the output is cast anew.

    Autocast keeps casts of leaves that require a gradient, so the output is made one.
    """
    with watched():
        fast = compiled(lambda x: x + x, compiler)
        for number in range(4):
            out = fast(whole_numbers(8, 8, device=device, start=number))
        out.requires_grad_()
        other = whole_numbers(8, 8, device=device, start=3)
        with torch.autocast(device.type, dtype=torch.float16):
            first = (out @ other).detach()
            out.detach().add_(1)
            second = (out @ other).detach()
        assert torch.equal(first, (out - 1).detach().half() @ other.half())
        assert torch.equal(second, out.detach().half() @ other.half())
        assert not torch.equal(first, second)
        del out


@both_compilers
def test_output_of_a_replay_that_is_kept_holds_the_next_results(compiler: str, device: torch.device) -> None:
    """Contract: replays write to the memory of their recording, unchecked: an output of one replay that is kept has
    the values of the next; a clone has not. (As documented; warm-ups and recordings are checked.)"""
    with watched() as watch:
        fast = compiled(lambda x: x * 2, compiler)
        x = whole_numbers(32, device=device)
        for _ in range(3):
            fast(x)
        kept = fast(x)
        clone = kept.clone()
        found = fast(x + 1).clone()

        assert torch.equal(found, (x + 1) * 2)
        assert torch.equal(kept, found)
        assert torch.equal(clone, x * 2)
        assert watch.counts() == Counts(warm_ups=1, recordings=1, replays=3)


@with_triton
@pytest.mark.covers(f"{ROW}test_dealloc_handles_tensor_weakrefs_stack_traces_mismatch")
@pytest.mark.requires(torch=">=2.13")
def test_overwritten_outputs_with_fewer_stack_traces_than_outputs(device: torch.device) -> None:
    """Contract: if torch knows lines for fewer outputs than there are, dropping a generation still works: the log says
    so, and outputs are overwritten as ever."""
    with watched() as watch:
        fast = compiled(lambda x: (x + 1, x * 2), trees.INDUCTOR)
        x = whole_numbers(8, device=device)
        kept = fast(x)
        manager = private.manager(device)
        manager.current_node.stack_traces = manager.current_node.stack_traces[:1]
        found = fast(x + 1)
        trees.assert_same(trees.values(found), [x + 2, (x + 1) * 2], "after the generation was dropped")
        assert any("!= stack_traces length" in message for message in watch.messages())
        with pytest.raises(RuntimeError, match=OVERWRITTEN):
            kept[0] + 1
        del kept, found
        gc.collect()


@both_compilers
@pytest.mark.covers(f"{ROW}test_expanded_inputs")
def test_inputs_of_unusual_strides_are_copied_for_a_replay(compiler: str, device: torch.device) -> None:
    """Contract: expanded, transposed and offset inputs are copied for a replay as they are."""
    base = whole_numbers(64, device=device)
    forms: list[Callable[[int], torch.Tensor]] = [
        lambda n: (base[:4] + n).reshape(4, 1).expand(4, 5),
        lambda n: (base[:16] + n).reshape(4, 4).t(),
        lambda n: (base + n)[3:19].reshape(4, 4),
    ]
    with watched() as watch:
        for form in forms:
            call_five_times(compiler, form)
        assert watch.counts() == Counts(warm_ups=len(forms), recordings=len(forms), replays=3 * len(forms))


@pytest.mark.parametrize(
    ("compiler", "expected"),
    [
        pytest.param(CUDAGRAPHS, Counts(1, 1, 3), id=CUDAGRAPHS),
        pytest.param(INDUCTOR, Counts(1, 1, 3), id=INDUCTOR, marks=[with_triton, pytest.mark.requires(torch=">=2.13")]),
        # 2.11 names "complex memory overlap" in its log, and counts nothing
        pytest.param(
            INDUCTOR, Counts(), id="inductor_before_2.13", marks=[with_triton, pytest.mark.requires(torch="<2.13")]
        ),
    ],
)
@pytest.mark.covers(f"{ROW}test_expanded_inputs")
def test_input_whose_elements_overlap_is_copied_for_a_replay(
    compiler: str, expected: Counts, device: torch.device
) -> None:
    """Contract: an input of which several elements share a place in memory is copied for a replay as it is. Before
    2.13 inductor's code for it is no graph, and has the same results."""
    base = whole_numbers(64, device=device)
    with watched() as watch:
        call_five_times(compiler, lambda n: (base[:6] + n).as_strided((3, 4), (1, 1)))
        assert watch.counts() == expected


def call_five_times(compiler: str, make: Callable[[int], torch.Tensor]) -> None:
    """A function that is compiled anew, with an input of each number's; its results are right."""
    fast = compiled(lambda x: x * 2 + 1, compiler, dynamic=False)
    for number in range(5):
        x = make(number)
        found = fast(x)
        trees.assert_same(trees.values(found), [x * 2 + 1], f"strides {x.stride()}, call {number}")
        del found


@both_compilers
@pytest.mark.covers(f"{ROW}test_empty_cpu_tensor")
def test_input_that_is_empty_on_the_cpu(compiler: str, device: torch.device) -> None:
    """Contract: an input with no elements, on the host, is no obstacle to right results: recorded or skipped with a
    reason, the calls agree with eager."""
    with watched() as watch:
        calls = repeated(lambda n: [whole_numbers(8, device=device, start=n), torch.empty(0)], 4)
        counts = trees.compare(lambda x, empty: (x + 1, empty), calls, compiler, watch)
        assert counts.recordings == 1 or watch.reasons()
