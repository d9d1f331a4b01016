"""Graph partition: inductor splits graphs, so that capturable parts are recorded and the other work runs in between."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from . import _torch_private as private
from . import operators, trees
from .splits import SPLITS, Split, copied_to_the_host, row, unsafe_operator
from .trees import Counts, compiled, repeated, watched, whole_numbers, with_triton

pytestmark = pytest.mark.timeout(trees.LIMIT)

on_the_host = pytest.mark.requires(cpp_compiler=True)

CALLS = 6


@contextmanager
def splitting(split: Split, **settings: Any) -> Iterator[trees.Watch]:
    """Enable graph partition in the block, with the settings that the function needs."""
    capture = {"capture_scalar_outputs": split.capture, "capture_dynamic_output_shape_ops": split.capture}
    with private.dynamo_config(**capture), watched(graph_partition=True, **settings) as watch:
        yield watch


def run(split: Split, device: torch.device, watch: trees.Watch, calls: int = CALLS) -> Counts:
    made = repeated(lambda n: split.make(device, n), calls)
    return trees.compare(split.work, made, trees.INDUCTOR, watch, dynamic=split.dynamic)


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    split = SPLITS[name]
    marks = [pytest.mark.covers(*split.rows)]
    if name == "users_kernel":  # in one process with the case, Triton's compiler leaves signal handlers
        marks.append(pytest.mark.requires(silicon=True))
    if split.wrong:
        marks.append(pytest.mark.xfail(reason=split.wrong, strict=True))
    return marks


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in SPLITS])
@with_triton
def test_graph_partition_is_recorded_in_parts(name: str, device: torch.device) -> None:
    """A partitioned function gives the eager results in every call, and nothing is skipped as a whole.

    Its parts are recorded and replayed, in no more parts than the order of its work requires.
    """
    split = SPLITS[name]
    with splitting(split) as watch:
        counts = run(split, device, watch, calls=CALLS * split.sizes)
        assert watch.reasons() == []
    assert counts.skips == 0
    assert counts.recordings >= 1
    assert counts.replays >= counts.recordings
    if split.parts is not None:
        assert counts == Counts(split.parts, split.parts, split.parts * (CALLS - 2))


@pytest.mark.parametrize("name", ["safe_operator", "unsafe_operator", "reads_item", "unsafe_change"])
@on_the_host
@pytest.mark.covers(*row("graph_partition_cpu_only"))
def test_graph_partition_on_the_cpu_has_no_parts(name: str) -> None:
    """A graph without GPU work is skipped, counted once without a message, and correct, with or without partition."""
    split = SPLITS[name]
    for partition in (True, False):
        with splitting(split) as watch, private.config({"graph_partition": partition}):
            counts = run(split, torch.device("cpu"), watch, calls=3)
            assert counts == Counts(skips=1)
            assert watch.messages() == []


@pytest.mark.parametrize(
    ("size", "recorded"),
    [
        pytest.param(2, 0, id="too_small", marks=pytest.mark.covers(*row("cudagraph_min_partition_size_skip_small"))),
        pytest.param(1, 1, id="large", marks=pytest.mark.covers(*row("cudagraph_min_partition_size_allow_large"))),
    ],
)
@pytest.mark.requires(torch=">=2.12")
@with_triton
def test_cudagraph_min_partition_size_leaves_small_parts_out(size: int, recorded: int, device: torch.device) -> None:
    """With `cudagraph_min_partition_size`, a part with fewer kernels runs without a graph and is correct."""
    with watched(graph_partition=True, triton__cudagraph_min_partition_size=size) as watch:
        calls = repeated(lambda n: [whole_numbers(8, device=device, start=n)], 5)
        counts = trees.compare(lambda x: x * 2 + 1, calls, trees.INDUCTOR, watch)
    assert (counts.recordings, counts.replays) == (recorded, 3 * recorded)


@pytest.mark.parametrize("name", [f"{operators.LIBRARY}::twice", f"{operators.LIBRARY}::twice.default"])
@pytest.mark.covers(*row("graph_partition_custom_rule"))
@with_triton
def test_custom_should_partition_ops_names_operators_to_split_at(name: str, device: torch.device) -> None:
    """An operator in `custom_should_partition_ops`, with or without the overload name, splits the graph.

    Other operators do not.
    """

    def work(x: torch.Tensor) -> torch.Tensor:
        return operators.twice(x @ x) @ x

    calls = repeated(lambda n: [whole_numbers(8, 8, device=device, start=n)], 4)
    for listed, parts in (([name], 2), ([], 1)):
        with watched(graph_partition=True, custom_should_partition_ops=listed) as watch:
            counts = trees.compare(work, calls, trees.INDUCTOR, watch)
        assert counts == Counts(parts, parts, 2 * parts)


@pytest.mark.covers(*row("cudagraph_unsafe_unbacked_ops"))
@with_triton
def test_cudagraph_unsafe_unbacked_ops_leaves_sizes_of_operators_out(device: torch.device) -> None:
    """Work with sizes from an operator in `cudagraph_unsafe_unbacked_ops` is not recorded.

    Work with other sizes is recorded once per size. Results are correct either way.
    """

    def work(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return operators.positive(x) * 3, x @ x

    calls = repeated(lambda n: [whole_numbers(8, 8, device=device, start=n % 2)], 8)
    found = []
    for listed in ([f"{operators.LIBRARY}::positive"], []):
        capture = {"capture_dynamic_output_shape_ops": True}
        with private.dynamo_config(**capture), watched(cudagraph_unsafe_unbacked_ops=listed) as watch:
            found.append(trees.compare(work, calls, trees.INDUCTOR, watch))
    listed_counts, unlisted_counts = found
    assert listed_counts == Counts(1, 1, 6)
    assert unlisted_counts == Counts(2, 2, 4)


@pytest.mark.covers(*row("graph_partition_log_message"))
@with_triton
def test_graph_partition_log_says_why_a_graph_is_split(device: torch.device) -> None:
    """The debug log has the number of parts, the number that can be recorded, and the reason for each other part.

    It is written during code generation, so cached code does not produce it.
    """
    with private.fresh_cache(), watched(debug=True, graph_partition=True) as watch:
        compiled(unsafe_operator, trees.INDUCTOR)(whole_numbers(8, 8, device=device))
        text = "\n".join(watch.messages())
    assert "graph partitions" in text
    assert "2 cudagraphable" in text
    assert "1 non-cudagraphable" in text
    assert "reason=CUDAGraph-unsafe custom ops" in text


@pytest.mark.covers(*row("graph_partition_reduce_overhead_mode_effectiveness"))
@with_triton
def test_reduce_overhead_launches_fewer_kernels(device: torch.device) -> None:
    """With `mode="reduce-overhead"`, a replayed call launches graphs and hardly any kernels.

    Without it, each kernel is launched separately.
    """
    from torch.profiler import ProfilerActivity, profile

    def work(x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = (x @ x) % 7
        return unsafe(x)

    unsafe = operators.unsafe_twice
    x = whole_numbers(8, 8, device=device)
    launches = []
    for graphs in (True, False):
        with watched(triton__cudagraphs=graphs, graph_partition=True):
            fast = torch.compile(work)
            for _ in range(4):
                found = trees.values(fast(x))
            with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
                found = trees.values(fast(x))
                torch.cuda.synchronize()
            trees.assert_same(found, [work(x)], f"graphs: {graphs}")
        names = [event.name for event in profiled.events()]
        launches.append(
            (
                sum(name.startswith(("cudaLaunchKernel", "cuLaunchKernel")) for name in names),
                sum(name.startswith(("cudaGraphLaunch", "cuGraphLaunch")) for name in names),
            )
        )
    (with_graphs, graph_launches), (without, none) = launches
    assert graph_launches >= 1
    assert none == 0
    assert with_graphs + 8 <= without


@pytest.mark.covers(*row("graph_partition_forward_backward", "graph_partition_symint_cat_backward"))
@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "any_size"])
@with_triton
def test_graph_partition_of_forward_and_backward(dynamic: bool, device: torch.device) -> None:
    """Forward and backward are partitioned alike, and saved tensors cross the parts.

    Gradients are correct for all sizes.
    """

    def work(x: torch.Tensor) -> torch.Tensor:
        y = torch.cat([x, operators.SafeForward.apply(x * x)])
        return (y.cpu() * 2).to(x.device) * 3

    with watched(graph_partition=True) as watch:
        fast = compiled(work, trees.INDUCTOR, dynamic=dynamic)
        for step in range(8):
            rows = 4 + 2 * (step % 2) if dynamic else 4
            x = (whole_numbers(rows, 4, device=device, start=step) % 3).requires_grad_()
            y = fast(x)
            trees.assert_same(trees.values(y), [work(x).detach()], f"step {step}")
            y.sum().backward()
            assert x.grad is not None
            trees.assert_same([x.grad], [6 + 24 * x.detach()], f"gradient of step {step}")
        counts = watch.counts()
        if not dynamic:
            assert counts == Counts(4, 4, 24)
        assert counts.recordings >= 2
        assert counts.replays >= counts.recordings


@pytest.mark.covers(*row("graph_partition_forward_backward_not_called"))
@with_triton
def test_graph_partition_of_forwards_whose_backward_never_runs(device: torch.device) -> None:
    """Outputs of partitioned forwards keep their values while a backward may follow.

    They are correct in marked steps.
    """
    with watched(graph_partition=True):
        fast = compiled(lambda x: operators.unsafe_twice((x * x).detach()) + x * 3, trees.INDUCTOR)
        inputs = [whole_numbers(8, device=device, start=n).requires_grad_() for n in range(3)]
        outputs = [fast(x) for x in inputs]
        wanted = [(2 * x * x + 3 * x).detach() for x in inputs]
        trees.assert_same(trees.values(outputs), wanted, "unmarked")
        del outputs
        for number in range(3):
            torch.compiler.cudagraph_mark_step_begin()
            trees.assert_same(trees.values(fast(inputs[number])), [wanted[number]], f"marked step {number}")


@pytest.mark.covers(*row("graph_partition_saved_activation_not_static", "graph_partition_no_partition_keeps_static"))
@pytest.mark.parametrize("split", [True, False], ids=["split", "whole"])
@with_triton
def test_graph_partition_saved_tensors_may_move(split: bool, device: torch.device) -> None:
    """In a partitioned forward, an unrecorded operator may return a saved tensor at a new address in each step.

    The backward then copies it and is not recorded again; without partition, it reads saved tensors in place.
    """

    def work(x: torch.Tensor) -> torch.Tensor:
        y = operators.unsafe_twice(x.detach() + 1) if split else x.detach() * 2 + 2
        return (x * y) @ y

    with watched(graph_partition=True) as watch:
        fast = compiled(work, trees.INDUCTOR)
        kept = []
        for step in range(10):
            x = (whole_numbers(4, 4, device=device, start=step) % 3).requires_grad_()
            kept.append(torch.empty(64 * (step + 1), device=device))  # new allocations get other addresses
            y = (2 * (x + 1)).detach()
            fast(x).sum().backward()
            assert x.grad is not None
            trees.assert_same([x.grad], [y * y.sum(1)], f"gradient of step {step}")
        counts = watch.counts()
        assert counts.skips == 0
        if torch.__version__ >= (2, 13) or not split:
            assert counts.recordings <= 4
            assert counts.replays >= 2 * counts.recordings


@pytest.mark.covers(*row("graph_partition_gc"))
@with_triton
def test_graph_partition_memory_is_freed(device: torch.device) -> None:
    """A compiler reset, once the function is deleted, frees the memory of its parts in the pools."""
    with watched(graph_partition=True):
        fast = compiled(copied_to_the_host, trees.INDUCTOR)
        for number in range(3):
            fast(whole_numbers(8, 8, device=device, start=number))
        assert private.graph_segments(), "the parts have no memory"
        del fast
        torch.compiler.reset()
        gc.collect()
        torch.cuda.synchronize()
        assert private.live_bytes_of_graphs() == 0


@pytest.mark.covers(*row("graph_partition_with_memory_plan_reuse"))
@pytest.mark.parametrize(
    "name",
    [
        "memory_reused",
        "views_across",
        pytest.param(
            "unsafe_change_of_what_is_used_before",
            marks=pytest.mark.xfail(
                reason="the planner keeps outputs of the graph, and no outputs of a part: an output that the next part "
                "reads is overwritten in its own part (seen with torch 2.13 and 2.15; not reported yet)",
                strict=True,
            ),
        ),
    ],
)
@with_triton
def test_memory_planning_and_graph_partition(name: str, device: torch.device) -> None:
    """When inductor plans one memory block for many buffers, parts do not overwrite what other parts read."""
    with splitting(SPLITS[name], memory_planning=True) as watch:
        counts = run(SPLITS[name], device, watch)
    assert counts.recordings >= 1


@pytest.mark.requires(device="cuda", devices=2, triton=True)
@pytest.mark.covers(*row("graph_partition_multiple_devices_msg"))
def test_graph_partition_of_two_gpus_in_one_graph_is_skipped(device: torch.device) -> None:
    """Work on two GPUs in one graph is skipped as a whole, with or without partition, and is correct."""
    second = torch.device(device.type, 1)
    with watched(graph_partition=True) as watch:
        calls = repeated(lambda n: [whole_numbers(8, device=d, start=n) for d in (device, second)], 3)
        counts = trees.compare(lambda x, y: (x + 1, y * 2), calls, trees.INDUCTOR, watch)
        assert counts == Counts(skips=1)
        assert any("multiple devices" in reason for reason in watch.reasons())


def same(one: object, other: object) -> bool:
    try:
        trees.assert_same([one], [other], "")
    except AssertionError:
        return False
    return True


def test_graph_partition_table_is_deterministic_and_varies() -> None:
    """The functions of the table are deterministic, and each call has a different result from the one before.

    A difference therefore comes from the compiler, and stale inputs are visible.
    """
    cpu = torch.device("cpu")
    for name, split in SPLITS.items():
        if name == "users_kernel":  # needs a GPU
            continue
        first, second = (trees.values(split.work(*split.make(cpu, 3))) for _ in range(2))
        trees.assert_same(first, second, name)
        for number in range(1, CALLS):
            before, now = (trees.values(split.work(*split.make(cpu, n))) for n in (number - 1, number))
            stale = [index for index, (one, other) in enumerate(zip(now, before, strict=True)) if same(one, other)]
            assert stale == [], f"{name}: these results of call {number} equal those of the previous call"
