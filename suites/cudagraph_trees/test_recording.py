"""CUDA graph trees: the calls that are warmed up, recorded and replayed, with the results of eager runs.

All values are whole numbers in float32, for which sums and products are exact, so results are compared bit by bit.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch

from . import _torch_private as private
from . import trees
from .trees import Counts, both_compilers, compiled, on_cuda, repeated, watched, whole_numbers, with_triton

ROW = "test_cudagraph_trees::CudaGraphTreeTests::"

pytestmark = [on_cuda, pytest.mark.timeout(trees.LIMIT)]


def branch(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return x + y, x - 2 * y


def strided(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x.t() @ y).t()[::2].clone() + 1


def scatter(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    rows = torch.arange(x.shape[0], device=x.device).flip(0)
    return x.index_put((rows,), y, accumulate=True)


def half_used(x: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return x.cumsum(0) * 3


def made_inside(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones_like(x) * 5, torch.full((3,), 7.0, device=y.device) + y.sum()


def convolved(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.conv2d(x.reshape(1, 1, 4, 4), y.reshape(1, 1, 4, 4)[..., :2, :2].contiguous())


WORK: dict[str, Callable[[torch.Tensor, torch.Tensor], object]] = {
    "branch": branch,
    "strided": strided,
    "scatter": scatter,
    "half_used": half_used,
    "made_inside": made_inside,
}


@both_compilers
@pytest.mark.parametrize("name", WORK)
@pytest.mark.covers(f"{ROW}test_run_simple", f"{ROW}test_index_put", "test_cudagraph_trees::CudaGraphTreeTests::*")
def test_function_is_warmed_up_recorded_and_replayed(name: str, compiler: str, device: torch.device) -> None:
    """If outputs are dropped, the first call is a warm-up, and the second is recorded.

    All others are replays with eager results.
    """
    with watched() as watch:
        calls = repeated(
            lambda n: [whole_numbers(4, 4, device=device, start=n), whole_numbers(4, 4, device=device, start=3 * n)], 6
        )
        counts = trees.compare(WORK[name], calls, compiler, watch)

    assert counts == Counts(warm_ups=1, recordings=1, replays=4)


@both_compilers
@pytest.mark.covers(f"{ROW}test_run_simple")
def test_recording_of_each_shape_is_its_own(compiler: str, device: torch.device) -> None:
    """With static shapes, each shape has its own root without descendants, and both are correct when they alternate."""
    with watched() as watch:
        calls = repeated(lambda n: [whole_numbers(4 + n % 2, 4, device=device, start=n)], 10)
        counts = trees.compare(lambda x: x * x * x, calls, compiler, watch, dynamic=False)

        assert counts == Counts(warm_ups=2, recordings=2, replays=6)
        assert private.descendants(device) == [0, 0]


@pytest.mark.parametrize("benchmark", [False, True])
@both_compilers
@pytest.mark.covers(f"{ROW}test_conv_benchmark")
def test_recording_of_conv2d_with_cudnn_benchmark(benchmark: bool, compiler: str, device: torch.device) -> None:
    """With `cudnn.benchmark`, the choice of an algorithm is complete before a convolution is recorded.

    Replays are correct. Sums of four products below 64 are exact, unless an algorithm uses a Fourier transform: the
    tolerance of a thousandth is about thirty times its rounding error, and far below the difference of 1 that a stale
    input would cause.
    """
    with watched() as watch, torch.backends.cudnn.flags(enabled=True, benchmark=benchmark, allow_tf32=False):
        calls = repeated(
            lambda n: [whole_numbers(4, 4, device=device, start=n), whole_numbers(4, 4, device=device, start=n + 2)], 5
        )
        counts = trees.compare(convolved, calls, compiler, watch, within=1e-3)

    assert counts == Counts(warm_ups=1, recordings=1, replays=3)


@pytest.mark.parametrize("with_trees", [True, False], ids=["trees", "one_by_one"])
@with_triton
@pytest.mark.covers(f"{ROW}test_rng_trees", f"{ROW}test_rng_non_trees", f"{ROW}test_multinomial")
def test_random_numbers_of_replays_with_fallback_random(with_trees: bool, device: torch.device) -> None:
    """With `fallback_random`, warm-up, recording and replays draw consecutive numbers, like eager calls.

    No two draws are the same, and each equals the eager draw from the same seed.
    """

    def draw(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand_like(x), torch.multinomial(x, 8, replacement=True)

    x = torch.ones(64, device=device)
    with watched(fallback_random=True, triton__cudagraph_trees=with_trees) as watch, torch.random.fork_rng([device]):
        fast = compiled(draw, trees.INDUCTOR)
        for seed in (3, 4):
            torch.manual_seed(seed)
            wanted = [trees.values(draw(x)) for _ in range(6)]
            torch.manual_seed(seed)
            found = [trees.values(fast(x)) for _ in range(6)]
            for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
                trees.assert_same(one, other, f"draw {number} from seed {seed}")
            firsts = [one[0] for one in found]
            assert all(not torch.equal(a, b) for i, a in enumerate(firsts) for b in firsts[:i])
        if with_trees:
            assert watch.counts() == Counts(warm_ups=1, recordings=1, replays=10)
        assert watch.reasons() == []


@pytest.mark.covers(f"{ROW}test_rng_trees", f"{ROW}test_multinomial")
def test_random_numbers_of_replays_with_the_cudagraphs_backend(device: torch.device) -> None:
    """With the backend "cudagraphs", replays continue the generator's sequence.

    One seed gives one sequence in all calls.
    """

    def draw(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.rand_like(x), torch.multinomial(x, 8, replacement=True)

    x = torch.ones(64, device=device)
    with watched() as watch, torch.random.fork_rng([device]):
        fast = compiled(draw, trees.CUDAGRAPHS)
        sequences = []
        for _ in range(2):
            torch.manual_seed(11)
            sequences.append([trees.values(fast(x)) for _ in range(4)])
        torch.manual_seed(11)
        sequences.append([trees.values(draw(x)) for _ in range(4)])
        assert watch.counts() == Counts(warm_ups=1, recordings=1, replays=6)

    for other in sequences[1:]:
        for number, (one, two) in enumerate(zip(sequences[0], other, strict=True)):
            trees.assert_same(two, one, f"draw {number}")


@both_compilers
@pytest.mark.covers(f"{ROW}test_function_compiled_multiple_times")
def test_recordings_of_a_function_compiled_again(compiler: str, device: torch.device) -> None:
    """A function recompiled for other arguments is correct in both forms, and each is warmed up and recorded once."""

    def work(x: torch.Tensor, flag: bool) -> torch.Tensor:
        y = x * 3
        return y + 1 if flag else y.sum() - x

    with watched() as watch:
        flags = [True, True, False, True, False, False, True]
        calls = [[whole_numbers(8, device=device, start=n), flag] for n, flag in enumerate(flags)]
        counts = trees.compare(work, calls, compiler, watch)

    assert counts == Counts(warm_ups=2, recordings=2, replays=3)


@both_compilers
@pytest.mark.covers(f"{ROW}test_end_recording_early", f"{ROW}test_separate_recordings")
def test_recorded_path_with_dead_outputs_is_not_extended(compiler: str, device: torch.device) -> None:
    """When all outputs of a recorded path are dead, another function starts a new tree, even within one generation."""
    with watched() as watch:
        one, two = (compiled(work, compiler) for work in (lambda x: x + 1, lambda x: x * 2))
        x = whole_numbers(16, device=device)
        torch.compiler.cudagraph_mark_step_begin()
        for number in range(4):
            found = trees.values([one(x + number)])
            trees.assert_same(found, [x + number + 1], f"first function, call {number}")
            found = trees.values([two(x + number)])
            trees.assert_same(found, [(x + number) * 2], f"second function, call {number}")

        assert watch.counts() == Counts(warm_ups=2, recordings=2, replays=4)
        assert private.descendants(device) == [0, 0]


@both_compilers
@pytest.mark.covers(f"{ROW}test_execution_into_recording", f"{ROW}test_live_outputs_multiple_graphs")
def test_replayed_path_is_extended_by_a_recording(compiler: str, device: torch.device) -> None:
    """A new function after a replay whose output is alive is recorded as its child, without using the output's memory.

    Results of both are correct, then and in later replays.
    """
    x = whole_numbers(64, device=device)
    with watched() as watch:
        first = compiled(lambda x: (x + 1) * 2, compiler)
        second = compiled(lambda y: (y - 3) * 5, compiler)

        def step(number: int, *, both: bool) -> None:
            torch.compiler.cudagraph_mark_step_begin()
            y = first(x + number)
            z = second(y) if both else None
            trees.assert_same(trees.values(y), [(x + number + 1) * 2], f"first of step {number}")
            if z is not None:
                trees.assert_same(trees.values(z), [((x + number + 1) * 2 - 3) * 5], f"second of step {number}")

        for number in range(3):
            step(number, both=False)
        assert watch.counts() == Counts(warm_ups=1, recordings=1, replays=1)
        assert private.descendants(device) == [0]
        for number in range(3, 7):
            step(number, both=True)
        assert watch.counts() == Counts(warm_ups=1, recordings=1, replays=6)
        assert private.descendants(device) == [1]


@both_compilers
@pytest.mark.covers(f"{ROW}test_accumulate_multiple_recordings")
def test_recorded_paths_from_one_root(compiler: str, device: torch.device) -> None:
    """Different functions after one parent are each recorded once below the same root.

    Replays in any order are correct.
    """
    x = whole_numbers(32, device=device)
    with watched() as watch:
        root = compiled(lambda x: x * 2, compiler)
        plain: list[Callable[[torch.Tensor], torch.Tensor]] = [lambda y: y + 1, lambda y: y * 3, lambda y: 5 - y]
        leaves = [compiled(work, compiler) for work in plain]
        order = [0, 1, 2, 0, 1, 2, 0, 1, 2, 2, 0, 1]
        for number, leaf in enumerate(order):
            torch.compiler.cudagraph_mark_step_begin()
            y = root(x + number)
            z = leaves[leaf](y)
            doubled = (x + number) * 2
            trees.assert_same(trees.values([y, z]), [doubled, plain[leaf](doubled)], f"step {number}")
            del y, z
        counts = watch.counts()
        assert counts == Counts(warm_ups=4, recordings=4, replays=16)
        assert private.descendants(device) == [3]


@both_compilers
@pytest.mark.covers(f"{ROW}test_mark_step", f"{ROW}test_forward_generation")
def test_cudagraph_mark_step_begin_keeps_outputs_of_a_step(compiler: str, device: torch.device) -> None:
    """Within a marked step, outputs of earlier calls stay valid while the same function is called again.

    The next step may overwrite them.
    """
    with watched() as watch:
        fast = compiled(lambda x: x * x + 1, compiler)
        for step in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            generation = private.generation()
            inputs = [whole_numbers(16, device=device, start=step + 5 * call) for call in range(3)]
            outputs = [fast(x) for x in inputs]
            assert private.generation() == generation
            trees.assert_same(trees.values(outputs), [x * x + 1 for x in inputs], f"step {step}")
            del outputs
        counts = watch.counts()
        assert counts.recordings >= 3, "calls within a step were not recorded one below the other"
        assert counts.replays >= 3
        assert private.descendants(device) == [2]


@pytest.mark.covers(f"{ROW}test_view_only_cuda_graph_suppresses_empty_warning")
@both_compilers
def test_recording_of_views_alone_does_not_warn(compiler: str, device: torch.device) -> None:
    """A function that only creates a view records no graph under inductor, without a warning about an empty graph.

    The other compiler records a graph. The results are correct.
    """
    with watched() as watch:
        fast = compiled(lambda x: (x.t(), x.reshape(-1)), compiler)
        with warnings.catch_warnings():
            for number in range(4):
                # The first call creates the manager, which itself records such an empty graph.
                if number > 0 and compiler == trees.INDUCTOR:
                    warnings.filterwarnings("error", ".*CUDA Graph is empty")
                x = whole_numbers(4, 4, device=device, start=number)
                trees.assert_same(trees.values(fast(x)), [x.t(), x.reshape(-1)], f"call {number}")
        assert watch.reasons() == []
        if compiler == trees.CUDAGRAPHS:
            assert watch.counts() == Counts(warm_ups=1, recordings=1, replays=2)


@pytest.mark.covers(f"{ROW}test_kernel_free_allocation_uses_cudagraph_pool")
def test_recording_of_an_output_that_no_kernel_writes(device: torch.device) -> None:
    """An output that is allocated but never written is in the trees' memory like any other."""
    with watched() as watch:
        fast = compiled(lambda x: (torch.empty_like(x), x + 1), trees.CUDAGRAPHS)
        for number in range(4):
            x = whole_numbers(256, device=device, start=number)
            empty, more = fast(x)
            trees.assert_same(trees.values(more), [x + 1], f"call {number}")
            pools = [
                range(segment["address"], segment["address"] + segment["total_size"])
                for segment in private.graph_segments()
            ]
            assert any(empty.data_ptr() in pool for pool in pools), f"call {number} got memory outside the pools"
            del empty, more
        assert watch.counts() == Counts(warm_ups=1, recordings=1, replays=2)


@with_triton
@pytest.mark.requires(silicon=True)  # the C++ wrapper passes Triton kernels to the driver
@pytest.mark.covers(f"{ROW}test_cpp_wrapper", f"{ROW}test_skip_cpp_wrapper")
def test_cpp_wrapper_gives_the_same_results(device: torch.device) -> None:
    """Code with a C++ wrapper gives the same results, and is recorded whole, or skipped with the wrapper as the reason.

    torch 2.11 to 2.13 skip it (`get_cpp_wrapper_config` disables recording).
    """
    calls = repeated(lambda n: [whole_numbers(8, 8, device=device, start=n)], 4)
    for partition in (False, True):
        with watched(cpp_wrapper=True, graph_partition=partition) as watch:
            counts = trees.compare(lambda x: x @ x + 1, calls, trees.INDUCTOR, watch)
            if counts.skips:
                assert counts == Counts(skips=1)
                assert "cpp wrapper" in watch.reasons()[-1]
            else:
                assert counts == Counts(warm_ups=1, recordings=1, replays=2)


@with_triton
@pytest.mark.covers(f"{ROW}test_meta_tensor")
def test_meta_tensors_do_not_prevent_recording(device: torch.device) -> None:
    """Tensors on `meta` do not prevent a graph on one device from being recorded."""

    def work(shape: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return shape * 3, x * 2

    nothing = torch.empty(3, 4, device="meta")
    with watched() as watch:
        fast = compiled(work, trees.INDUCTOR)
        for number in range(4):
            x = whole_numbers(8, device=device, start=number)
            meta, twice = fast(nothing, x)
            assert (meta.device.type, tuple(meta.shape)) == ("meta", (3, 4))
            trees.assert_same(trees.values(twice), [x * 2], f"call {number}")
            del meta, twice
        assert watch.counts() == Counts(warm_ups=1, recordings=1, replays=2)
