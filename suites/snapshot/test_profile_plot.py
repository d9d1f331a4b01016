"""A profile's memory as a page: the same viewer, with data from the profiler instead of the allocator."""

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
    """Return a profile in which one tensor is created, two are temporary, and one is returned."""
    settings: dict[str, Any] = {"with_stack": True, "profile_memory": True, "record_shapes": True}
    with torch.profiler.profile(**settings) as profile:
        x = torch.rand(128, 128, device=device)
        result = multiplied_and_added(x)
        result.sum()  # the profiler recognizes only memory that an operator used as a tensor
    return profile, result


def shown(profile: torch.profiler.profile) -> Snapshot:
    page = pages.plot(private.profile_plot(profile))
    assert (page.kind, list(page.files)) == ("Active Memory Timeline", [FILE])
    snapshot: Snapshot = page.files[FILE]
    return snapshot


def live_blocks(snapshot: Snapshot, device: torch.device) -> dict[int, int]:
    """Return the bytes of each block that is in use on the device, by its address."""
    blocks = {}
    for segment in snapshot["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated" and segment["device"] == on(device):
                blocks[address] = block["size"]
            address += block["size"]
    return blocks


def on(device: torch.device) -> int:
    """Return the index of a device's trace: GPUs by number, the host after all GPUs."""
    return device.index if device.type == "cuda" and device.index is not None else torch.cuda.device_count()


def test_profile_plot_has_a_trace_of_each_device(device: torch.device) -> None:
    """The page is complete and has one trace per GPU and one for the host."""
    profile, _ = profiled(device)

    assert len(shown(profile)["device_traces"]) == torch.cuda.device_count() + 1


def test_profile_plot_has_stack_and_category_of_every_tensor(device: torch.device) -> None:
    """Each allocation of the workload's size has a category and a stack that includes this case's function.

    The stack only has calls of Python, which have no lines. The category is "unknown" if nothing determines it, and
    "gradient" for a gradient.
    """
    profile, _ = profiled(device)

    trace = shown(profile)["device_traces"][on(device)]
    made = [entry for entry in trace if entry["action"] == "alloc" and entry["size"] == 128 * 128 * 4]

    assert len(made) == 4
    assert all(entry["category"] for entry in made)
    inside = [entry for entry in made if any("multiplied_and_added" in each["name"] for each in entry["frames"])]
    assert len(inside) == 3
    assert all(any("test_profile_plot.py" in each["name"] for each in entry["frames"]) for entry in made)
    frames = [each for entry in made for each in entry["frames"]]
    assert not [each for each in frames if each["name"].startswith("aten::")]
    assert {each["line"] for each in frames} == {0}
    layer = torch.nn.Linear(16, 3, bias=False, device=device)
    with torch.profiler.profile(with_stack=True, profile_memory=True, record_shapes=True) as profile:
        layer(torch.ones(5, 16, device=device)).sum().backward()
    assert layer.weight.grad is not None
    place = layer.weight.grad.untyped_storage().data_ptr()
    made = [entry for entry in shown(profile)["device_traces"][on(device)] if entry["action"] == "alloc"]
    assert [entry["category"] for entry in made if entry["addr"] == place][-1] == "gradient"
    assert {"input", "activation"} <= {entry["category"] for entry in made}


def made_and_kept(kept: list[torch.Tensor], device: torch.device) -> None:
    kept.append(torch.rand(128, 64, device=device))
    kept[0].sum()


def dropped(kept: list[torch.Tensor]) -> None:
    kept.clear()


def test_profile_plot_has_the_stack_of_the_allocation_and_not_of_the_free(device: torch.device) -> None:
    """A tensor that one function creates and another one drops has the stack of the first, also where it is freed."""
    kept: list[torch.Tensor] = []
    with torch.profiler.profile(with_stack=True, profile_memory=True, record_shapes=True) as profile:
        made_and_kept(kept, device)
        dropped(kept)

    entries = [entry for entry in shown(profile)["device_traces"][on(device)] if entry["size"] == 128 * 64 * 4]
    assert [entry["action"] for entry in entries] == ["alloc", "free_requested", "free_completed"]
    for entry in entries:
        names = [each["name"] for each in entry["frames"]]
        assert any("made_and_kept" in name for name in names), names
        assert not any("dropped" in name for name in names)


def test_profile_plot_has_tensors_from_before_as_blocks_only(device: torch.device) -> None:
    """A tensor that is older than the profile and used in it is a block, without an allocation in the trace."""
    old = torch.rand(96, 97, device=device)
    with torch.profiler.profile(with_stack=True, profile_memory=True, record_shapes=True) as profile:
        made = old * 2
        made.sum()

    snapshot = shown(profile)
    allocated = {entry["addr"] for entry in snapshot["device_traces"][on(device)] if entry["action"] == "alloc"}
    blocks = live_blocks(snapshot, device)
    for tensor in (old, made):
        assert blocks[tensor.untyped_storage().data_ptr()] >= 96 * 97 * 4
    assert made.untyped_storage().data_ptr() in allocated
    assert old.untyped_storage().data_ptr() not in allocated


def test_profile_plot_trace_replays_to_the_live_blocks(device: torch.device) -> None:
    """Every free is of a live allocation, and is requested and completed in succession.

    The remaining allocations equal the blocks of the segments, at the same addresses.
    """
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
    for segment in snapshot["segments"]:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
        assert all(block["size"] > 0 for block in segment["blocks"])
    blocks = live_blocks(snapshot, device)
    assert live.items() <= blocks.items()
    assert blocks[result.untyped_storage().data_ptr()] == 128 * 128 * 4


def test_profile_plot_names_missing_profile_options() -> None:
    """A profile without memory, shapes or stacks raises and names what is missing."""
    needed = ("profile_memory", "record_shapes", "with_stack")
    for missing in (*((each,) for each in needed), needed[1:], needed):
        options: dict[str, Any] = {each: each not in missing for each in needed}
        with torch.profiler.profile(**options) as profile:
            torch.rand(4)

        with pytest.raises(ValueError, match=r"memory") as refused:
            private.profile_plot(profile)
        assert [each for each in needed if f"{each}=" in str(refused.value)] == list(missing)
