"""A profile's memory as a page: the same viewer, fed from what the profiler saw instead of what the allocator did."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from . import _torch_private as private
from . import pages
from .builder import Snapshot

pytestmark = pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_memory_profiler_viz")

FILE = "snapshot.pickle"


def multiplied_and_added(x: torch.Tensor) -> torch.Tensor:
    return x * x + x * x


def profiled(device: torch.device) -> tuple[torch.profiler.profile, torch.Tensor]:
    """A profile of a tensor made, two that go again, and one that stays."""
    settings: dict[str, Any] = {"with_stack": True, "profile_memory": True, "record_shapes": True}
    with torch.profiler.profile(**settings) as profile:
        x = torch.rand(128, 128, device=device)
        result = multiplied_and_added(x)
        result.sum()  # what no operator ever took may be no tensor, for all that the profiler knows
    return profile, result


def shown(profile: torch.profiler.profile) -> Snapshot:
    page = pages.plot(private.profile_plot(profile))
    assert (page.kind, list(page.files)) == ("Active Memory Timeline", [FILE])
    snapshot: Snapshot = page.files[FILE]
    return snapshot


def on(device: torch.device) -> int:
    """The place of a device among the traces: GPUs by number, what is not a GPU behind them all."""
    return device.index if device.type == "cuda" and device.index is not None else torch.cuda.device_count()


def test_profile_plot_has_a_trace_of_each_device(device: torch.device) -> None:
    """Contract: the page is whole, and its data have a trace for each GPU and one for the host."""
    profile, _ = profiled(device)

    assert len(shown(profile)["device_traces"]) == torch.cuda.device_count() + 1


def test_profile_plot_tells_stack_and_category_of_every_tensor(device: torch.device) -> None:
    """Contract: each allocation of the size of the work's tensors names a category, and the calls that led to it, this
    case's function among them. Where nothing tells one the category is "unknown"; a gradient's is "gradient"."""
    profile, _ = profiled(device)

    trace = shown(profile)["device_traces"][on(device)]
    made = [entry for entry in trace if entry["action"] == "alloc" and entry["size"] == 128 * 128 * 4]

    assert len(made) == 4
    assert all(entry["category"] for entry in made)
    inside = [entry for entry in made if any("multiplied_and_added" in each["name"] for each in entry["frames"])]
    assert len(inside) == 3
    assert all(any("test_profile_plot.py" in each["name"] for each in entry["frames"]) for entry in made)
    layer = torch.nn.Linear(16, 3, bias=False, device=device)
    with torch.profiler.profile(with_stack=True, profile_memory=True, record_shapes=True) as profile:
        layer(torch.ones(5, 16, device=device)).sum().backward()
    assert layer.weight.grad is not None
    place = layer.weight.grad.untyped_storage().data_ptr()
    made = [entry for entry in shown(profile)["device_traces"][on(device)] if entry["action"] == "alloc"]
    assert [entry["category"] for entry in made if entry["addr"] == place][-1] == "gradient"
    assert {"input", "activation"} <= {entry["category"] for entry in made}


def test_profile_plot_trace_leads_to_what_is_left(device: torch.device) -> None:
    """Contract: every free is of something allocated and not yet freed, requested and completed in one go, and what is
    never freed is what the segments hold at the end, at the same addresses."""
    profile, result = profiled(device)
    snapshot = shown(profile)

    live: dict[int, int] = {}
    requested: dict[str, Any] | None = None
    for entry in snapshot["device_traces"][on(device)]:
        if entry["action"] == "alloc":
            assert entry["addr"] not in live
            live[entry["addr"]] = entry["size"]
        elif entry["action"] == "free_requested":
            assert live.pop(entry["addr"]) == entry["size"]
            assert requested is None
            requested = entry
        else:
            assert entry["action"] == "free_completed"
            assert requested is not None
            assert entry["addr"] == requested["addr"]
            requested = None
    assert requested is None
    blocks = {}
    for segment in snapshot["segments"]:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated" and segment["device"] == on(device):
                blocks[address] = block["size"]
            address += block["size"]
    assert live.items() <= blocks.items()
    assert blocks[result.untyped_storage().data_ptr()] == 128 * 128 * 4


def test_profile_plot_refuses_a_profile_without_what_it_takes() -> None:
    """Contract: a profile that did not record memory, shapes and stacks has no such page: an error that says what is
    missing."""
    needed = ("profile_memory", "record_shapes", "with_stack")
    for missing in (*((each,) for each in needed), needed[1:], needed):
        options: dict[str, Any] = {each: each not in missing for each in needed}
        with torch.profiler.profile(**options) as profile:
            torch.rand(4)

        with pytest.raises(ValueError, match=r"memory") as refused:
            private.profile_plot(profile)
        assert [each for each in needed if f"{each}=" in str(refused.value)] == list(missing)
