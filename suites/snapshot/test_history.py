"""The recorded history of GPU allocations: events, their stacks, and its length.

The cases look only at their own device and at the addresses of their own tensors, because libraries allocate too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from suites.cuda_warnings import of_deprecated_scripts, of_exact_products

from . import _torch_private as private
from . import pages, plain, scripts
from .reading import LIVE, actions, at, block_at, faults, is_led_to_by, live_after

pytestmark = pytest.mark.requires(device="cuda", not_={"rocm": True})

MIB = 1 << 20

#: Sizes that no library is likely to allocate.
ROWS, COLUMNS = 311, 411
BYTES = ROWS * COLUMNS * 4


def trace_of(snapshot: dict[str, Any], device: torch.device) -> list[dict[str, Any]]:
    """Return the recorded trace of a device."""
    assert device.index is not None
    trace: list[dict[str, Any]] = snapshot["device_traces"][device.index]
    return trace


def address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def allocating(device: torch.device, size: int = BYTES) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=device)


def freeing(tensors: list[torch.Tensor]) -> None:
    tensors.clear()


def emptying() -> None:
    torch.cuda.empty_cache()


def test_record_memory_history_not_called_keeps_no_history(device: torch.device) -> None:
    """Control: without recording, a snapshot has blocks, but no traces and no stacks."""
    tensor = allocating(device)

    snapshot = private.snapshot()

    block = block_at(snapshot["segments"], address(tensor))
    assert block is not None
    assert block.frames == []
    assert all(trace == [] for trace in snapshot["device_traces"])


@pytest.mark.covers("test_cuda::TestCudaAllocator::test_memory_snapshot")
def test_record_memory_history_has_the_events_of_a_block_in_order(device: torch.device) -> None:
    """A block's life is recorded in order.

    The events are segment allocation, allocation, free request, completed free, and segment release. The entries have
    size, address and stream, and their times do not decrease.
    """
    stream = torch.cuda.Stream(device)
    with private.recorded(stacks="python"), torch.cuda.stream(stream):
        tensors = [allocating(device, 30 * MIB)]
        place = address(tensors[0])
        freeing(tensors)
        emptying()
        trace = trace_of(private.snapshot(), device)

    about = at(trace, place)
    assert [each for each in actions(about) if not each.startswith("segment")] == [
        "alloc", "free_requested", "free_completed",
    ]  # fmt: skip
    assert {entry["size"] for entry in about if not entry["action"].startswith("segment")} == {30 * MIB}
    assert {entry["stream"] for entry in about} == {stream.cuda_stream}
    assert stream.cuda_stream != 0
    assert {entry["size"] for entry in about if entry["action"] in ("segment_alloc", "segment_free")} <= {30 * MIB}
    assert actions(about)[0] in ("segment_alloc", "segment_map")
    assert actions(about)[-1] in ("segment_free", "segment_unmap")
    times = [entry["time_us"] for entry in trace]
    assert times == sorted(times)


def test_record_memory_history_replays_to_the_blocks(device: torch.device) -> None:
    """Replaying the trace allocates no address twice, frees only allocated blocks, and ends with the live blocks.

    Every live tensor is among them with its requested bytes.
    """
    with private.recorded(stacks="python"):
        live: dict[int, torch.Tensor] = {}
        for step in range(200):
            if step % 3 == 2:
                live.pop(sorted(live)[step * 7 % len(live)])
            else:
                live[step] = allocating(device, (step * 7919 * 131) % (3 * MIB) + 1)
        snapshot = private.snapshot()

    left = live_after(trace_of(snapshot, device))
    assert {address(tensor): tensor.nbytes for tensor in live.values()}.items() <= left.items()
    assert faults(snapshot["segments"]) == []
    for place, size in left.items():
        block = block_at(snapshot["segments"], place)
        assert block is not None
        assert (block.state, block.requested) == (LIVE, size)


#: The stacks that each setting keeps: of live blocks, allocations, frees.
CONTEXTS: dict[str | None, tuple[bool, bool, bool]] = {
    None: (False, False, False),
    "state": (True, False, False),
    "alloc": (True, True, False),
    "all": (True, True, True),
}


@pytest.mark.covers(
    "test_cuda::TestCudaMallocAsync::test_memory_plots",
    "test_cuda::TestCudaMallocAsync::test_memory_plots_free_stack",
    "test_cuda::TestCudaMallocAsync::test_memory_plots_history_context",
    "test_cuda::TestCudaAllocator::test_memory_snapshot",
)
@pytest.mark.parametrize(("context", "kept"), CONTEXTS.items(), ids=lambda value: str(value).replace(" ", ""))
def test_record_memory_history_context_decides_which_stacks_are_kept(
    device: torch.device, context: str | None, kept: tuple[bool, bool, bool]
) -> None:
    """Events are recorded in every context.

    Stacks are kept for live blocks from "state" on, and for allocations from "alloc" on. With "all", frees have the
    stack of the freeing function; below that, at most that of the allocating function.
    """
    with private.recorded(context=context, stacks="python"):
        tensors = [allocating(device)]
        place = address(tensors[0])
        block = block_at(private.snapshot()["segments"], place)
        freeing(tensors)
        about = at(trace_of(private.snapshot(), device), place)

    assert block is not None
    alloc, requested, completed = (entry for entry in about if not entry["action"].startswith("segment"))
    freed = requested.get("frames", [])
    assert (bool(block.frames), bool(alloc.get("frames", []))) == kept[:2]
    assert is_led_to_by(block.frames, "allocating") == kept[0]
    assert is_led_to_by(alloc.get("frames", []), "allocating") == kept[1]
    assert is_led_to_by(freed, "freeing") == kept[2]
    assert not (kept[2] and is_led_to_by(freed, "allocating"))
    assert completed["action"] == "free_completed"


@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_memory_plots_free_segment_stack")
@pytest.mark.parametrize("context", ["state", "alloc", "all"])
def test_record_memory_history_segment_free_has_a_stack_with_all(device: torch.device, context: str) -> None:
    """The release of a segment by `empty_cache` is recorded in every context, with its stack in "all"."""
    with private.recorded(context=context, stacks="python"):
        tensors = [allocating(device, 30 * MIB)]
        place = address(tensors[0])
        freeing(tensors)
        emptying()
        about = at(trace_of(private.snapshot(), device), place)

    (last,) = [entry for entry in about if entry["action"] in ("segment_free", "segment_unmap")]
    assert is_led_to_by(last.get("frames", []), "emptying") == (context == "all")
    assert is_led_to_by(last.get("frames", []), "empty_cache") == (context == "all")


@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_memory_plots_history_context")
def test_record_memory_history_context_can_change(device: torch.device) -> None:
    """Changing the context during recording keeps earlier entries and applies to later ones."""

    def first() -> torch.Tensor:
        return allocating(device)

    def second() -> torch.Tensor:
        return allocating(device)

    def third() -> torch.Tensor:
        return allocating(device)

    with private.recorded(context="all", stacks="python"):
        one = first()
        private.record(context=None)
        two = second()
        private.record(context="all", stacks="python")
        three = third()
        trace = trace_of(private.snapshot(), device)

    for tensor, function, is_kept in ((one, "first", True), (two, "second", False), (three, "third", True)):
        (alloc,) = [entry for entry in at(trace, address(tensor)) if entry["action"] == "alloc"]
        assert is_led_to_by(alloc.get("frames", []), function) == is_kept
        assert bool(alloc.get("frames", [])) == is_kept


@pytest.mark.requires(platform="linux-x86_64")
@pytest.mark.covers(
    "test_cuda::TestCudaMallocAsync::test_memory_snapshot_with_cpp", "test_cuda::TestCudaMallocAsync::test_memory_plots"
)
@pytest.mark.parametrize("stacks", ["python", "all"])
@pytest.mark.timeout(600)
@pytest.mark.keeps("the symbolizer caches library symbols", host="64MiB")
def test_record_memory_history_stacks_all_keeps_calls_of_cpp(device: torch.device, stacks: str) -> None:
    """With `stacks="all"`, the operator is in the stack, closer to the allocation than the Python caller.

    With "python", the stack has no C++ frames.
    """
    with private.recorded(context="all", stacks=stacks):
        tensor = torch.rand(ROWS, COLUMNS, device=device)
        block = block_at(private.snapshot()["segments"], address(tensor))

    assert block is not None
    names = [frame["name"] for frame in block.frames]
    caller = names.index("test_record_memory_history_stacks_all_keeps_calls_of_cpp")
    operators = [place for place, name in enumerate(names) if "::rand" in name]
    assert bool(operators) == (stacks == "all")
    assert all(place < caller for place in operators)
    assert any("::" in name for name in names) == (stacks == "all")


@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_memory_snapshot_script")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*")
def test_record_memory_history_keeps_calls_of_torchscript(device: torch.device) -> None:
    """A TorchScript allocation is recorded with its function's name, before the Python caller."""
    compiled = torch.jit.script(scripts.filled_by_a_script)
    with private.recorded("state", stacks="python"):
        tensor = compiled(ROWS, COLUMNS, device)
        block = block_at(private.snapshot()["segments"], address(tensor))

    assert block is not None
    assert block.requested == BYTES
    names = [frame["name"] for frame in block.frames]
    assert names[0] == "filled_by_a_script"
    assert "test_record_memory_history_keeps_calls_of_torchscript" in names


@pytest.mark.requires(torch=">=2.12")
@pytest.mark.covers(
    "test_cuda::TestCudaAllocator::test_allocation_traceback",
    "test_cuda::TestCudaAllocator::test_allocation_traceback_no_recording",
)
def test_allocation_traceback_is_found_by_the_address_of_a_block(device: torch.device) -> None:
    """The stack of a live block is found by its start address, and equals the snapshot's.

    There is none for an inner address, an unrecorded or freed block, or an unknown address.
    """
    before = allocating(device)
    with private.recorded(context="all", stacks="python"):
        tensor = allocating(device)
        place = address(tensor)
        found, block = private.allocation_traceback(place), block_at(private.snapshot()["segments"], place)
        others = [private.allocation_traceback(each) for each in (place + 512, address(before), 8)]
        del tensor
        gone = private.allocation_traceback(place)

    assert found
    assert block is not None
    assert found == block.frames
    assert is_led_to_by(found, "allocating")
    assert [each or None for each in (*others, gone)] == [None] * 4


@pytest.mark.covers("test_cuda::TestCudaAllocator::test_memory_snapshot_forward_trace")
@pytest.mark.filterwarnings("ignore:Anomaly Detection:UserWarning")
def test_record_memory_history_names_the_forward_of_a_backward_allocation(device: torch.device) -> None:
    """In anomaly mode, an allocation in the backward pass has the calls of the forward that created the node."""
    x = torch.ones(ROWS, COLUMNS, device=device, requires_grad=True)

    def the_forward() -> torch.Tensor:
        return x.sin().sum()

    with torch.autograd.detect_anomaly(check_nan=False), private.recorded(context="all", stacks="python"):
        loss = the_forward()
        forward = len(trace_of(private.snapshot(), device))
        loss.backward()
        snapshot = private.snapshot()

    assert x.grad is not None
    place = address(x.grad)
    reported = [str(entry) for entry in trace_of(snapshot, device)[forward:] if entry["action"] == "alloc"]
    reported += [
        str(block) for segment in snapshot["segments"] for block in segment["blocks"] if block.get("address") == place
    ]
    assert any("the_forward" in each for each in reported)


# Limits and filters


def test_record_memory_history_max_entries_keeps_the_latest(device: torch.device) -> None:
    """With `max_entries`, the oldest entries are dropped, and the rest is in order."""
    with private.recorded(max_entries=10, stacks="python"):
        tensors = [allocating(device, 512 * (number + 1)) for number in range(25)]
        trace = trace_of(private.snapshot(), device)

    assert len(trace) == 10
    kept = [entry["size"] for entry in trace if entry["action"] == "alloc"]
    assert kept
    assert kept == [tensor.nbytes for tensor in tensors][-len(kept) :]


def test_record_memory_history_state_keeps_no_history(device: torch.device) -> None:
    """With the context "state", the stacks of live blocks are kept, and at most the last event."""
    with private.recorded("state", stacks="python"):
        tensors = [allocating(device) for _ in range(5)]
        snapshot = private.snapshot()

    for tensor in tensors:
        block = block_at(snapshot["segments"], address(tensor))
        assert block is not None
        assert is_led_to_by(block.frames, "allocating")
    assert len(trace_of(snapshot, device)) <= 1


def test_record_memory_history_is_dropped_at_its_end(device: torch.device) -> None:
    """After recording ends, no traces are left, and new allocations have no stack."""
    with private.recorded(stacks="python"):
        allocating(device)
        assert trace_of(private.snapshot(), device)
    tensor = allocating(device)

    snapshot = private.snapshot()

    assert all(trace == [] for trace in snapshot["device_traces"])
    block = block_at(snapshot["segments"], address(tensor))
    assert block is not None
    assert block.frames == []


@pytest.mark.parametrize("clear", [False, True])
def test_record_memory_history_clear_history_drops_entries(device: torch.device, clear: bool) -> None:
    """A restart with `clear_history` drops earlier entries; without it, they stay."""
    with private.recorded(stacks="python"):
        old = allocating(device)
        private.record(stacks="python", clear_history=clear)
        new = allocating(device)
        trace = trace_of(private.snapshot(), device)

    assert bool(at(trace, address(old))) != clear
    assert "alloc" in actions(at(trace, address(new)))


SKIPPED: dict[str, list[str] | None] = {
    "nothing": None,
    "an_empty_list": [],
    "alloc": ["alloc"],
    "frees": ["free_requested", "free_completed"],
    "free_requested": ["free_requested"],
    "free_completed": ["free_completed"],
    "segment_free": ["segment_free"],
    "segments": ["segment_alloc", "segment_free", "segment_map", "segment_unmap"],
}


@pytest.mark.covers("test_cuda::TestCudaAllocator::test_memory_snapshot_skip_actions")
@pytest.mark.parametrize("skipped", SKIPPED.values(), ids=SKIPPED.keys())
def test_record_memory_history_skip_actions(device: torch.device, skipped: list[str] | None) -> None:
    """Skipped actions are not in the trace, and all others are."""
    documented = [each for each in skipped or [] if each not in ("segment_map", "segment_unmap")]
    with private.recorded(stacks="python", skip_actions=None if skipped is None else documented):
        tensors = [allocating(device, 30 * MIB)]
        freeing(tensors)
        emptying()
        found = set(actions(trace_of(private.snapshot(), device)))

    for action in ("alloc", "free_requested", "free_completed"):
        assert (action in found) == (action not in documented)
    assert bool(found & {"segment_alloc", "segment_map"}) == ("segment_alloc" not in documented)
    assert bool(found & {"segment_free", "segment_unmap"}) == ("segment_free" not in documented)


def test_record_memory_history_skip_actions_refuses_an_unknown_action() -> None:
    """An unknown action to skip raises with its name, and after recording is stopped, nothing remains."""
    with pytest.raises(RuntimeError, match=r"action: hesitate"), private.recorded(skip_actions=["alloc", "hesitate"]):
        pass

    assert all(trace == [] for trace in private.snapshot()["device_traces"])


@pytest.mark.covers("test_cuda::TestCudaAllocator::test_memory_plots_metadata")
def test_set_memory_metadata_is_on_each_event(device: torch.device) -> None:
    """Metadata is attached to each later event until it is changed or cleared, and can be read."""
    assert private.metadata() == ""
    with private.recorded(stacks="python"):
        try:
            private.set_metadata("step 1")
            assert private.metadata() == "step 1"
            one = [allocating(device), allocating(device)]
            private.set_metadata("größe: 2")
            two = allocating(device)
            places = [address(tensor) for tensor in (*one, two)]
            freeing(one)
        finally:
            private.set_metadata("")
        assert private.metadata() == ""
        trace = trace_of(private.snapshot(), device)
        three = allocating(device)
        last = at(trace_of(private.snapshot(), device), address(three))[-1]

    def reported(place: int) -> list[tuple[str, str]]:
        return [
            (entry["action"], entry["user_metadata"])
            for entry in at(trace, place)
            if not entry["action"].startswith("segment")
        ]

    freed = [(action, "größe: 2") for action in ("free_requested", "free_completed")]
    assert [reported(place) for place in places] == [
        [("alloc", "step 1"), *freed], [("alloc", "step 1"), *freed], [("alloc", "größe: 2")],
    ]  # fmt: skip
    assert (last["action"], last["user_metadata"]) == ("alloc", "")


def test_record_memory_history_has_oom(device: torch.device) -> None:
    """A failed request is recorded with its size, the device's free memory, and its stack."""

    held = allocating(device, 64 * MIB)

    def asking_for_too_much() -> None:
        allocating(device, 1 << 46)

    with private.recorded(context="all", stacks="python"):
        with pytest.raises(torch.OutOfMemoryError):
            asking_for_too_much()
        trace = trace_of(private.snapshot(), device)

    (entry,) = [entry for entry in trace if entry["action"] == "oom"]
    assert entry["size"] >= 1 << 46
    assert 0 <= entry["device_free"] <= torch.cuda.get_device_properties(device).total_memory - held.nbytes
    assert is_led_to_by(entry["frames"], "asking_for_too_much")


@pytest.mark.requires(triton=True)
@of_deprecated_scripts
@of_exact_products
@pytest.mark.keeps(
    "Dynamo leaves the functions that it generates for a graph break in the globals of the module",
    tensors=50,
    host="4MiB",
)
@pytest.mark.covers("test_cuda::TestCudaAllocator::test_memory_compile_regions")
@pytest.mark.timeout(600)
def test_record_memory_history_compile_context_names_the_region(device: torch.device) -> None:
    """With `compile_context`, each event in compiled code names its region, a new one after each graph break.

    Events outside of compiled code name no region.
    """

    def work(x: torch.Tensor) -> torch.Tensor:
        y = x @ x
        private.graph_break()
        return y @ y

    torch.compiler.reset()
    compiled = torch.compile(work)
    x = torch.ones(ROWS, ROWS, device=device)
    with private.recorded(context="all", stacks="python", compile_context=True):
        outside = allocating(device)
        compiled(x)
        trace = trace_of(private.snapshot(), device)
    torch.compiler.reset()

    regions = [entry["compile_context"] for entry in trace if entry["action"] == "alloc"]
    named = [each for each in regions if each != "N/A"]
    assert len(set(named)) >= 2
    assert all(each.startswith("Torch-Compiled Region") for each in named)
    assert at(trace, address(outside))[-1]["compile_context"] == "N/A"


# Results of a recording


@pytest.mark.covers("test_cuda::TestCudaMallocAsync::test_memory_plots")
def test_record_memory_history_is_contained_in_pages(device: torch.device, tmp_path: Path) -> None:
    """A recording consists of plain values: pages contain it unchanged, and a dump can be read without running code."""
    plots: list[Callable[[Any], str]] = [
        private.trace_plot,
        lambda snapshot: private.trace_plot(snapshot, plot_segments=True),
        private.segment_plot,
    ]
    with private.recorded(context="all", stacks="python"):
        tensor = allocating(device)
        snapshot = private.snapshot()
        private.dump_snapshot(str(tmp_path / "dump"))

    plain.check(snapshot)
    for plot in plots:
        assert pages.plot(plot(snapshot)).files == {"snapshot.pickle": snapshot}
    dumped = plain.load((tmp_path / "dump").read_bytes())
    assert dumped["segments"] == snapshot["segments"]
    for kept, trace in zip(dumped["device_traces"], snapshot["device_traces"], strict=True):
        assert kept[: len(trace)] == trace  # the first snapshot follows after it
    block = block_at(dumped["segments"], address(tensor))
    assert block is not None
    assert is_led_to_by(block.frames, "allocating")


def test_record_memory_history_page_with_filter_freed(device: torch.device) -> None:
    """A page with `filter_freed` contains live allocations and no freed ones."""
    with private.recorded(context="all", stacks="python"):
        kept, gone = allocating(device), [allocating(device, 7 * MIB)]
        place = address(gone[0])
        freeing(gone)
        page = private.trace_plot(private.snapshot(), filter_freed=True)

    (shown,) = pages.plot(page).files.values()
    trace = trace_of(shown, device)
    assert "alloc" in actions(at(trace, address(kept)))
    assert "alloc" not in actions(at(trace, place))
