"""Graphs that share memory: their results are correct in capture order, and only then, as documented."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from suites.streams.busy import calibrate, ever, sleep_on

from .capturing import Api, apis, captured, on_cuda

ROW = "test_cuda::TestCuda::"

#: Pool handles without a graph are specific to CUDA.
SHARING = pytest.mark.parametrize("sharing", ["none", "by_graph", pytest.param("by_handle", marks=on_cuda)])


@dataclass
class Pools:
    """The pool of the first graph, and the pool of later graphs."""

    sharing: str
    device: torch.device

    def first(self) -> Any:
        self._handle = torch.cuda.graph_pool_handle() if self.sharing == "by_handle" else None
        return self._handle

    def later(self, first: Any) -> Any:
        return first.pool() if self.sharing == "by_graph" else self._handle


def with_temporaries(x: torch.Tensor, value: int) -> torch.Tensor:
    a = x.clone() + value
    b = x.clone() + value
    return a + b


@apis
@SHARING
@pytest.mark.covers(f"{ROW}test_graph_two_successive")
def test_graph_pool_two_graphs_in_turn(api: Api, sharing: str, device: torch.device) -> None:
    """Two dependent graphs are correct with separate pools and with a shared one, with eager work in between.

    In a shared pool the second graph reuses memory that the first freed; with a separate pool it reserves its own.
    """
    pools, stream = Pools(sharing, device), torch.Stream(device)
    held: list[int] = []
    a = torch.ones(1000, dtype=torch.int64, device=device)
    results: list[torch.Tensor] = []

    def chain(x: torch.Tensor) -> None:
        for _ in range(5):
            x = with_temporaries(x, 1)
        results.append(x)

    def hold() -> None:
        torch.accelerator.empty_cache()
        held.append(torch.accelerator.memory_reserved(device))

    hold()
    first = captured(api, device, lambda: chain(a.clone()), pool=pools.first(), stream=stream, rehearse=False)
    hold()
    second = captured(api, device, lambda: chain(results[0]), pool=pools.later(first), stream=stream, rehearse=False)
    hold()
    assert held[0] < held[1]
    if sharing == "none":
        assert held[1] < held[2]
    else:
        assert held[1] == held[2]
        assert second.pool() == first.pool()

    for start in (1, 3):
        a.fill_(start)
        eager = a.clone()
        first.replay()
        eager = with_temporaries(eager, 3)
        second.replay()
        eager = with_temporaries(eager, 3)
        expected = start
        for _ in range(10):
            expected = 2 * (expected + 1)
        assert (results[1] == expected).all()
        assert (eager == 2 * (2 * (start + 3) + 3)).all()


@apis
@SHARING
@pytest.mark.covers(f"{ROW}test_graph_three_successive")
def test_graph_pool_three_graphs_replayed_out_of_order(api: Api, sharing: str, device: torch.device) -> None:
    """Graphs in one pool must be replayed in capture order.

    In another order, one overwrites the memory of another: the third graph was captured with memory that the second had
    freed. With separate pools, any order is correct.
    """
    pools, stream = Pools(sharing, device), torch.Stream(device)
    a = torch.ones(1000, device=device)
    made: dict[str, torch.Tensor] = {}

    def one() -> None:
        b = a.clone()
        made["c"], made["d"] = b + 1, b + 2

    def two() -> None:
        made["e"] = made["c"] + 3
        del made["c"]

    def three() -> None:
        made["f"] = made["d"] + 4

    first = captured(api, device, one, pool=pools.first(), stream=stream, rehearse=False)
    later = [captured(api, device, w, pool=pools.later(first), stream=stream, rehearse=False) for w in (two, three)]

    def replay(*graphs: Any) -> tuple[float, float]:
        for graph in graphs:
            graph.replay()
        return made["e"][0].item(), made["f"][0].item()

    assert replay(first, *later) == (5.0, 7.0)
    out_of_turn = replay(first, *reversed(later))
    if sharing == "none":
        assert out_of_turn == (5.0, 7.0)
    else:
        assert out_of_turn == (10.0, 7.0), "the third graph did not reuse the memory that the second had freed"
    assert replay(first, *later) == (5.0, 7.0)


@pytest.mark.races("two graphs of one pool are replayed at once, to see what the pool does not order")
@apis
@SHARING
@pytest.mark.covers(f"{ROW}test_graph_concurrent_replay")
def test_graph_pool_two_graphs_replayed_at_once(api: Api, sharing: str, device: torch.device) -> None:
    """Graphs with separate pools may run concurrently on two streams.

    In one pool their temporaries share memory, so concurrent replays are observed to give wrong results, and replays in
    capture order are correct.
    """
    elements = 1 << 20
    pools, stream = Pools(sharing, device), torch.Stream(device)
    a = torch.ones(elements, dtype=torch.int64, device=device)
    outputs = [torch.zeros(elements, dtype=torch.int64, device=device) for _ in range(2)]

    def chain(number: int) -> None:
        x = a.clone()
        for _ in range(5):
            x = with_temporaries(x, number + 1)
        outputs[number].copy_(x)

    first = captured(api, device, lambda: chain(0), pool=pools.first(), stream=stream, rehearse=False)
    second = captured(api, device, lambda: chain(1), pool=pools.later(first), stream=stream, rehearse=False)
    streams = [torch.Stream(device) for _ in range(2)]
    calibrate(device)

    def right() -> bool:
        torch.accelerator.synchronize(device)
        return bool((outputs[0] == 94).all() and (outputs[1] == 156).all())

    def at_once() -> bool:
        for output in outputs:
            output.zero_()
        torch.accelerator.synchronize(device)
        sleep_on(streams[0], 20)
        streams[1].wait_stream(streams[0])
        for one, graph in zip(streams, (first, second), strict=True):
            with one:
                graph.replay()
        return right()

    if sharing == "none":
        assert all(at_once() for _ in range(5))
    elif device.type == "cuda":
        assert ever(lambda: not at_once()), "two graphs in one pool never affected each other"
    for graph in (first, second):
        graph.replay()
    assert right()


@apis
def test_graph_pool_sharing_needs_less_memory(api: Api, device: torch.device) -> None:
    """Graphs captured in sequence in one pool hold the memory of one graph, if their temporaries are freed."""
    elements = 1 << 20
    a, out = torch.ones(elements, device=device), torch.zeros(elements, device=device)
    held = {}

    def work() -> None:
        out.copy_(with_temporaries(a, 1))

    for shared in (False, True):
        torch.accelerator.empty_cache()
        stream = torch.Stream(device)
        before = torch.accelerator.memory_reserved(device)
        graphs: list[Any] = []
        for _ in range(4):
            pool = graphs[0].pool() if shared and graphs else None
            graphs.append(captured(api, device, work, pool=pool, stream=stream, rehearse=False))
        held[shared] = torch.accelerator.memory_reserved(device) - before
        for graph in graphs:
            out.zero_()
            graph.replay()
            assert (out == 4).all()
        del graphs, graph
    assert 0 < held[True] <= held[False] / 2


@apis
def test_graph_pool_outlives_the_graph_that_made_it(api: Api, device: torch.device) -> None:
    """A pool lives until the last of its graphs is deleted.

    After the first graph is deleted, the second replays with its memory intact.
    """
    stream = torch.Stream(device)
    source = torch.arange(1 << 12, device=device)
    made: list[torch.Tensor] = []
    first = captured(api, device, lambda: made.append(source + 1), stream=stream, rehearse=False)
    second = captured(api, device, lambda: made.append(source * 3), pool=first.pool(), stream=stream, rehearse=False)
    first.reset()
    del first, made[0]
    others = [torch.full((1 << 12,), -1, device=device) for _ in range(50)]
    second.replay()
    torch.accelerator.synchronize(device)
    assert torch.equal(made[0].cpu(), torch.arange(1 << 12) * 3)
    assert all((other == -1).all() for other in others)
