"""Trees and dynamic sizes: a recording per size, only for listed sizes, or none; and the warning for many sizes."""

from __future__ import annotations

import pytest
import torch

from . import trees
from .trees import Counts, on_cuda, repeated, watched, whole_numbers, with_triton

ROW = "test_cudagraph_trees::CudaGraphTreeTests::"

pytestmark = [on_cuda, pytest.mark.timeout(trees.LIMIT)]

MANY = "distinct sizes"


def work(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0) * 2 + x


def warned(watch: trees.Watch) -> int:
    return sum(MANY in message for message in watch.messages())


@with_triton
@pytest.mark.covers(f"{ROW}test_dynamic_warmup")
def test_dynamic_sizes_have_one_recording_per_size(device: torch.device) -> None:
    """Code for dynamic sizes has one warm-up and one recording per size, and replays afterwards, in any order."""
    sizes = [4, 6, 9]
    with watched() as watch:
        calls = repeated(lambda n: [whole_numbers(sizes[n % 3], 5, device=device, start=n)], 12)
        counts = trees.compare(work, calls, trees.INDUCTOR, watch, dynamic=True)

    assert counts == Counts(warm_ups=3, recordings=3, replays=6)


@pytest.mark.parametrize(
    "compiler",
    [
        pytest.param(
            trees.CUDAGRAPHS,
            marks=pytest.mark.xfail(
                reason="a recording is replayed for all numbers: https://github.com/pytorch/pytorch/issues/131009",
                strict=True,
            ),
        ),
        pytest.param(trees.INDUCTOR, marks=with_triton),
    ],
)
def test_dynamic_int_argument_has_one_recording_per_value(compiler: str, device: torch.device) -> None:
    """Code for any int has one recording per value, and replays the recording of the value in the call."""
    with watched() as watch:
        calls = repeated(lambda n: [whole_numbers(5, device=device, start=n), 2 + n % 3], 12)
        counts = trees.compare(lambda x, number: x * number + 1, calls, compiler, watch, dynamic=True)

    assert counts == Counts(warm_ups=3, recordings=3, replays=6)


@pytest.mark.parametrize(
    ("sizes", "listed", "recorded"),
    [
        pytest.param([(4,), (6,), (9,)], (4, 9), 2, id="one_dimension"),
        # With several dynamic dimensions, the key is a tuple in the order of torch's symbol names, which is
        # unspecified.
        pytest.param(
            [(4, 3), (6, 3), (4, 7), (6, 7)],
            # Three of the four sizes, so that listed and unlisted sizes differ in number.
            ((4, 3), (3, 4), (6, 7), (7, 6), (4, 7), (7, 4)),
            3,
            id="two_dimensions",
        ),
        pytest.param([(4,), (6,)], (5,), 0, id="none_of_them"),
    ],
)
@with_triton
@pytest.mark.covers(
    f"{ROW}test_cudagraph_capture_sizes",
    f"{ROW}test_cudagraph_capture_sizes1",
    f"{ROW}test_cudagraph_capture_sizes2",
)
def test_cudagraph_capture_sizes_alone_are_recorded(
    sizes: list[tuple[int, ...]], listed: tuple[object, ...], recorded: int, device: torch.device
) -> None:
    """With `cudagraph_capture_sizes`, listed sizes are recorded and others run without graphs, not counted as skips."""
    with watched(triton__cudagraph_capture_sizes=listed) as watch:
        calls = repeated(lambda n: [whole_numbers(*sizes[n % len(sizes)], device=device, start=n)], 4 * len(sizes))
        counts = trees.compare(lambda x: x * 2 + 1, calls, trees.INDUCTOR, watch, dynamic=True)

    assert counts == Counts(warm_ups=recorded, recordings=recorded, replays=2 * recorded)


@pytest.mark.parametrize(
    ("limit", "sizes", "warnings"),
    [
        pytest.param(3, 3, 0, id="at_the_limit"),
        pytest.param(3, 4, 1, id="above"),
        pytest.param(3, 7, 1, id="far_above"),
        pytest.param(None, 7, 0, id="no_limit"),
    ],
)
@with_triton
@pytest.mark.covers(
    f"{ROW}test_skip_if_dynamic_shape_limit_reached1",
    f"{ROW}test_skip_if_dynamic_shape_limit_reached2",
    f"{ROW}test_warn_once_if_dynamic_shape_limit_reached",
)
def test_cudagraph_dynamic_shape_warn_limit_warns_once(
    limit: int | None, sizes: int, warnings: int, device: torch.device
) -> None:
    """More distinct sizes than the limit are logged as a warning, once per function; all are recorded and correct.

    Releases before 2.9 skipped sizes above the limit.
    """
    with watched(triton__cudagraph_dynamic_shape_warn_limit=limit) as watch:
        calls = repeated(lambda n: [whole_numbers(3 + n % sizes, 5, device=device, start=n)], 3 * sizes)
        counts = trees.compare(work, calls, trees.INDUCTOR, watch, dynamic=True)
        assert warned(watch) == warnings

    assert counts == Counts(warm_ups=sizes, recordings=sizes, replays=sizes)


@pytest.mark.parametrize("partition", [False, True], ids=["whole", "partition"])
@with_triton
@pytest.mark.covers(f"{ROW}test_skip_symbolic")
def test_cudagraph_skip_dynamic_graphs_leaves_varying_sizes_out(partition: bool, device: torch.device) -> None:
    """With `cudagraph_skip_dynamic_graphs`, nothing with dynamic sizes is recorded.

    A whole graph is skipped with the reason and the line; a partitioned graph excludes those operations.
    """
    with watched(triton__cudagraph_skip_dynamic_graphs=True, graph_partition=partition) as watch:
        calls = repeated(lambda n: [whole_numbers(4 + n, device=device, start=n)], 4)
        counts = trees.compare(lambda x: x + x, calls, trees.INDUCTOR, watch, dynamic=True)
        assert (counts.warm_ups, counts.recordings, counts.replays) == (0, 0, 0)
        if not partition:
            assert counts.skips == 1
            (reason,) = watch.reasons()
            assert "symbolic shapes" in reason
            assert "x + x" in reason
