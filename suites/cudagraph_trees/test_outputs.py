"""Outputs of trees: their values while alive, their aliasing, and the error for an overwritten one."""

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


# Sharing of storage by outputs with each other and with inputs.


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
    """Views of outputs and inputs, empty tensors and plain values are replayed with the eager values and aliasing."""
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
def test_outputs_live_until_the_next_step(compiler: str, device: torch.device) -> None:
    """Outputs of all functions called in one step keep their values until the next step, in any order of deletion."""
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
def test_outputs_that_died_before_a_recording_free_their_memory(compiler: str, device: torch.device) -> None:
    """If one of two outputs dies before a new child is recorded, the other keeps its values.

    The recording may reuse the dead output's memory, and replays with both alive are correct again.
    """
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
    """Two outputs in one storage keep it alive until both are dead, whichever dies first, and it is freed once.

    Later recordings and replays of child functions are correct.
    """
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
    """An output of a warm-up or a recording is invalid in the next generation: each use raises and names the remedy.

    A clone keeps its values.
    """
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
    """The error for an overwritten output of a warm-up or a recording names its source line and no other line.

    This holds in inference and in training, also after an output without memory, which is never overwritten.
    """

    def work(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        nothing = x[:0] * 2
        tripled = x * 3
        raised = x + 7
        return nothing, tripled, raised

    with watched():
        fast = compiled(work, compiler)
        x = whole_numbers(16, device=device).requires_grad_(training)
        lines = ["tripled = x * 3", "raised = x + 7"]
        torch.compiler.cudagraph_mark_step_begin()
        kept = fast(x)
        for _ in ("warmed up", "recorded"):
            torch.compiler.cudagraph_mark_step_begin()
            following = fast(x)
            for gone, line in zip(kept[1:], lines, strict=True):
                with pytest.raises(RuntimeError, match=OVERWRITTEN) as caught:
                    gone + 1
                assert [one in str(caught.value) for one in lines] == [one == line for one in lines]
            kept = following
        del kept, following, gone, caught
        gc.collect()


def test_cudagraph_mark_step_begin_begins_a_generation_however_often_it_is_called(device: torch.device) -> None:
    """After any number of marks a new generation begins, also if there were as many generations before."""
    with watched():
        fast = compiled(lambda x: x * x + 1, CUDAGRAPHS)
        x = whole_numbers(64, device=device)
        kept = fast(x)
        earlier = private.generation()
        for _ in range(earlier):
            torch.compiler.cudagraph_mark_step_begin()
        fast(x + 1)
        assert earlier > 0
        with pytest.raises(RuntimeError, match=OVERWRITTEN):
            kept + 1
        del kept
        gc.collect()


@both_compilers
@pytest.mark.covers(f"{ROW}test_remove_hooks_on_cached_tensors")
def test_register_hook_on_an_output_is_not_on_the_next_one(compiler: str, device: torch.device) -> None:
    """Replays may return the same tensor object each time, but a hook registered on one output is not on the next."""
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
def test_output_of_a_replay_may_be_dropped_or_kept(compiler: str, device: torch.device) -> None:
    """Between replays, an output's Python object may die or survive.

    Its values are those of the last replay, without leaks.
    """
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
def test_autocast_caches_no_cast_of_an_output(compiler: str, device: torch.device) -> None:
    """Autocast caches no cast of a replay's output, which the next replay overwrites: a mutated output is cast again.

    Autocast caches casts of leaves that require grad, so the case makes the output one.
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
def test_output_of_a_replay_is_overwritten_by_the_next_replay(compiler: str, device: torch.device) -> None:
    """A kept output of a replay has the values of the next replay, unchecked, and a clone keeps its own.

    This is documented behavior; warm-ups and recordings are checked.
    """
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
    """If torch has fewer stack traces than outputs, dropping a generation works, and the log reports it."""
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
    """Expanded, transposed and offset inputs are copied for a replay with their strides."""
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
        # 2.11 logs "complex memory overlap" and does not count it.
        pytest.param(
            INDUCTOR, Counts(), id="inductor_before_2.13", marks=[with_triton, pytest.mark.requires(torch="<2.13")]
        ),
    ],
)
@pytest.mark.covers(f"{ROW}test_expanded_inputs")
def test_input_whose_elements_overlap_is_copied_for_a_replay(
    compiler: str, expected: Counts, device: torch.device
) -> None:
    """An input with overlapping elements is copied for a replay with its overlap.

    Before 2.13, inductor's code for it is not a graph, and has the same results.
    """
    base = whole_numbers(64, device=device)
    with watched() as watch:
        call_five_times(compiler, lambda n: (base[:6] + n).as_strided((3, 4), (1, 1)))
        assert watch.counts() == expected


def call_five_times(compiler: str, make: Callable[[int], torch.Tensor]) -> None:
    """Compile the function again, call it with a different input each time, and check its results."""
    fast = compiled(lambda x: x * 2 + 1, compiler, dynamic=False)
    for number in range(5):
        x = make(number)
        found = fast(x)
        trees.assert_same(trees.values(found), [x * 2 + 1], f"strides {x.stride()}, call {number}")
        del found


@both_compilers
@pytest.mark.covers(f"{ROW}test_empty_cpu_tensor")
def test_input_that_is_empty_on_the_cpu(compiler: str, device: torch.device) -> None:
    """An empty CPU input is recorded or skipped with a reason, and the results match eager."""
    with watched() as watch:
        calls = repeated(lambda n: [whole_numbers(8, device=device, start=n), torch.empty(0)], 4)
        counts = trees.compare(lambda x, empty: (x + 1, empty), calls, compiler, watch)
        assert counts.recordings == 1 or watch.reasons()
