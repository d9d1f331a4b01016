"""Out of memory on CUDA: observers, recorded history, captures, and the related settings."""

from __future__ import annotations

import gc

import pytest
import torch

from .answers import ask
from .limits import MIB, block, settle

pytestmark = [pytest.mark.requires(device="cuda"), pytest.mark.timeout(300)]

#: For the observer, which cannot be removed. Each script therefore has its own process.
OBSERVED = """
calls = []
torch._C._cuda_attach_out_of_memory_observer(lambda *told: calls.append(told))
before = failure(lambda: new(100 * MIB))
seen_when_caught = None
try:
    new(1 << 46)
except torch.OutOfMemoryError:
    seen_when_caught = len(calls)
_, total = torch.cuda.mem_get_info(0)
tell({"before": before, "seen": seen_when_caught, "calls": calls, "total": total})
"""


@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_notifies_oom")
@pytest.mark.own_process
def test_attach_out_of_memory_observer_is_called_before_the_error(device: torch.device) -> None:
    """An out-of-memory observer is called once per failed request and no other, before the exception is caught.

    Its arguments are the device, at least the bytes requested, the bytes allowed (all of the device without a limit),
    and the free bytes, which are no more than those.
    """
    reported = ask(OBSERVED, device)

    assert reported["before"] == ""
    assert reported["seen"] == 1
    ((index, asked, allowed, free),) = reported["calls"]
    assert index == 0
    assert asked >= 1 << 46
    assert 0 < free <= reported["total"]
    assert allowed == reported["total"]


@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_raises_oom")
@pytest.mark.parametrize("conf", ["", "max_split_size_mb:200"], ids=["default", "max_split_size"])
def test_record_memory_history_has_oom_with_and_without_max_split_size(device: torch.device, conf: str) -> None:
    """With and without `max_split_size_mb`, a request beyond the device raises OutOfMemoryError.

    Recorded history has it as an "oom" entry with the free bytes, after the earlier allocations.
    """
    script = """
torch.cuda.memory._record_memory_history("all")
kept = new(10 * MIB)
error = failure(lambda: new(1 << 46))
events = torch.cuda.memory._snapshot()["device_traces"][0]
_, total = torch.cuda.mem_get_info(0)
tell({"error": error, "actions": [event["action"] for event in events], "total": total,
      "free": [event["device_free"] for event in events if event["action"] == "oom"]})
"""
    reported = ask(script, device, conf, interpreter=True)  # its finalization ends torch's addr2line

    assert reported["error"].startswith("OutOfMemoryError: ")
    assert reported["actions"].count("oom") == 1
    assert reported["actions"].index("alloc") < reported["actions"].index("oom")
    assert 0 < reported["free"][0] <= reported["total"]


@pytest.mark.covers("test_cuda::TestCuda::test_graph_capture_oom")
def test_outofmemoryerror_in_a_capture_ends_the_capture(device: torch.device) -> None:
    """A request that fails during graph capture raises OutOfMemoryError and ends the capture.

    The capture's memory is freed with the graph, and the process can still compute and capture.
    """
    settle(device)
    before = torch.accelerator.memory_reserved(device)

    def fail() -> None:
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            some = torch.zeros(MIB, device=device)
            some.add_(block(device, 1 << 46)[0])

    with pytest.raises(torch.OutOfMemoryError):
        fail()
    assert not torch.cuda.is_current_stream_capturing()
    gc.collect()
    settle(device)

    assert torch.accelerator.memory_reserved(device) == before
    x = torch.zeros(1000, device=device)
    again = torch.cuda.CUDAGraph()
    with torch.cuda.graph(again):
        x.add_(1)
    again.replay()
    assert bool((x == 1).all())


@pytest.mark.requires(torch=">=2.12")
@pytest.mark.covers("test_cuda::TestCudaAllocator::test_throw_on_cudamalloc_oom")
@pytest.mark.parametrize("setting", ["True", "False"])
@pytest.mark.own_process
def test_throw_on_cudamalloc_oom_raises_the_same_outofmemoryerror(device: torch.device, setting: str) -> None:
    """With and without `throw_on_cudamalloc_oom`, a request that does not fit raises OutOfMemoryError.

    Live tensors are intact, and later requests that fit succeed.
    """
    script = """
kept = torch.arange(1000, device=DEVICE)
error = failure(lambda: new(torch.cuda.get_device_properties(0).total_memory + 2 * MIB))
fits = failure(lambda: new(20 * MIB))
tell({"error": error, "fits": fits, "kept": bool((kept.cpu() == torch.arange(1000)).all())})
"""
    reported = ask(script, device, f"throw_on_cudamalloc_oom:{setting}")

    assert reported["error"].startswith("OutOfMemoryError: ")
    assert reported["fits"] == ""
    assert reported["kept"]
