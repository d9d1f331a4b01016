"""Storages that are restored at their previous address (`UntypedStorage._resize_with_addr_`), from cached memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch

from ._torch_private import resize_at
from .limits import MIB

pytestmark = [
    pytest.mark.requires(device="cuda", torch=">=2.13"),
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("nothing_stays"),
]

SIZE = 4 * MIB


@pytest.fixture
def stream(device: torch.device) -> Iterator[torch.cuda.Stream]:
    """Yield a stream for the case's allocations, so that it has its own segments."""
    mine = torch.cuda.Stream(device)
    with torch.cuda.stream(mine):
        yield mine


def tensor(device: torch.device, value: int, size: int = SIZE) -> torch.Tensor:
    return torch.full((size,), value, dtype=torch.uint8, device=device)


def emptied(x: torch.Tensor) -> int:
    """Free a tensor's memory but keep the tensor, and return the memory's address."""
    address = x.data_ptr()
    x.untyped_storage().resize_(0)
    return address


@pytest.mark.usefixtures("stream")
@pytest.mark.covers("test_cuda::TestResizeStorageWithAddr::test_resize_storage_with_addr_exact_allocation")
def test_resize_with_addr_gets_a_free_block_by_its_address(device: torch.device) -> None:
    """A freed block is allocated again at its address, counted as allocated, and keeps what is written to it."""
    x = tensor(device, 1)
    allocated = torch.cuda.memory_allocated(device)
    address = emptied(x)

    resize_at(x.untyped_storage(), SIZE, address)
    x.fill_(9)

    assert x.data_ptr() == address
    assert torch.cuda.memory_allocated(device) == allocated
    assert bool((x == 9).all())


@pytest.mark.usefixtures("stream")
@pytest.mark.covers("test_cuda::TestResizeStorageWithAddr::test_resize_storage_with_addr_occupied_address_errors")
def test_resize_with_addr_refuses_an_address_in_use(device: torch.device) -> None:
    """An address in use raises, and the block in use is intact."""
    x, other = tensor(device, 1), tensor(device, 2)
    emptied(x)

    with pytest.raises(RuntimeError, match=f"exact address {other.data_ptr():#x}"):
        resize_at(x.untyped_storage(), SIZE, other.data_ptr())

    assert bool((other == 2).all())
    assert x.untyped_storage().nbytes() == 0


@pytest.mark.usefixtures("stream")
@pytest.mark.covers("test_cuda::TestResizeStorageWithAddr::test_resize_storage_with_addr_middle_of_block")
@pytest.mark.covers("test_cuda::TestResizeStorageWithAddr::test_resize_storage_with_multiple_blocks_in_the_middle")
def test_resize_with_addr_splits_a_free_block_around_the_address(device: torch.device) -> None:
    """Parts in the middle of a free block can be allocated at their addresses, in any order.

    The remaining parts can be allocated too, and nothing overlaps.
    """
    big = tensor(device, 0, 16 * MIB)
    start = emptied(big)
    pieces = []
    for place in (3, 1, 2):
        x = torch.empty(0, dtype=torch.uint8, device=device)
        resize_at(x.untyped_storage(), 2 * MIB, start + place * 4 * MIB)
        x = torch.empty(0, dtype=torch.uint8, device=device).set_(x.untyped_storage(), 0, (2 * MIB,))
        x.fill_(place)
        pieces.append((place, x))
    others = [tensor(device, 100, 2 * MIB) for _ in range(5)]

    assert [x.data_ptr() for _, x in pieces] == [start + place * 4 * MIB for place, _ in pieces]
    assert all(bool((x == place).all()) for place, x in pieces)
    spans = sorted((x.data_ptr(), x.data_ptr() + x.nbytes) for x in [*others, *(x for _, x in pieces)])
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert start <= spans[0][0]
    assert spans[-1][1] <= start + 16 * MIB


@pytest.mark.usefixtures("stream")
@pytest.mark.covers("test_cuda::TestResizeStorageWithAddr::test_resize_storage_with_addr_misaligned_address_errors")
@pytest.mark.parametrize("off", [1, 16, 256])
def test_resize_with_addr_refuses_an_unaligned_address(device: torch.device, off: int) -> None:
    """An address that is not a multiple of 512 bytes raises; the next multiple succeeds."""
    x = tensor(device, 1)
    address = emptied(x)

    with pytest.raises(RuntimeError, match=r"aligned to .*512"):
        resize_at(x.untyped_storage(), SIZE // 2, address + off)
    resize_at(x.untyped_storage(), SIZE // 2, address + 512)
    assert x.untyped_storage().data_ptr() == address + 512


@pytest.mark.usefixtures("stream")
@pytest.mark.covers("test_cuda::TestResizeStorageWithAddr::test_resize_storage_with_addr_recovers_viewed_slices")
def test_resize_with_addr_makes_views_valid_again(device: torch.device) -> None:
    """Views of a tensor whose memory was freed are valid again once the storage is restored at its address."""
    x = tensor(device, 1)
    first, last = x[: SIZE // 2], x[SIZE // 2 :]
    address = emptied(x)

    resize_at(x.untyped_storage(), SIZE, address)
    x.fill_(4)
    last.fill_(6)

    assert bool((first == 4).all())
    assert bool((x[SIZE // 2 :] == 6).all())
    assert last.data_ptr() == address + SIZE // 2


@pytest.mark.usefixtures("stream")
@pytest.mark.covers("test_cuda::TestResizeStorageWithAddr::test_resize_storage_with_addr_requires_zero_sized_source")
def test_resize_with_addr_refuses_a_storage_that_has_memory(device: torch.device) -> None:
    """A storage that has memory raises and keeps its memory and values."""
    free = tensor(device, 1)
    address = emptied(free)
    x = tensor(device, 2, MIB * 2)

    place = x.data_ptr()

    with pytest.raises(RuntimeError, match="zero-sized"):
        resize_at(x.untyped_storage(), SIZE, address)

    assert x.data_ptr() == place
    assert x.untyped_storage().nbytes() == MIB * 2
    assert bool((x == 2).all())


@pytest.mark.usefixtures("stream")
@pytest.mark.covers("test_cuda::TestResizeStorageWithAddr::test_resize_storage_with_size_zero_ignores_addr")
def test_resize_with_addr_of_zero_bytes_ignores_the_address(device: torch.device) -> None:
    """With a size of zero, the address is ignored and the storage stays empty."""
    x = tensor(device, 1)
    emptied(x)

    resize_at(x.untyped_storage(), 0, 0xDEADBEEF)

    assert x.untyped_storage().nbytes() == 0


@pytest.mark.usefixtures("stream")
@pytest.mark.covers("test_cuda::TestResizeStorageWithAddr::test_resize_storage_with_coalesced_small_prefixes")
def test_resize_with_addr_splits_merged_small_blocks(device: torch.device) -> None:
    """Each of several adjacent small blocks that were freed and merged can be allocated again at its address."""
    tensors = [tensor(device, value, 1024) for value in range(8)]
    addresses = [emptied(x) for x in tensors]

    for x, address in reversed(list(zip(tensors, addresses, strict=True))):
        resize_at(x.untyped_storage(), 1024, address)
    for value, x in enumerate(tensors):
        x.fill_(value + 50)

    assert [x.data_ptr() for x in tensors] == addresses
    assert all(bool((x == value + 50).all()) for value, x in enumerate(tensors))


@pytest.mark.requires(device="cuda")
def test_resize_with_addr_refuses_an_address_in_no_segment(device: torch.device) -> None:
    """An address outside of the allocator's segments raises, and the storage stays empty."""
    x = torch.empty(0, dtype=torch.uint8, device=device)

    with pytest.raises(RuntimeError, match=f"exact address {1 << 44:#x}"):
        resize_at(x.untyped_storage(), SIZE, 1 << 44)

    assert x.untyped_storage().nbytes() == 0
