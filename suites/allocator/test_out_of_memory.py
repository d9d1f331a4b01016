"""Out of memory: the error message, the retry, live tensors, and later allocations."""

from __future__ import annotations

import gc
import re

import pytest
import torch

from .. import children
from ..streams.busy import calibrate, sleep_on
from .limits import LEFT, MIB, block, settle, short_of_memory

pytestmark = [pytest.mark.requires(accelerator=True, caching_allocator=True, torch=">=2.11"), pytest.mark.timeout(300)]

TOO_MUCH = 1 << 46

STILL_WAITING = pytest.mark.xfail(
    raises=torch.OutOfMemoryError,
    reason="torch 2.11 to 2.13 look for freed blocks only before they wait"
    " (https://github.com/pytorch/pytorch/issues/189504)",
)


def refused(device: torch.device, size: int) -> str:
    """Return the message of the OutOfMemoryError for a request of that size."""
    with pytest.raises(torch.OutOfMemoryError) as caught:
        block(device, size)
    return str(caught.value)


def retries(device: torch.device) -> int:
    return int(torch.accelerator.memory_stats(device)["num_alloc_retries"])


@pytest.mark.covers("test_cuda::TestCuda::test_out_of_memory")
def test_outofmemoryerror_message_names_size_device_total_and_free(device: torch.device) -> None:
    """The message has the requested size, the device, and its total and free memory, in readable units."""
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
    """Sizes near the maximum do not overflow when rounded up.

    Such a request raises OutOfMemoryError instead of returning a small block.
    """
    before = torch.accelerator.memory_allocated(device)
    kept = torch.full((1000,), 7, device=device)

    with pytest.raises(torch.OutOfMemoryError):
        block(device, (1 << 63) - size)

    assert (kept == 7).all()
    del kept
    assert torch.accelerator.memory_allocated(device) == before


@pytest.mark.covers("test_cuda::TestCuda::test_out_of_memory_retry")
def test_cached_blocks_are_released_before_outofmemoryerror(device: torch.device) -> None:
    """A request that fits only without the cached memory succeeds.

    The allocator releases the cache and counts one retry.
    """
    with short_of_memory(device):
        pieces = [block(device, LEFT // 4) for _ in range(3)]
        before = retries(device)
        del pieces

        whole = block(device, LEFT - 8 * MIB)

        assert retries(device) == before + 1
        assert torch.accelerator.memory_reserved(device) >= whole.nbytes
        del whole


def test_cached_blocks_of_another_stream_are_released_before_outofmemoryerror(device: torch.device) -> None:
    """A request that fits only without another stream's cached memory succeeds, although it cannot reuse it."""
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
    """OutOfMemoryError affects no live tensor: values and the count of allocated bytes stay the same.

    Memory freed afterwards can be reused completely.
    """
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
    """A hundred failed requests leave allocated and reserved bytes unchanged once the exceptions are dropped.

    Each occurs with cached memory and in the middle of an operation that has already allocated.
    """
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
    """`num_ooms` increases by one per failed request, until the accumulated statistics are reset."""
    torch.zeros(1, device=device)  # torch 2.11 cannot reset the counters of an unused device
    torch.accelerator.reset_accumulated_memory_stats(device)
    for number in range(1, 4):
        refused(device, TOO_MUCH)
        assert torch.accelerator.memory_stats(device)["num_ooms"] == number

    torch.accelerator.reset_accumulated_memory_stats(device)

    assert torch.accelerator.memory_stats(device)["num_ooms"] == 0


@pytest.mark.covers("test_cuda::TestCuda::test_caching_allocator_record_stream_oom")
def test_record_stream_blocks_are_waited_for_when_memory_is_short(device: torch.device) -> None:
    """When memory is short, the allocator waits for freed blocks that another stream has not read yet.

    Sixty blocks of an eighth of the free memory, read by a lagging stream, are all allocated and read correctly.
    """
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


def test_record_stream_part_of_a_segment_is_waited_for_when_memory_is_short(
    device: torch.device, request: pytest.FixtureRequest
) -> None:
    """When memory is short, the allocator also waits for a freed part of a segment whose other part is in use.

    A block that another stream has not read yet is the only place for a request, which gets it after the read.
    """
    if device.type == "cuda":
        request.applymarker(STILL_WAITING)
    calibrate(device)
    side = torch.Stream(device)
    with short_of_memory(device):
        whole = block(device, 5 * LEFT // 6)
        del whole
        x = torch.full((4 * LEFT // 6,), 5, dtype=torch.uint8, device=device)
        rest = torch.full((LEFT // 6 - 2 * MIB,), 6, dtype=torch.uint8, device=device)
        read = torch.zeros(1, dtype=torch.uint8).pin_memory()
        side.wait_stream(torch.accelerator.current_stream(device))
        sleep_on(side)
        with side:
            read.copy_(x[-1:], non_blocking=True)
        x.record_stream(side)
        del x
        y = torch.full((4 * LEFT // 6,), 7, dtype=torch.uint8, device=device)
        torch.accelerator.synchronize(device)
        assert (read.item(), y.unique().tolist(), rest.unique().tolist()) == (5, [7], [6])
        del y, rest


def test_allocations_succeed_after_outofmemoryerror(device: torch.device) -> None:
    """After OutOfMemoryError, other requests of both pools succeed, and each tensor is correct."""
    refused(device, TOO_MUCH)

    tensors = [torch.full((size,), size % 251, dtype=torch.uint8, device=device) for size in (1, 512, 70_000, 3 * MIB)]

    assert all(bool((x == x.numel() % 251).all()) for x in tensors)


@pytest.mark.covers("test_cuda::TestCuda::test_caching_allocator_record_stream_oom")
def test_record_stream_keeps_memory_reserved_bounded_while_a_stream_lags(device: torch.device) -> None:
    """Memory recorded on a lagging stream is reused after that stream has completed, and not before.

    A hundred blocks of an eighth of the allowed memory are allocated and read, and reserved memory never exceeds the
    limit.
    """
    side = torch.Stream(device)
    calibrate(device)
    read = torch.zeros(100, dtype=torch.uint8, device=device)
    with short_of_memory(device):
        allowed = torch.accelerator.memory_reserved(device) + LEFT
        torch.accelerator.reset_peak_memory_stats(device)
        for number in range(100):
            x = torch.full((LEFT // 8,), number + 1, dtype=torch.uint8, device=device)
            side.wait_stream(torch.accelerator.current_stream(device))
            sleep_on(side, 1)
            with side:
                y = x * 2
                read[number] = y[-1]
            x.record_stream(side)
            del x, y

        assert torch.accelerator.max_memory_reserved(device) <= allowed
    assert read.tolist() == [2 * (number + 1) for number in range(100)]


def test_outofmemoryerror_unhandled_ends_the_process_without_a_signal(device: torch.device) -> None:
    """An uncaught OutOfMemoryError ends the process like any exception, with status 1 and a traceback.

    No signal occurs while the process exits with live tensors.
    """
    ended = children.run(
        "import torch\nx = torch.ones(1000, device=DEVICE)\ntorch.empty(1 << 46, device=DEVICE)", device
    )

    assert ended.status == 1
    assert "Traceback" in ended.err
    assert "OutOfMemoryError" in ended.err
