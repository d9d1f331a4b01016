"""Skipped graphs: torch reports the reason once per graph, in the log and in the counter, or as an error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from . import _torch_private as private
from . import operators, trees
from .kept import BROKEN, KEPT_BROKEN
from .trees import CUDAGRAPHS, INDUCTOR, Counts, compiled, on_cuda, repeated, watched, whole_numbers, with_triton

ROW = "test_cudagraph_trees::CudaGraphTreeTests::"

pytestmark = pytest.mark.timeout(trees.LIMIT)

#: The `requires` mark of a case that runs on the host.
cpp = pytest.mark.requires(cpp_compiler=True)


def item(x: torch.Tensor) -> torch.Tensor:
    # An integer, because torch may leave a floating-point number on the device, and then nothing is skipped.
    return x * x.to(torch.int64).sum().item()


def nonzero(x: torch.Tensor) -> torch.Tensor:
    return torch.nonzero(x) + 1


def sparse(x: torch.Tensor) -> torch.Tensor:
    return (x + 1).to_sparse().to_dense() * 2


def unsafe(x: torch.Tensor) -> torch.Tensor:
    return operators.unsafe_twice(x + 1)


def unsafe_change(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    operators.unsafe_add_(y, x)
    return y * 2


@dataclass(frozen=True)
class Incompatible:
    """Work that cannot be captured, and the text that the reason must contain."""

    work: Callable[[torch.Tensor], torch.Tensor]
    names: str
    rows: tuple[str, ...] = ()


INCOMPATIBLE = {
    "item": Incompatible(item, "local_scalar_dense", (f"{ROW}test_incompatible_cudagraph_ops_item",)),
    "nonzero": Incompatible(nonzero, "nonzero", (f"{ROW}test_incompatible_cudagraph_ops_nonzero",)),
    "unsafe": Incompatible(unsafe, "unsafe_twice", (f"{ROW}test_skip_cudagraph_unsafe_ops",)),
    "unsafe_change": Incompatible(unsafe_change, "unsafe_add_", (f"{ROW}test_skip_cudagraph_unsafe_ops",)),
}

incompatible = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.covers(*one.rows)) for name, one in INCOMPATIBLE.items()]
)


@incompatible
@with_triton
def test_cudagraph_skip_of_a_graph_with_an_operation_that_cannot_be_captured(name: str, device: torch.device) -> None:
    """Without partition, one operation that cannot be captured skips the whole graph, once.

    Such operations read a number back, have a data-dependent size, or are tagged unsafe; the reason has the operation
    and its line.
    """
    one = INCOMPATIBLE[name]
    capture = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    with private.dynamo_config(**capture), watched(graph_partition=False) as watch:
        calls = repeated(lambda n: [whole_numbers(8, 8, device=device, start=n)], 4)
        counts = trees.compare(one.work, calls, INDUCTOR, watch)
        assert counts == Counts(skips=1)
        (reason,) = watch.reasons()
        assert one.names in reason
        assert __file__ in reason


#: This backend receives an operator that mutates its argument wrapped in another one.
TAG_UNSEEN = pytest.mark.xfail(
    raises=AssertionError,
    reason="the tag of an operator that mutates its argument is not seen through `auto_functionalized`: it is recorded "
    "(get_first_incompatible_cudagraph_node; seen with torch 2.13 and 2.15, not reported yet)",
)


@pytest.mark.parametrize("name", ["item", "nonzero", "unsafe", pytest.param("unsafe_change", marks=TAG_UNSEEN)])
@on_cuda
@pytest.mark.covers(f"{ROW}test_incompatible_cudagraph_ops_nonzero_backend")
def test_cudagraphs_backend_skips_what_cannot_be_captured(name: str, device: torch.device) -> None:
    """The backend "cudagraphs", which records torch's operators, skips the same graphs and names the operation only."""
    one = INCOMPATIBLE[name]
    capture = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    with private.dynamo_config(**capture), watched() as watch:
        calls = repeated(lambda n: [whole_numbers(8, 8, device=device, start=n)], 4)
        counts = trees.compare(one.work, calls, CUDAGRAPHS, watch)
        assert counts == Counts(skips=1)
        (reason,) = watch.reasons()
        assert "incompatible op" in reason
        assert one.names in reason


@on_cuda
@trees.both_compilers
@pytest.mark.covers(f"{ROW}test_incompatible_cudagraph_ops_nonzero_graph_breaks")
@pytest.mark.keeps(BROKEN, **KEPT_BROKEN)
def test_graph_break_leaves_two_recorded_graphs(compiler: str, device: torch.device) -> None:
    """If the operation breaks the program into two graphs, it runs between them, and both are recorded and replayed."""

    def work(x: torch.Tensor) -> torch.Tensor:
        y = x * x + 1
        torch._dynamo.graph_break()
        rows = torch.nonzero(y)
        torch._dynamo.graph_break()
        return y * 2 + rows.shape[0]

    capture = {"capture_dynamic_output_shape_ops": False}
    with private.dynamo_config(**capture), watched() as watch:
        calls = repeated(lambda n: [whole_numbers(8, device=device, start=n)], 5)
        counts = trees.compare(work, calls, compiler, watch)
    assert counts == Counts(warm_ups=2, recordings=2, replays=6)


@with_triton
@pytest.mark.covers(f"{ROW}test_sparsity")
@pytest.mark.keeps(BROKEN, **KEPT_BROKEN)  # the sparse operation breaks it
def test_sparse_tensors_inside_a_recording(device: torch.device) -> None:
    """Work that creates a sparse tensor, whose size depends on values, is correct, whether or not it is recorded."""
    with watched() as watch:
        calls = repeated(lambda n: [whole_numbers(8, 8, device=device, start=n)], 4)
        trees.compare(sparse, calls, INDUCTOR, watch)


@pytest.mark.parametrize("compiler", [CUDAGRAPHS, INDUCTOR])
@cpp
@pytest.mark.covers(f"{ROW}test_multiple_devices_msg")
def test_cudagraph_skip_of_work_on_the_cpu(compiler: str) -> None:
    """A graph without GPU work is skipped, counted once however often it is called, and correct.

    The backend "cudagraphs" reports the CPU device and the line.
    """

    def work(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    with watched() as watch:
        calls = repeated(lambda n: [whole_numbers(8, device=torch.device("cpu"), start=n)], 4)
        assert trees.compare(work, calls, compiler, watch) == Counts(skips=1)
        if compiler == CUDAGRAPHS:
            (reason,) = watch.reasons()
            assert "cpu device" in reason
            assert "return x * 2 + 1" in reason


@cpp
@pytest.mark.parametrize("compiler", [CUDAGRAPHS, INDUCTOR])
def test_cudagraph_skip_of_training_on_the_cpu_is_counted_once(compiler: str) -> None:
    """A skipped forward skips its backward: one or both are counted, once for all steps, and gradients are correct."""
    with watched() as watch:
        fast = compiled(lambda x: x * x * 3, compiler)
        for step in range(4):
            x = whole_numbers(8, device=torch.device("cpu"), start=step).requires_grad_()
            fast(x).sum().backward()
            assert x.grad is not None
            assert torch.equal(x.grad, 6 * x.detach())
        assert watch.counts() in (Counts(skips=1), Counts(skips=2))


@on_cuda
@pytest.mark.covers(f"{ROW}test_multiple_devices_msg")
def test_cudagraph_skip_names_a_cpu_tensor_among_those_of_the_gpu(device: torch.device) -> None:
    """A graph that also computes on the host is skipped, and the reason names the line of the host work."""

    def work(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = x + 1
        second = y + 2
        return first, second

    host = torch.device("cpu")
    for devices, line in (((device, host), "second = y + 2"), ((host, device), "first = x + 1")):
        with watched() as watch:
            calls = repeated(lambda n, on=devices: [whole_numbers(8, device=d, start=n) for d in on], 3)  # type: ignore[misc]
            assert trees.compare(work, calls, CUDAGRAPHS, watch) == Counts(skips=1)
            (reason,) = watch.reasons()
            assert "cpu device" in reason
            assert line in reason


@pytest.mark.requires(device="cuda", devices=2)
@trees.both_compilers
@pytest.mark.covers(f"{ROW}test_multiple_devices_msg")
def test_cudagraph_skip_names_two_gpus(compiler: str, device: torch.device) -> None:
    """A graph on two GPUs is skipped, and the reason names both."""
    second = torch.device(device.type, 1)
    with watched(graph_partition=False) as watch:
        calls = repeated(lambda n: [whole_numbers(8, device=d, start=n) for d in (device, second)], 3)
        assert trees.compare(lambda x, y: (x + 1, y + 2), calls, compiler, watch) == Counts(skips=1)
        (reason,) = watch.reasons()
        assert "multiple devices" in reason
        assert "index=0" in reason
        assert "index=1" in reason


@cpp
@pytest.mark.covers(f"{ROW}test_cudagraph_or_error")
def test_cudagraph_or_error_raises_for_a_skip() -> None:
    """With `cudagraph_or_error`, a skip raises with its reason; without it, the same function runs."""

    def work(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    x = whole_numbers(8, device=torch.device("cpu"))
    with (
        watched(triton__cudagraph_or_error=True) as watch,
        pytest.raises(Exception, match=r"(?s)skipping cudagraphs due to.*cpu device"),
    ):
        compiled(work, CUDAGRAPHS)(x)
    with watched(triton__cudagraph_or_error=False) as watch:
        assert torch.equal(compiled(work, CUDAGRAPHS)(x), work(x))
        assert watch.counts() == Counts(skips=1)


@with_triton
@pytest.mark.covers(f"{ROW}test_cudagraph_or_error")
def test_cudagraph_or_error_records_capturable_graphs(device: torch.device) -> None:
    """`cudagraph_or_error` does not affect a graph that can be captured, and raises for one that cannot."""
    with watched(triton__cudagraph_or_error=True, graph_partition=False) as watch:
        calls = repeated(lambda n: [whole_numbers(8, device=device, start=n)], 4)
        assert trees.compare(lambda x: x + 1, calls, INDUCTOR, watch) == Counts(1, 1, 2)
        with pytest.raises(Exception, match="unsafe_twice"):
            compiled(unsafe, INDUCTOR)(whole_numbers(8, device=device))


@pytest.mark.requires(device="cuda", triton=True, rocm=True, cuda=False)
@pytest.mark.covers(f"{ROW}test_topk_skips_cudagraph_on_hip")
def test_topk_is_skipped_on_hip(device: torch.device) -> None:
    """Under ROCm, where `topk` fails in later replays, graphs with `topk` are skipped by name and are correct."""
    with watched(graph_partition=False) as watch:
        calls = repeated(lambda n: [torch.randperm(64, device=device) + n], 4)
        assert trees.compare(lambda x: x.topk(3).values, calls, INDUCTOR, watch) == Counts(skips=1)
        assert any("topk" in reason for reason in watch.reasons())
