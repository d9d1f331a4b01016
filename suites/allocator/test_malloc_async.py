"""The `cudaMallocAsync` backend, selected at process start: the same contracts, implemented by the driver."""

from __future__ import annotations

import pytest
import torch

from .answers import ask

pytestmark = [pytest.mark.requires(device="cuda", cuda_malloc_async=True), pytest.mark.timeout(300)]

CONF = "backend:cudaMallocAsync"


@pytest.mark.covers("test_cuda::TestCudaAllocator::test_allocator_backend")
@pytest.mark.parametrize(
    ("conf", "name"), [("", "native"), ("backend:native", "native"), (CONF, "cudaMallocAsync")], ids=str
)
def test_get_allocator_backend_names_the_chosen_back_end(device: torch.device, conf: str, name: str) -> None:
    """`get_allocator_backend` returns the backend requested at process start, before and after the first allocation."""
    script = """
before = torch.cuda.get_allocator_backend()
x = new(1000)
tell([before, torch.cuda.get_allocator_backend()])
"""
    assert ask(script, device, conf, interpreter=True) == [name, name]


def test_cudamallocasync_memory_allocated_follows_tensors(device: torch.device) -> None:
    """Allocated bytes grow by at least a tensor's size while it lives, and then return to the previous value.

    The peak is kept until it is reset, and reserved bytes are never fewer than allocated ones.
    """
    script = """
torch.cuda.synchronize()
before = counter("allocated_bytes")
x = new(30 * MIB)
during, reserved = counter("allocated_bytes"), counter("reserved_bytes")
del x
after, peak = counter("allocated_bytes"), counter("allocated_bytes", "peak")
torch.cuda.reset_peak_memory_stats()
tell([during - before, reserved >= during, after - before, peak >= during, counter("allocated_bytes", "peak") - after])
"""
    grown, covered, left, kept, reset = ask(script, device, CONF, interpreter=True)

    assert grown >= 30 << 20
    assert covered
    assert left == 0
    assert kept
    assert reset == 0


def test_cudamallocasync_live_tensors_never_share_memory(device: torch.device) -> None:
    """Over requests and frees on three streams, no two live tensors overlap, and each keeps its value."""
    script = """
import random
draw = random.Random(7)
streams = [torch.cuda.Stream() for _ in range(3)]
live = []
wrong = 0
for step in range(1500):
    if draw.random() < 0.55 or not live:
        stream = draw.choice(streams)
        with torch.cuda.stream(stream):
            x = torch.full((int(2 ** draw.uniform(0, 20)),), step % 251, dtype=torch.uint8, device=DEVICE)
        live.append((x, step % 251, stream))
        spans = sorted((each.data_ptr(), each.data_ptr() + each.nbytes) for each, _, _ in live)
        wrong += any(left[1] > right[0] for left, right in zip(spans, spans[1:]))
    else:
        x, value, stream = live.pop(draw.randrange(len(live)))
        with torch.cuda.stream(stream):
            wrong += not bool((x.cpu() == value).all())
        del x
tell(wrong)
"""
    assert ask(script, device, CONF, interpreter=True) == 0


def test_cudamallocasync_outofmemoryerror_leaves_live_tensors_whole(device: torch.device) -> None:
    """A request that does not fit raises OutOfMemoryError; live tensors are intact, and smaller requests succeed."""
    script = """
x = torch.arange(1000, device=DEVICE)
error = failure(lambda: new(1 << 46))
tell([error.partition(":")[0], x.sum().item(), failure(lambda: new(MIB))])
"""
    assert ask(script, device, CONF, interpreter=True) == ["OutOfMemoryError", 499_500, ""]


def test_cudamallocasync_memory_fraction_holds(device: torch.device) -> None:
    """A request beyond the memory fraction raises, although the device has room."""
    script = """
total = torch.cuda.get_device_properties(0).total_memory
torch.cuda.set_per_process_memory_fraction(300 * MIB / total, 0)
tell([failure(lambda: new(100 * MIB)), failure(lambda: new(400 * MIB)).partition(":")[0]])
"""
    assert ask(script, device, CONF, interpreter=True) == ["", "OutOfMemoryError"]


def test_cudamallocasync_record_stream_waits_for_the_other_stream(device: torch.device) -> None:
    """After `record_stream`, a dropped tensor that another stream reads late is not overwritten before that read."""
    script = """
side = torch.cuda.Stream()
wrong = 0
for value in range(5):
    x = torch.full((MIB,), value, dtype=torch.uint8, device=DEVICE)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        y = x.clone()
    x.record_stream(side)
    del x
    others = [torch.full((MIB,), 99, dtype=torch.uint8, device=DEVICE) for _ in range(4)]
    torch.cuda.synchronize()
    wrong += not bool((y == value).all())
tell(wrong)
"""
    assert ask(script, device, CONF, interpreter=True) == 0


def test_cudamallocasync_cuda_graph_replays_right_results(device: torch.device) -> None:
    """Work that allocates is captured, and its replays give the correct results."""
    script = """
x = torch.ones(1000, device=DEVICE)
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    y = (x * 2) + 1
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = (x * 2) + 1
results = []
for value in (1, 5, 7):
    x.fill_(value)
    graph.replay()
    results.append(y.sum().item())
tell(results)
"""
    assert ask(script, device, CONF, interpreter=True) == [3000.0, 11000.0, 15000.0]
