"""Memory without tensors: `caching_allocator_alloc` and `caching_allocator_delete`, for other libraries."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch

from .limits import MIB, settle

pytestmark = pytest.mark.requires(device="cuda")

allocate = torch.cuda.caching_allocator_alloc
delete = torch.cuda.caching_allocator_delete


@pytest.fixture(autouse=True)
def all_given_back(device: torch.device) -> Iterator[None]:
    """Check that the case has freed all memory that it allocated."""
    settle(device)
    before = torch.cuda.memory_allocated(device)
    yield
    assert torch.cuda.memory_allocated(device) == before


@pytest.mark.covers("test_cuda::TestCuda::test_memory_allocation")
@pytest.mark.covers("test_cuda::TestCudaAllocator::test_cachingAllocator_raw_alloc")
@pytest.mark.parametrize(
    ("size", "taken"),
    [
        (1, 512),
        (512, 512),
        (513, 1024),
        (1024, 1024),
        (MIB, MIB),
        (MIB + 1, MIB + 512),
        (10 * MIB + 1, 10 * MIB + 512),
        (11 * MIB + 1, 12 * MIB),
    ],
    ids=str,
)
def test_caching_allocator_alloc_is_counted_until_caching_allocator_delete(
    device: torch.device, size: int, taken: int
) -> None:
    """`caching_allocator_alloc` returns an address, counted as allocated and rounded to 512 bytes, until it is deleted.

    A request that would leave no more than 1 MiB of a large segment gets all of it.
    """
    before = torch.cuda.memory_allocated(device)
    address = allocate(size, device)
    grown = torch.cuda.memory_allocated(device) - before
    delete(address)

    assert address > 0
    assert address % 512 == 0
    assert grown == taken
    assert torch.cuda.memory_allocated(device) == before


@pytest.mark.covers("test_cuda::TestCuda::test_memory_allocation")
def test_caching_allocator_alloc_blocks_are_separate_and_reused(device: torch.device) -> None:
    """Live blocks do not overlap, and a freed block serves the next request of its size."""
    addresses = sorted(allocate(1000, device) for _ in range(20))
    assert all(right - left >= 1024 for left, right in pairwise(addresses))
    again = addresses[7]
    delete(again)
    assert allocate(1000, device) == again
    for address in addresses:
        delete(address)


def test_caching_allocator_alloc_takes_a_stream_or_its_number(device: torch.device) -> None:
    """A stream, as an object or a number, owns the memory; another stream's free memory is not used for it."""
    streams = [torch.cuda.Stream(device) for _ in range(2)]
    first = allocate(1000, device, streams[0])
    delete(first)
    second = allocate(1000, device, streams[1].cuda_stream)
    third = allocate(1000, device, streams[0].cuda_stream)
    delete(second)
    delete(third)

    assert second != first
    assert third == first


@pytest.mark.covers("test_cuda::TestCuda::test_caching_allocator_alloc_negative_size")
@pytest.mark.parametrize(
    "size",
    [
        # 2.11 rounds the first one up to a small size, and requests nothing from the device for the second one
        pytest.param(-1, marks=pytest.mark.requires(torch=">=2.13")),
        pytest.param(-512, marks=pytest.mark.requires(torch=">=2.13")),
        -(1 << 40),
    ],
)
def test_caching_allocator_alloc_refuses_negative_sizes(device: torch.device, size: int) -> None:
    """A negative size raises and allocates nothing."""
    # before 2.13, such a number is interpreted as unsigned, and exceeds any memory
    with pytest.raises((RuntimeError, ValueError), match=r"(?i)non-negative|out of memory"):
        allocate(size, device)


def test_caching_allocator_alloc_refuses_a_stream_of_another_type(device: torch.device) -> None:
    """A stream argument that is neither a stream nor a number raises TypeError."""
    with pytest.raises(TypeError, match="stream"):
        allocate(1000, device, "a stream")


def test_caching_allocator_alloc_raises_outofmemoryerror(device: torch.device) -> None:
    """A raw request that does not fit raises OutOfMemoryError, as for tensors."""
    with pytest.raises(torch.OutOfMemoryError):
        allocate(1 << 46, device)


def cached(device: torch.device) -> tuple[int, int]:
    """Return the bytes that the caching allocator has handed out, and the bytes that it has from the driver."""
    return torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)


def assert_uncached(device: torch.device) -> None:
    """Check that a tensor's memory is the driver's: no counter changes, and the memory is returned with the tensor."""
    before, free = cached(device), torch.cuda.mem_get_info(device)[0]
    x = torch.full((24 * MIB,), 7, dtype=torch.uint8, device=device)
    assert cached(device) == before
    assert torch.cuda.mem_get_info(device)[0] <= free - 24 * MIB
    assert x.cpu().unique().tolist() == [7]
    del x
    assert cached(device) == before
    assert torch.cuda.mem_get_info(device)[0] > free - 24 * MIB


def assert_cached(device: torch.device) -> None:
    """Check that a tensor's memory is counted, and stays with the allocator after the tensor."""
    torch.cuda.empty_cache()
    given, reserved = cached(device)
    x = torch.full((24 * MIB,), 7, dtype=torch.uint8, device=device)
    assert cached(device) == (given + 24 * MIB, reserved + 24 * MIB)
    del x
    assert cached(device) == (given, reserved + 24 * MIB)
    torch.cuda.empty_cache()


@pytest.mark.serial
def test_caching_allocator_enable_false_gives_memory_of_the_driver(device: torch.device) -> None:
    """With `caching_allocator_enable(False)`, each tensor has its own driver memory; with True, cached memory."""
    torch.cuda.init()  # otherwise it does nothing
    torch.cuda.caching_allocator_enable(False)
    try:
        assert_uncached(device)
        torch.cuda.caching_allocator_enable()
        assert_cached(device)
        torch.cuda.caching_allocator_enable(False)
        assert_uncached(device)
    finally:
        torch.cuda.caching_allocator_enable(True)
    assert_cached(device)


@pytest.mark.serial
@pytest.mark.requires(torch=">=2.13")
def test_caching_allocator_disabled_restores_the_state_before(device: torch.device) -> None:
    """`caching_allocator_disabled` disables the cache in its block, and restores the previous state at the end.

    This also holds after an exception, and within another such block.
    """

    torch.cuda.init()

    def fail() -> None:
        with torch.cuda.caching_allocator_disabled():
            assert_uncached(device)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert_cached(device)
    with torch.cuda.caching_allocator_disabled():
        with torch.cuda.caching_allocator_disabled():
            assert_uncached(device)
        assert_uncached(device)
    assert_cached(device)
