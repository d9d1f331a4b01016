"""Memory freed in a capture before other streams have read it, and its reuse within the graph.

With `graph_capture_record_stream_reuse`, the memory may be reused once the reading streams have been joined, which the
capture detects. Without the setting, it is kept until the capture ends. The setting is per process, so each case starts
one.
"""

from __future__ import annotations

import pytest
import torch

from .answers import ask

pytestmark = [pytest.mark.requires(device="cuda", cuda_graphs=True), pytest.mark.timeout(300)]

ON, OFF = "graph_capture_record_stream_reuse:True", "graph_capture_record_stream_reuse:False"

#: `read` makes streams read a tensor that is then dropped; `join` makes the capture's stream wait for them.
PARTS = """
N = 4 * MIB
sums = None
def read(x, streams, sums):
    for place, stream in enumerate(streams):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            sums[place] = x.sum(dtype=torch.int64)
        x.record_stream(stream)
def join(streams):
    for stream in streams:
        torch.cuda.current_stream().wait_stream(stream)
def made(value):
    return torch.full((N,), value, dtype=torch.uint8, device=DEVICE)
warm = torch.zeros(N, dtype=torch.uint8, device=DEVICE).sum(dtype=torch.int64)
torch.cuda.synchronize()
"""


@pytest.mark.covers("test_cuda::TestMemPool::test_graph_capture_reclaim_2_streams")
@pytest.mark.covers("test_cuda::TestMemPool::test_graph_capture_reclaim_4_streams")
@pytest.mark.parametrize("conf", [ON, OFF], ids=["reused", "kept"])
@pytest.mark.parametrize("readers", [1, 3], ids=["two_streams", "four_streams"])
@pytest.mark.own_process
def test_graph_capture_record_stream_reuse_waits_until_readers_joined(
    device: torch.device, readers: int, conf: str
) -> None:
    """A block that other streams read is not reused before they are joined, and afterwards only with the setting.

    The graph's results are correct in each replay.
    """
    script = f"""{PARTS}
streams = [torch.cuda.Stream() for _ in range({readers})]
sums = torch.zeros({readers}, dtype=torch.int64, device=DEVICE)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    x = made(3)
    address = x.data_ptr()
    read(x, streams, sums)
    del x
    before = made(5)
    join(streams)
    after = made(7)
results = []
for _ in range(3):
    sums.zero_()
    graph.replay()
    torch.cuda.synchronize()
    results.append(sums.tolist() == [3 * N] * {readers} and bool((before == 5).all()) and bool((after == 7).all()))
tell([before.data_ptr() == address, after.data_ptr() == address, results])
"""
    assert ask(script, device, conf) == [False, conf == ON, [True] * 3]


@pytest.mark.covers("test_cuda::TestMemPool::test_graph_capture_reclaim_shared_pool")
@pytest.mark.own_process
def test_graph_capture_record_stream_reuse_in_a_shared_pool(device: torch.device) -> None:
    """With the setting, two graphs that share a pool give correct results when replayed in capture order."""
    script = f"""{PARTS}
streams = [torch.cuda.Stream()]
pool = torch.cuda.graph_pool_handle()
graphs, all_sums = [], []
for value in (3, 4):
    sums = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        x = made(value)
        read(x, streams, sums)
        del x
        join(streams)
        y = made(value + 10)
        sums.add_(y.sum(dtype=torch.int64))
        del y
    graphs.append(graph)
    all_sums.append(sums)
results = []
for _ in range(3):
    for graph in graphs:
        graph.replay()
    torch.cuda.synchronize()
    results.append([sums.item() // N for sums in all_sums])
tell(results)
"""
    assert ask(script, device, ON) == [[16, 18]] * 3


@pytest.mark.covers("test_cuda::TestMemPool::test_graph_capture_pre_capture_stream_use")
@pytest.mark.own_process
def test_record_stream_before_a_graph_capture_applies_in_it(device: torch.device) -> None:
    """A block recorded on another stream before the capture and dropped in it is not reused in the capture."""
    script = f"""{PARTS}
side = torch.cuda.Stream()
sums = torch.zeros(1, dtype=torch.int64, device=DEVICE)
pool = torch.cuda.MemPool()
graph = torch.cuda.CUDAGraph()
with torch.cuda.use_mem_pool(pool):
    x = made(3)
torch.cuda.synchronize()
with torch.cuda.stream(side):
    torch.cuda._sleep(50_000_000)
    sums[0] = x.sum(dtype=torch.int64)
x.record_stream(side)
address = x.data_ptr()
with torch.cuda.graph(graph, pool=pool.id):
    del x
    y = made(9)
graph.replay()
torch.cuda.synchronize()
tell([y.data_ptr() == address, sums.item() // N, bool((y == 9).all())])
"""
    assert ask(script, device, ON) == [False, 3, True]
