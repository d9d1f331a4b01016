"""When memory runs out: what is said, what is tried first, what stays, and what works afterwards."""

from __future__ import annotations

import gc
import re

import pytest
import torch

from ..streams.busy import calibrate, sleep_on
from .limits import LEFT, MIB, block, settle, short_of_memory

pytestmark = [pytest.mark.requires(accelerator=True, torch=">=2.11"), pytest.mark.timeout(300)]

TOO_MUCH = 1 << 46


def refused(device: torch.device, size: int) -> str:
    """What is said when so much is asked for and refused."""
    with pytest.raises(torch.OutOfMemoryError) as caught:
        block(device, size)
    return str(caught.value)


def retries(device: torch.device) -> int:
    return int(torch.accelerator.memory_stats(device)["num_alloc_retries"])


@pytest.mark.covers("test_cuda::TestCuda::test_out_of_memory")
def test_outofmemoryerror_message_names_size_device_total_and_free(device: torch.device) -> None:
    """Contract: the error says that memory is out, how much was asked for, of which device, and how much that has in
    all and free, in units people read."""
    text = refused(device, TOO_MUCH)

    assert re.search(r"(?i)out of memory", text)
    assert re.search(r"(?i)tried to allocate (65536\.00 GiB|64(\.0+)? TiB)", text)
    assert re.search(rf"(?i)(gpu|device) {device.index}\b", text)
    assert len(re.findall(r"\d+(?:\.\d+)? (?:bytes|[KMGT]iB)", text)) >= 4
    _, total = torch.accelerator.get_memory_info(device)
    assert (f"{total / (1 << 30):.2f} GiB" if total >= 1 << 30 else f"{total / MIB:.2f} MiB") in text
    assert re.search(r"(?i)total", text)
    assert re.search(r"(?i)free", text)


@pytest.mark.parametrize("size", [1, 1000, MIB, 30 * MIB], ids=lambda size: f"{size}_bytes")
def test_outofmemoryerror_for_sizes_that_would_overflow_when_rounded(device: torch.device, size: int) -> None:
    """Contract: sizes near the end of the range of sizes do not overflow when they are rounded up: they are refused,
    with OutOfMemoryError, not given a small block."""
    before = torch.accelerator.memory_allocated(device)
    kept = torch.full((1000,), 7, device=device)

    with pytest.raises(torch.OutOfMemoryError):
        block(device, (1 << 63) - size)

    assert (kept == 7).all()
    del kept
    assert torch.accelerator.memory_allocated(device) == before


@pytest.mark.covers("test_cuda::TestCuda::test_out_of_memory_retry")
def test_cached_blocks_are_given_back_before_outofmemoryerror(device: torch.device) -> None:
    """Contract: a request for which there is room only if cached memory goes back to the device is met: the allocator
    gives that back and tries again, and counts one retry."""
    with short_of_memory(device):
        pieces = [block(device, LEFT // 4) for _ in range(3)]
        before = retries(device)
        del pieces

        whole = block(device, LEFT - 8 * MIB)

        assert retries(device) == before + 1
        assert torch.accelerator.memory_reserved(device) >= whole.nbytes
        del whole


def test_cached_blocks_of_another_stream_are_given_back_before_outofmemoryerror(device: torch.device) -> None:
    """Contract: the same where what is cached is another stream's, which could not have been given out: once it has
    gone back to the device it can be had."""
    stream = torch.Stream(device)
    with short_of_memory(device):
        with stream:
            piece = block(device, LEFT - 8 * MIB)
        del piece

        mine = torch.full((LEFT // 2,), 3, dtype=torch.uint8, device=device)

        assert bool((mine.cpu() == 3).all())
        del mine


@pytest.mark.covers("test_cuda::TestCuda::test_out_of_memory_retry")
def test_outofmemoryerror_leaves_live_tensors_whole(device: torch.device) -> None:
    """Contract: a refusal takes nothing from what lives: values stay, the count of allocated bytes stays, and what is
    then dropped can be had again, to the last block."""
    with short_of_memory(device):
        kept = [torch.full((LEFT // 8,), value, dtype=torch.uint8, device=device) for value in range(1, 7)]
        allocated = torch.accelerator.memory_allocated(device)

        for _ in range(3):
            refused(device, LEFT)

        assert torch.accelerator.memory_allocated(device) == allocated
        assert all(bool((x.cpu() == value).all()) for value, x in enumerate(kept, 1))
        del kept
        again = [block(device, LEFT // 8) for _ in range(6)]
        del again


def test_outofmemoryerror_leaves_no_memory_behind(device: torch.device) -> None:
    """Contract: a hundred refusals, the exceptions dropped, leave allocated and reserved bytes as they were, though
    each came with cached memory and in the middle of an operation that had made something."""
    with short_of_memory(device):
        settle(device)
        before = torch.accelerator.memory_allocated(device), torch.accelerator.memory_reserved(device)

        def fail() -> None:
            some = [block(device, LEFT // 8) for _ in range(2)]
            del some[0]
            torch.cat([*some, block(device, LEFT // 2), block(device, LEFT // 2)])

        for _ in range(100):
            with pytest.raises(torch.OutOfMemoryError):
                fail()
        gc.collect()
        settle(device)

        assert (torch.accelerator.memory_allocated(device), torch.accelerator.memory_reserved(device)) == before


def test_memory_stats_num_ooms_counts_refusals(device: torch.device) -> None:
    """Contract: the counter of refusals goes up by one with each, until accumulated counters are reset."""
    torch.zeros(1, device=device)  # torch 2.11 refuses to reset the counters of a device that was not used
    torch.accelerator.reset_accumulated_memory_stats(device)
    for number in range(1, 4):
        refused(device, TOO_MUCH)
        assert torch.accelerator.memory_stats(device)["num_ooms"] == number

    torch.accelerator.reset_accumulated_memory_stats(device)

    assert torch.accelerator.memory_stats(device)["num_ooms"] == 0


@pytest.mark.covers("test_cuda::TestCuda::test_caching_allocator_record_stream_oom")
def test_record_stream_blocks_are_waited_for_when_memory_is_short(device: torch.device) -> None:
    """Contract: blocks that were dropped while another stream has still to read them are waited for when memory is
    short, rather than that a request is refused: sixty of an eighth of what is left, read by a stream that lags, are
    all had, and all read right."""
    calibrate(device)
    side = torch.Stream(device)
    with short_of_memory(device):
        sums = torch.zeros(60, dtype=torch.int64).pin_memory()
        for number in range(60):
            x = torch.full((LEFT // 8,), number, dtype=torch.uint8, device=device)
            side.wait_stream(torch.accelerator.current_stream(device))
            sleep_on(side, 2)
            with side:
                sums[number : number + 1].copy_(x[-1:], non_blocking=True)
            x.record_stream(side)
            del x
        torch.accelerator.synchronize(device)

    assert sums.tolist() == list(range(60))


def test_allocations_go_on_after_outofmemoryerror(device: torch.device) -> None:
    """Contract: after a refusal other requests go on as if nothing had been: sizes of both pools, each tensor whole."""
    refused(device, TOO_MUCH)

    tensors = [torch.full((size,), size % 251, dtype=torch.uint8, device=device) for size in (1, 512, 70_000, 3 * MIB)]

    assert all(bool((x == x.numel() % 251).all()) for x in tensors)
