"""`torch.cuda.graph` and `make_graphed_callables`: effects around the capture, and refused arguments."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from ..streams.busy import calibrate, sleep_on
from . import _torch_private as private

pytestmark = [
    pytest.mark.requires(device="cuda", cuda_graphs=True),
    # The samples' nodes belong to the capture stream, and the case's own backward pass runs on another.
    pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream:UserWarning"),
]
MIB = 1 << 20


def captured(x: torch.Tensor) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.add_(1)
    return graph


def test_cuda_graph_waits_for_the_device_before_the_capture(device: torch.device) -> None:
    """Entering `torch.cuda.graph` waits for all earlier work of any stream before the capture begins."""
    x = torch.zeros(4, device=device)
    side = torch.cuda.Stream(device)
    calibrate(device)
    captured(x).reset()
    done = torch.cuda.Event()
    sleep_on(side, 200)
    done.record(side)
    pending = not done.query()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        finished = done.query()
        x.add_(1)
    assert pending
    assert finished
    graph.reset()


def test_cuda_graph_captures_on_one_stream_by_default(device: torch.device) -> None:
    """Without `stream`, all captures use one dedicated stream, also after a capture on another stream."""
    x = torch.zeros(4, device=device)
    own, graphs, seen = torch.cuda.Stream(device), [torch.cuda.CUDAGraph() for _ in range(3)], []
    for graph, stream in zip(graphs, (None, own, None), strict=True):
        with torch.cuda.graph(graph, stream=stream):
            seen.append(torch.cuda.current_stream(device))
            x.add_(1)
    assert seen[1] == own
    assert seen[0] == seen[2] != own
    assert seen[0] == torch.cuda.graph.default_capture_stream
    for graph in graphs:
        graph.reset()


def test_cuda_graph_frees_cached_memory_before_the_capture(device: torch.device) -> None:
    """Entering `torch.cuda.graph` empties the caches of the device and of pinned memory."""
    x = torch.zeros(4, device=device)
    captured(x).reset()
    held = torch.empty(64 * MIB, dtype=torch.uint8, device=device)
    pinned = torch.empty(8 * MIB, dtype=torch.uint8, pin_memory=True)
    del held, pinned
    reserved = torch.cuda.memory_reserved(device)
    host = torch.cuda.host_memory_stats()["allocated_bytes.current"]
    graph = captured(x)
    assert torch.cuda.memory_reserved(device) <= reserved - 62 * MIB
    assert torch.cuda.host_memory_stats()["allocated_bytes.current"] <= host - 8 * MIB
    graph.reset()


@pytest.mark.parametrize("forced", [False, True])
def test_force_cudagraph_gc_decides_whether_a_capture_collects_garbage(device: torch.device, forced: bool) -> None:
    """`torch.cuda.graph` collects cycles if `torch.compiler.config.force_cudagraph_gc` is set; the default is off."""

    class Cycle:
        def __init__(self) -> None:
            self.own = self

    x = torch.zeros(4, device=device)
    captured(x).reset()
    gc.collect()
    gc.disable()
    try:
        cycle = weakref.ref(Cycle())
        with torch.compiler.config.patch(force_cudagraph_gc=forced):
            graph = captured(x)
        assert (cycle() is None) == forced
        graph.reset()
    finally:
        gc.enable()
        gc.collect()


@pytest.mark.requires(torch=">=2.13")
def test_check_input_liveness_looks_at_inputs_of_the_capture_only(device: torch.device) -> None:
    """`check_input_liveness` ignores tensors used and freed after the capture, and tensors from before a `reset`."""
    x, y, later = torch.zeros(4, device=device), torch.ones(4, device=device), torch.ones(4, device=device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, check_input_liveness=True):
        x.add_(1)
    x.add_(later)
    del later
    graph.replay()
    torch.cuda.synchronize(device)
    assert x.tolist() == [2] * 4

    graph.reset()
    del x
    with torch.cuda.graph(graph):
        y.add_(1)
    graph.replay()
    torch.cuda.synchronize(device)
    assert y.tolist() == [2] * 4
    graph.reset()


def module(device: torch.device) -> torch.nn.Module:
    return torch.nn.Linear(4, 4).to(device)


@pytest.mark.parametrize("kind", ["forward", "forward_pre", "backward"])
def test_make_graphed_callables_refuses_a_module_with_hooks(device: torch.device, kind: str) -> None:
    """A module with a hook of any kind is refused; a hook that is registered later runs."""
    x = torch.ones(2, 4, device=device, requires_grad=True)
    calls: list[str] = []
    register = {
        "forward": lambda each: each.register_forward_hook(lambda *_: calls.append("forward")),
        "forward_pre": lambda each: each.register_forward_pre_hook(lambda *_: calls.append("forward_pre")),
        "backward": lambda each: each.register_full_backward_hook(lambda *_: calls.append("backward")),
    }[kind]
    hooked = module(device)
    handle = register(hooked)
    with pytest.raises(AssertionError, match="hooks"):
        torch.cuda.make_graphed_callables(hooked, (x,))
    handle.remove()
    graphed = torch.cuda.make_graphed_callables(hooked, (x,))
    assert calls == []
    register(graphed)
    graphed(torch.ones(2, 4, device=device, requires_grad=True)).sum().backward()
    assert calls == [kind]


def test_make_graphed_callables_refuses_a_buffer_that_requires_grad(device: torch.device) -> None:
    """Only parameters may be trainable: a buffer that requires grad is refused, and another one is accepted."""
    x = torch.ones(2, 4, device=device, requires_grad=True)
    wrong, right = module(device), module(device)
    wrong.register_buffer("scale", torch.ones(4, device=device, requires_grad=True))
    right.register_buffer("scale", torch.ones(4, device=device))
    with pytest.raises(AssertionError, match="requires_grad=False"):
        torch.cuda.make_graphed_callables(wrong, (x,))
    torch.cuda.make_graphed_callables(right, (x,))


def test_make_graphed_callables_refuses_arguments_that_are_no_tensors(device: torch.device) -> None:
    """The sample arguments must be tensors, also within containers."""
    x = torch.ones(4, device=device)
    for sample in ((x, 2), ([x, "text"],)):
        with pytest.raises(AssertionError, match="only Tensors"):
            torch.cuda.make_graphed_callables(lambda *_: x * 2, sample)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [False, True], ids=["own_pool", "given_pool"])
def test_make_graphed_callables_graphs_share_one_pool(device: torch.device, given: bool) -> None:
    """All forward and backward graphs of a call allocate from one pool: the given one, or a new one."""

    def pools() -> set[tuple[int, int]]:
        torch.cuda.empty_cache()
        return {tuple(each["segment_pool_id"]) for each in torch.cuda.memory_snapshot()} - {(0, 0)}

    x = torch.ones(2, 4, device=device, requires_grad=True)
    before = pools()
    pool = torch.cuda.graph_pool_handle() if given else None
    graphed = torch.cuda.make_graphed_callables((module(device), module(device)), ((x,), (x,)), pool=pool)
    new = pools() - before
    assert len(new) == 1
    if pool is not None:
        assert new == {tuple(pool)}
    graphed[1](graphed[0](x)).sum().backward()


@pytest.mark.parametrize("warm_ups", [1, 3, 5])
def test_make_graphed_callables_warms_up_as_often_as_it_is_reported(device: torch.device, warm_ups: int) -> None:
    """The callable runs `num_warmup_iters` times, by default three, and once more for the capture.

    Later it does not run.
    """
    calls: list[bool] = []

    def double(x: torch.Tensor) -> torch.Tensor:
        calls.append(torch.cuda.is_current_stream_capturing())
        return x * 2

    x = torch.ones(4, device=device, requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(double, (x,), num_warmup_iters=warm_ups)
    assert calls == [False] * warm_ups + [True]
    y = torch.full((4,), 3.0, device=device, requires_grad=True)
    found = graphed(y)
    found.backward(torch.tensor([1.0, 2.0, 3.0, 4.0], device=device))
    assert len(calls) == warm_ups + 1
    assert found.tolist() == [6.0] * 4
    assert y.grad is not None
    assert y.grad.tolist() == [2.0, 4.0, 6.0, 8.0]
    calls.clear()
    torch.cuda.make_graphed_callables(double, (x,))
    assert calls == [False] * 3 + [True]


@pytest.mark.requires(torch=">=2.13")
def test_enable_annotations_marks_nothing_that_a_replay_computes(device: torch.device) -> None:
    """With `enable_annotations`, a capture's kernels can be marked for profilers; results are the same.

    The marks remain enabled until they are disabled (torch/cuda/_graph_annotations.py).
    """
    x = torch.ones(4, device=device)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    try:
        with torch.cuda.graph(graph, enable_annotations=True):
            assert private.annotations_enabled()
            y = x * 3
        graph.replay()
        assert y.tolist() == [3.0] * 4
        x.fill_(2)
        graph.replay()
        assert y.tolist() == [6.0] * 4
    finally:
        private.disable_annotations()
    graph.reset()
    other = torch.cuda.CUDAGraph()
    with torch.cuda.graph(other):
        assert not private.annotations_enabled()
        y = x * 5
    other.reset()
