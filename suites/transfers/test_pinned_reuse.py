"""The cache of pinned memory: freed blocks are reused, but not while a stream uses them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ..streams.busy import NOT_SHOWN, POISON, TRIALS, Dropped, calibrate, ever, sleep_on
from ._torch_private import empty_host_cache, host_memory_stats

pytestmark = pytest.mark.requires(accelerator=True, pinned_memory=True)

ELEMENTS = 300_000

FIRST_OF_ALL = pytest.mark.xfail(
    raises=AssertionError,
    reason="torch 2.11 to 2.13 look no further than the first event that has not happened"
    " (https://github.com/pytorch/pytorch/pull/183501)",
)


def test_pinned_block_that_is_freed_is_reused(device: torch.device) -> None:
    """Freed pinned memory that no stream uses serves the next request of its size, because pinning is slow.

    Pinned memory without statistics need not come from a cache.
    """
    host_memory_stats(device)
    torch.accelerator.synchronize(device)
    first = torch.empty(ELEMENTS).pin_memory()
    address = first.data_ptr()
    del first

    assert torch.empty(ELEMENTS).pin_memory().data_ptr() == address


def to_device(stream: torch.Stream, block: torch.Tensor, there: torch.Tensor) -> None:
    with stream:
        there.copy_(block, non_blocking=True)


def to_host(stream: torch.Stream, block: torch.Tensor, there: torch.Tensor) -> None:
    with stream:
        there.fill_(7)
        block.copy_(there, non_blocking=True)


def drop_behind_a_copy(
    device: torch.device, copy: Callable[[torch.Stream, torch.Tensor, torch.Tensor], None], view: slice
) -> Dropped:
    """Make a stream sleep and then copy a pinned block, free the block immediately, and pin another of its size.

    The new block is filled with poison. `intact` means that the device did not get the poison and the new block did not
    get the copy.
    """
    stream = torch.Stream(device)
    there = torch.zeros(ELEMENTS, dtype=torch.int32, device=device)
    torch.accelerator.synchronize(device)
    empty_host_cache(device)
    block = torch.full((ELEMENTS,), 7, dtype=torch.int32).pin_memory()

    sleep_on(stream)
    copy(stream, block[view], there[view])
    address = block.data_ptr()
    del block
    next_block = torch.empty(ELEMENTS, dtype=torch.int32, pin_memory=True).fill_(POISON)
    reused_at_once = next_block.data_ptr() == address

    torch.accelerator.synchronize(device)
    intact = bool((there[view] == 7).all()) and bool((next_block == POISON).all())
    later = [torch.empty(ELEMENTS, dtype=torch.int32, pin_memory=True) for _ in range(2)]
    return Dropped(reused_at_once, intact, address in {each.data_ptr() for each in later})


@pytest.mark.requires(asynchronous=True)
@pytest.mark.covers("test_cuda::TestCuda::test_caching_pinned_memory")
@pytest.mark.parametrize("copy", [to_device, to_host])
@pytest.mark.parametrize("view", [slice(None), slice(5, 200_000)], ids=["whole", "part"])
def test_pinned_block_is_not_reused_while_a_copy_needs_it(
    device: torch.device, copy: Callable[[torch.Stream, torch.Tensor, torch.Tensor], None], view: slice
) -> None:
    """A pinned block, or a part of it, freed right after a non-blocking copy is not reused before the copy completes.

    It is reused afterwards. The copy is delayed, so a block reused too early would have poison when the copy reads it,
    or be overwritten by the copy.
    """
    calibrate(device)

    for _ in range(TRIALS):
        trial = drop_behind_a_copy(device, copy, view)
        assert not trial.reused_at_once
        assert trial.intact
        assert trial.reused_when_done


@pytest.mark.races("the host changes the source while the copy waits")
@pytest.mark.requires(asynchronous=True)
def test_non_blocking_copy_reads_pinned_memory_that_was_changed_meanwhile(device: torch.device) -> None:
    """A non-blocking copy reads pinned memory when the stream reaches it, and not at the call.

    A write by the host during the sleep must arrive at least once. This is also the control for the cases above.
    """
    stream = torch.Stream(device)
    there = torch.zeros(ELEMENTS, dtype=torch.int32, device=device)
    block = torch.full((ELEMENTS,), 7, dtype=torch.int32).pin_memory()
    calibrate(device)

    def seen() -> bool:
        block.fill_(7)
        torch.accelerator.synchronize(device)
        sleep_on(stream)
        to_device(stream, block, there)
        block.fill_(POISON)
        torch.accelerator.synchronize(device)
        return bool((there == POISON).all())

    assert ever(seen), NOT_SHOWN


@pytest.mark.covers("test_cuda::TestCuda::test_pinned_memory_empty_cache")
def test_empty_host_cache_leaves_pinned_memory_in_use(device: torch.device) -> None:
    """`empty_host_cache` frees no live block, and no block that a delayed copy still needs."""
    stream = torch.Stream(device)
    calibrate(device)
    live = torch.full((ELEMENTS,), 5, dtype=torch.int32).pin_memory()

    for value in range(1, TRIALS + 1):
        block = torch.full((ELEMENTS,), value, dtype=torch.int32).pin_memory()
        there = torch.zeros(ELEMENTS, dtype=torch.int32, device=device)
        torch.accelerator.synchronize(device)
        sleep_on(stream)
        to_device(stream, block, there)
        del block
        empty_host_cache(device)
        others = [torch.full((ELEMENTS,), POISON, dtype=torch.int32).pin_memory() for _ in range(3)]
        torch.accelerator.synchronize(device)
        assert (there == value).all()
        assert all(bool((other == POISON).all()) for other in others)

    assert live.is_pinned()
    assert (live == 5).all()


def test_pinned_block_refilled_for_a_chain_of_copies_stays_in_order(device: torch.device) -> None:
    """One pinned block, refilled and copied a hundred times with an event wait between, transfers each value once.

    This is the staging loop of training programs. Some copies are delayed.
    """
    stream = torch.Stream(device)
    block = torch.empty(4096, dtype=torch.int32).pin_memory()
    arrived = torch.full((100, 4096), POISON, dtype=torch.int32, device=device)
    calibrate(device)
    torch.accelerator.synchronize(device)
    event = stream.record_event()

    for value in range(100):
        event.synchronize()
        block.fill_(value)
        if value % 20 == 0:
            sleep_on(stream, 10)
        with stream:
            arrived[value].copy_(block, non_blocking=True)
        event = stream.record_event()
    stream.synchronize()

    assert torch.equal(arrived.cpu(), torch.arange(100, dtype=torch.int32)[:, None].expand(100, 4096))


@pytest.mark.requires(asynchronous=True)
def test_pinned_block_is_reused_while_another_stream_is_behind(
    device: torch.device, request: pytest.FixtureRequest
) -> None:
    """A freed pinned block whose copy is done is reused, also if an earlier freed block waits for a busy stream.

    The stream must be observed busy in at least one trial.
    """
    if device.type == "cuda":
        request.applymarker(FIRST_OF_ALL)
    calibrate(device)
    slow, quick = torch.Stream(device), torch.Stream(device)
    there = [torch.zeros(ELEMENTS, dtype=torch.int32, device=device) for _ in range(2)]

    def reused_behind_a_busy_stream() -> bool:
        torch.accelerator.synchronize(device)
        empty_host_cache(device)
        first, second = (torch.full((ELEMENTS,), value, dtype=torch.int32).pin_memory() for value in (3, 4))
        sleep_on(slow, 200)
        to_device(slow, first, there[0])
        del first
        to_device(quick, second, there[1])
        address = second.data_ptr()
        del second
        quick.synchronize()
        reused = torch.empty(ELEMENTS, dtype=torch.int32, pin_memory=True).data_ptr() == address
        behind = not slow.query()
        torch.accelerator.synchronize(device)
        if [int(each[-1]) for each in there] != [3, 4]:
            raise RuntimeError(f"the copies have {[int(each[-1]) for each in there]}")
        return reused and behind

    assert ever(reused_behind_a_busy_stream)
