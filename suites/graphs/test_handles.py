"""Raw handles of `torch.cuda.CUDAGraph`, and graphs with `keep_graph`."""

from __future__ import annotations

import pytest
import torch

from . import _torch_private as private
from .capturing import Cuda, captured, on_cuda, works

ROW = "test_cuda::TestCuda::"

pytestmark = on_cuda


@pytest.mark.covers(f"{ROW}test_cuda_graph_raw_graph_keep_graph_false")
def test_raw_cuda_graph_needs_keep_graph(device: torch.device) -> None:
    """Without `keep_graph`, `raw_cuda_graph` raises and names the option, and `raw_cuda_graph_exec` works."""
    x = torch.zeros(8, device=device)
    graph = captured(Cuda(), device, lambda: x.add_(1))
    with pytest.raises(RuntimeError, match="keep_graph"):
        graph.raw_cuda_graph()
    assert graph.raw_cuda_graph_exec() != 0


@pytest.mark.covers(f"{ROW}test_cuda_graph_raw_graph")
def test_raw_cuda_graph_of_a_kept_graph_stays(device: torch.device) -> None:
    """The handle of a kept graph is the same before and after instantiation and replay.

    Before the capture, it raises.
    """
    x = torch.zeros(8, device=device)
    with pytest.raises(RuntimeError, match=r"(?i)capture"):
        torch.cuda.CUDAGraph(keep_graph=True).raw_cuda_graph()
    graph = captured(Cuda(), device, lambda: x.add_(1), keep_graph=True)
    handle = graph.raw_cuda_graph()
    assert handle != 0
    graph.instantiate()
    x.zero_()
    graph.replay()
    assert (x == 1).all()
    assert graph.raw_cuda_graph() == handle


@pytest.mark.covers(f"{ROW}test_cuda_graph_raw_graph_exec")
def test_raw_cuda_graph_exec_exists_after_instantiate(device: torch.device) -> None:
    """A kept graph has no executable handle before `instantiate`; it can be instantiated again and replayed."""
    x = torch.zeros(8, device=device)
    graph = captured(Cuda(), device, lambda: x.add_(1), keep_graph=True)
    with pytest.raises(RuntimeError, match=r"(?i)instantiate"):
        graph.raw_cuda_graph_exec()
    for _ in range(2):
        graph.instantiate()
        assert graph.raw_cuda_graph_exec() != 0
        x.zero_()
        graph.replay()
        assert (x == 1).all()


@pytest.mark.covers(f"{ROW}test_cuda_graph_raw_graph_reset_and_recapture")
def test_raw_cuda_graph_and_exec_after_a_reset(device: torch.device) -> None:
    """`reset` invalidates the handles.

    Another capture creates new ones, and a replay instantiates the graph.
    """
    x = torch.zeros(8, device=device)
    graph = captured(Cuda(), device, lambda: x.add_(1), keep_graph=True)
    graph.instantiate()
    graph.reset()
    for handle, missing in ((graph.raw_cuda_graph, "capture_end"), (graph.raw_cuda_graph_exec, "instantiate")):
        with pytest.raises(RuntimeError, match=missing):
            handle()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream(device), capture_error_mode="thread_local"):
        x.add_(10)
    assert graph.raw_cuda_graph() != 0
    x.zero_()
    graph.replay()
    assert (x == 10).all()
    assert works(device)


@pytest.mark.requires(torch=">=2.13")
def test_check_input_liveness_refuses_a_replay_when_an_input_is_gone(device: torch.device) -> None:
    """With `check_input_liveness`, a replay raises if an input was freed, and works while the input is alive."""
    stream, graph = torch.cuda.Stream(device), torch.cuda.CUDAGraph()
    out = torch.zeros(1 << 20, device=device)
    source = torch.ones(1 << 20, device=device)
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local", check_input_liveness=True):
        out.copy_(source)
    graph.replay()
    assert (out == 1).all()
    del source
    out.zero_()
    with pytest.raises(RuntimeError, match=r"(?i)dead tensor"):
        graph.replay()
    assert works(device)
    assert (out == 0).all()


@pytest.mark.races("the input is freed before the replay")
@pytest.mark.requires(torch=">=2.13")
def test_capture_begin_looks_at_no_input_by_default(device: torch.device) -> None:
    """By default, a replay runs although an input was freed, and a graph is not kept."""
    stream, graph = torch.cuda.Stream(device), torch.cuda.CUDAGraph()
    out, source = torch.zeros(8, device=device), torch.ones(8, device=device)
    torch.cuda.synchronize(device)
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        out.copy_(source)
        graph.capture_end()
    del source
    graph.replay()
    with pytest.raises(RuntimeError, match="keep_graph"):
        graph.raw_cuda_graph()
    torch.cuda.synchronize(device)


@pytest.mark.requires(torch=">=2.13")
def test_get_graph_data_says_what_it_needs(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    """`get_graph_data` needs the package cuda.bindings, and a driver that numbers the nodes of graphs for tools.

    If either is missing, it raises with that reason, and the graph remains usable.
    """
    x = torch.ones(4, device=device)
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    with torch.cuda.graph(graph):
        y = x + 1
    graph.instantiate()
    with monkeypatch.context() as patch:
        private.without_cuda_bindings(patch)
        with pytest.raises(RuntimeError, match=r"get_graph_data requires the cuda\.bindings package"):
            graph.get_graph_data()
    with monkeypatch.context() as patch:
        private.without_ids_of_nodes(patch)
        with pytest.raises(RuntimeError, match="get_graph_data requires cudaGraphNodeGetToolsId"):
            graph.get_graph_data()
    graph.replay()
    assert y.tolist() == [2.0] * 4
    graph.reset()
