"""Restoring a pool to a checkpoint: its allocated blocks are allocated again, and all others are free."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from .. import children
from . import _torch_private as private
from .pools import (
    LARGE_SEGMENT,
    MIB,
    SMALL_SEGMENT,
    SMALLEST,
    address,
    captured,
    changes,
    live_blocks,
    reserved_in,
    segments_of,
)

pytestmark = [
    pytest.mark.requires(device="cuda", cuda_graphs=True, not_={"rocm": True}),
    pytest.mark.usefixtures("nothing_left"),
]

ROW = "test_cuda::TestBlockStateAbsorption::"


def filled(size: int, device: torch.device) -> torch.Tensor:
    return torch.ones(size, dtype=torch.uint8, device=device)


Program = Callable[[torch.device], list[torch.Tensor]]

# Programs with different patterns of live and free blocks


def mixed(device: torch.device) -> list[torch.Tensor]:
    """Return large and small blocks, with temporaries in between."""
    x = filled(8 * MIB, device)
    x = x + x
    sums = filled(MIB, device) + filled(MIB, device) + filled(MIB, device)
    return [x, filled(MIB, device) + sums, filled(MIB, device)]


def one_of(device: torch.device, *kept: int) -> list[torch.Tensor]:
    """Return the blocks `kept` of eleven consecutive blocks of the smallest size. The others are freed."""
    row = [filled(SMALLEST, device) for _ in range(11)]
    row[kept[0]].add_(2)
    return [row[place] for place in kept]


def a_network(device: torch.device) -> list[torch.Tensor]:
    """Return results of convolutions and normalizations as in an image network.

    They allocate blocks of many sizes, and keep few of them.
    """
    x = torch.ones(1, 3, 64, 64, device=device)
    for channels in (16, 32, 64):
        weight = torch.ones(channels, x.shape[1], 3, 3, device=device)
        y = torch.nn.functional.conv2d(x, weight, stride=2, padding=1)
        x = torch.relu((y - y.mean((0, 2, 3), keepdim=True)) / (y.var((0, 2, 3), keepdim=True) + 1).sqrt())
    return [x, x.flatten(1) @ torch.ones(x[0].numel(), 10, device=device)]


PROGRAMS: dict[str, tuple[Program, str]] = {
    "mixed": (mixed, "test_simple"),
    "in_the_middle": (lambda device: one_of(device, 5), "test_allocated_in_middle_of_segment"),
    "several_in_the_middle": (lambda device: one_of(device, 5, 8), "test_multiple_middle_allocations"),
    "side_by_side": (lambda device: one_of(device, 5, 6), "test_middle_allocations_contiguous"),
    "first_and_last": (lambda device: one_of(device, 0, 10), "test_multiple_middle_allocations"),
    "nothing": (lambda device: (mixed(device), [])[1], "test_simple"),
    "a_network": (a_network, "test_simple"),
}


@pytest.mark.parametrize(
    "program",
    [pytest.param(work, id=name, marks=pytest.mark.covers(ROW + row)) for name, (work, row) in PROGRAMS.items()],
)
def test_checkpoint_pool_state_restored_at_once_changes_nothing(
    device: torch.device, program: Callable[[torch.device], list[torch.Tensor]]
) -> None:
    """A checkpoint restored right after the capture changes no segment or block, and a replay is correct."""
    graph = captured(device, lambda: program(device))
    graph.replay()
    torch.accelerator.synchronize(device)
    wanted = [output.clone() for output in graph.outputs]
    before = segments_of(device, graph.pool)
    assert before

    private.restore(device.index or 0, private.checkpoint(device.index or 0, graph.pool))

    assert changes(before, segments_of(device, graph.pool)) == []
    for output in graph.outputs:
        output.zero_()
    graph.replay()
    torch.accelerator.synchronize(device)
    for output, value in zip(graph.outputs, wanted, strict=True):
        torch.testing.assert_close(output, value)
    assert {block.address for block in live_blocks(device, graph.pool)} == set(map(address, graph.outputs))


@pytest.mark.requires(torchvision=True)
@pytest.mark.covers(f"{ROW}test_resnet")
@pytest.mark.timeout(600)
def test_checkpoint_pool_state_of_a_resnet50_is_restored(device: torch.device) -> None:
    """The same for a ResNet-50, whose forward allocates and frees hundreds of blocks."""
    from torchvision.models import resnet50

    model = resnet50().eval().to(device)
    x = torch.rand(1, 3, 255, 255, device=device)
    with torch.no_grad():
        graph = captured(device, lambda: [model(x)])
        before = segments_of(device, graph.pool)

        private.restore(device.index or 0, private.checkpoint(device.index or 0, graph.pool))

        assert changes(before, segments_of(device, graph.pool)) == []
        graph.replay()
        torch.testing.assert_close(graph.outputs[0], model(x), rtol=1e-3, atol=1e-3)


@pytest.mark.covers(f"{ROW}test_additional_free_following_checkpoint")
def test_checkpoint_pool_state_frees_blocks_taken_since(device: torch.device) -> None:
    """Restoring frees blocks that a second capture allocated after the checkpoint, although their tensors still exist.

    These stale tensors free nothing when they are deleted.
    """
    index = device.index or 0
    first = captured(device, lambda: [filled(SMALLEST, device)])
    before, state = segments_of(device, first.pool), private.checkpoint(index, first.pool)
    second = captured(device, lambda: [filled(SMALLEST, device), filled(MIB, device)], first.pool)
    assert len(live_blocks(device, first.pool)) == 3

    private.restore(index, state, stale=[output.untyped_storage() for output in second.outputs])

    assert changes(before, segments_of(device, first.pool)) == []
    assert len(live_blocks(device, first.pool)) == 1
    assert not any(private.owns_its_memory(output.untyped_storage()) for output in second.outputs)
    second.outputs.clear()
    assert [block.address for block in live_blocks(device, first.pool)] == [address(first.outputs[0])]


@pytest.mark.covers(f"{ROW}test_tensor_dies_after_checkpoint")
def test_checkpoint_pool_state_reallocates_dead_blocks(device: torch.device) -> None:
    """Blocks whose tensors died after the checkpoint are allocated again without an owner, and are freed by address."""
    index = device.index or 0
    graph = captured(device, lambda: [filled(SMALLEST, device), filled(SMALLEST, device)])
    before, state = segments_of(device, graph.pool), private.checkpoint(index, graph.pool)
    places = list(map(address, graph.outputs))
    graph.outputs.clear()
    assert live_blocks(device, graph.pool) == []

    private.restore(index, state)

    assert changes(before, segments_of(device, graph.pool)) == []
    assert sorted(block.address for block in live_blocks(device, graph.pool)) == sorted(places)
    for left in (1, 0):
        private.give_back(places.pop())
        assert [block.address for block in live_blocks(device, graph.pool)] == places
        assert len(places) == left


@pytest.mark.covers(f"{ROW}test_assigning_back_deleter_fns_to_tensor")
def test_checkpoint_pool_state_adopts_blocks_of_tensors_by_address(device: torch.device) -> None:
    """Tensors over the memory of dead outputs see what replays write, and free their blocks if a restore adopted them.

    A tensor that was not adopted frees nothing.
    """
    index = device.index or 0
    x = torch.ones(1, dtype=torch.uint8, device=device)
    sizes = (SMALL_SEGMENT, SMALL_SEGMENT, LARGE_SEGMENT)
    graph = captured(device, lambda: [filled(size, device) + x for size in sizes])
    state = private.checkpoint(index, graph.pool)
    places = list(map(address, graph.outputs))
    graph.outputs.clear()
    assert live_blocks(device, graph.pool) == []

    storages = [private.storage_at(place, device, size) for place, size in zip(places, sizes, strict=True)]
    views = [torch.empty(0, dtype=torch.uint8, device=device).set_(each) for each in storages]  # type: ignore[call-overload]
    for value in (2, 3):
        graph.replay()
        torch.accelerator.synchronize(device)
        assert all((view == value).all() for view in views)
        x.add_(1)

    private.restore(index, state, adopt=storages[:2])
    assert len(live_blocks(device, graph.pool)) == 3
    assert [private.owns_its_memory(each) for each in storages] == [True, True, False]
    for left in (2, 1, 1):
        del views[0], storages[0]
        assert len(live_blocks(device, graph.pool)) == left
    private.give_back(places[2])
    assert live_blocks(device, graph.pool) == []


def test_checkpoint_pool_state_lets_exclusive_captures_share_memory(device: torch.device) -> None:
    """After a restore, another capture reuses the blocks of the undone one, and each replays correctly in its state."""
    index = device.index or 0
    x = torch.zeros(MIB, dtype=torch.int32, device=device)
    root = captured(device, lambda: [x + 1])
    state = private.checkpoint(index, root.pool)
    stream = torch.cuda.Stream(device)
    one = captured(device, lambda: [root.outputs[0] * 10], root.pool, stream)
    place, reserved = address(one.outputs[0]), reserved_in(device, root.pool)

    private.restore(index, state, stale=[one.outputs[0].untyped_storage()])
    two = captured(device, lambda: [root.outputs[0] * 100], root.pool, stream)

    assert address(two.outputs[0]) == place
    assert reserved_in(device, root.pool) == reserved
    for value, path, factor in ((3, one, 10), (4, two, 100), (5, one, 10)):
        x.fill_(value)
        root.replay()
        path.replay()
        torch.accelerator.synchronize(device)
        assert (two.outputs[0] == (value + 1) * factor).all()


def test_checkpoint_pool_state_outlives_several_restores(device: torch.device) -> None:
    """A checkpoint can be restored repeatedly, with other captures in between."""
    index = device.index or 0
    graph = captured(device, lambda: one_of(device, 2, 7))
    before, state = segments_of(device, graph.pool), private.checkpoint(index, graph.pool)

    for size in (SMALLEST, MIB, 30 * MIB):
        other = captured(device, lambda size=size: [filled(size, device)], graph.pool)  # type: ignore[misc]
        private.restore(index, state, stale=[other.outputs[0].untyped_storage()])
        assert changes(before, segments_of(device, graph.pool)) == []
        assert {block.address for block in live_blocks(device, graph.pool)} == set(map(address, graph.outputs))


GROWTH = """
import torch
from suites.graph_pools import _torch_private as private
from suites.graph_pools.pools import MIB, address, captured, changes, live_blocks, segments_of

device = torch.device(DEVICE)
first = captured(device, lambda: [torch.ones(30 * MIB, dtype=torch.uint8, device=device)])
state, before = private.checkpoint(device.index, first.pool), segments_of(device, first.pool)
assert all(segment["is_expandable"] for segment in before), before
grown = captured(device, lambda: [torch.ones(90 * MIB, dtype=torch.uint8, device=device) for _ in range(3)], first.pool)
private.restore(device.index, state, stale=[each.untyped_storage() for each in grown.outputs])
print("live", sorted(b.address for b in live_blocks(device, first.pool)) == sorted(map(address, first.outputs)))
again = captured(device, lambda: [torch.full((90 * MIB,), 7, dtype=torch.uint8, device=device)], first.pool)
for graph in (first, again):
    graph.outputs[0].zero_()
    graph.replay()
torch.cuda.synchronize()
print("right", bool((first.outputs[0] == 1).all()), bool((again.outputs[0] == 7).all()))
"""


@pytest.mark.requires(expandable_segments=True, memory=">=2GiB")
@pytest.mark.covers(f"{ROW}test_expandable_segment_checkpoint_growth")
@pytest.mark.timeout(300)
@pytest.mark.own_process
def test_checkpoint_pool_state_with_expandable_segments_that_have_grown(device: torch.device) -> None:
    """With expandable segments, a checkpoint from before a segment grew can be restored afterwards.

    Live and free blocks are restored, further captures work, and replays are correct. The case uses a child process,
    because the setting applies from the first allocation on.
    """
    ended = children.fork(GROWTH, device, settings="expandable_segments:True")

    assert ended.lines() == ["live True", "right True True"]
