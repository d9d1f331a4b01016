"""Pool handles: created separately, and passed to several graphs or graphed callables."""

from __future__ import annotations

import copy

import pytest
import torch

from suites.cuda_warnings import of_graphed_callables

from .pools import address, captured, pool_of, segments_of


@pytest.mark.requires(cuda=True)
def test_graph_pool_handle_is_always_new() -> None:
    """`graph_pool_handle` returns a new handle each time, and never the default pool's.

    The case needs a build for CUDA only.
    """
    handles = [torch.cuda.graph_pool_handle() for _ in range(100)]

    assert len(set(handles)) == 100
    assert (0, 0) not in handles


@pytest.mark.requires(device="cuda", cuda_graphs=True)
@pytest.mark.usefixtures("nothing_left")
@pytest.mark.covers("test_cuda::TestCuda::test_graph_two_successive")
def test_graph_pool_handle_is_shared_by_graphs(device: torch.device) -> None:
    """A handle created before any graph is the pool of each graph that gets it, and of nothing else.

    The graphs' outputs are in its segments, eager tensors are not, and replays in order are correct.
    """
    handle = torch.cuda.graph_pool_handle()
    x = torch.zeros(1 << 20, dtype=torch.int32, device=device)
    stream = torch.cuda.Stream(device)
    first = captured(device, lambda: [x + 1], handle, stream)
    second = captured(device, lambda: [first.outputs[0] * 3], handle, stream)
    later = [x + 1 for _ in range(10)]

    assert first.pool == second.pool == handle
    assert [pool_of(device, address(graph.outputs[0])) for graph in (first, second)] == [handle] * 2
    assert {pool_of(device, address(each)) for each in (x, *later)} == {(0, 0)}
    for value in (1, -5):
        x.fill_(value)
        first.replay()
        second.replay()
        torch.accelerator.synchronize(device)
        assert (second.outputs[0] == (value + 1) * 3).all()


@of_graphed_callables
@pytest.mark.requires(device="cuda", cuda_graphs=True)
@pytest.mark.covers("test_cuda::TestCuda::test_graph_make_graphed_callables_same_pool")
def test_make_graphed_callables_that_share_a_pool_train_like_eager_ones(device: torch.device) -> None:
    """Several graphed modules in one pool, run in sequence, match eager modules in forward and backward.

    Parameters and gradients have separate memory, so those of the first module are intact after the last.
    """
    torch.manual_seed(5)
    models = [
        torch.nn.Sequential(torch.nn.Linear(32, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128)).to(device)
        for _ in range(3)
    ]
    handle = torch.cuda.graph_pool_handle()
    example = torch.randn(64, 32, device=device)
    graphed = [torch.cuda.make_graphed_callables(copy.deepcopy(model), (example,), pool=handle) for model in models]
    assert segments_of(device, handle)

    for model, ours in zip(models, graphed, strict=True):
        x = torch.randn(64, 32, device=device)
        plain, result = model(x), ours(x)
        plain.norm().backward()
        result.norm().backward()

        assert pool_of(device, result.untyped_storage().data_ptr()) == handle
        torch.testing.assert_close(result, plain)

    places = []
    for model, ours in zip(models, graphed, strict=True):
        for parameter, other in zip(model.parameters(), ours.parameters(), strict=True):
            assert parameter.grad is not None
            assert other.grad is not None
            torch.testing.assert_close(other.grad, parameter.grad)
            places += [each.data_ptr() for each in (parameter, other, parameter.grad, other.grad)]
    assert len(set(places)) == len(places)
