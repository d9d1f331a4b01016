"""Storages that get back the very address they had (`UntypedStorage._resize_with_addr_`), from cached memory."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch

from ._torch_private import resize_at
from .limits import MIB, settle

pytestmark = [pytest.mark.requires(device="cuda", torch=">=2.13"), pytest.mark.timeout(300)]

SIZE = 4 * MIB


@pytest.fixture(autouse=True)
def nothing_stays(device: torch.device) -> Iterator[None]:
    settle(device)
    yield
    gc.collect()
    settle(device)


@pytest.fixture
def stream(device: torch.device) -> Iterator[torch.cuda.Stream]:
    """A stream on which the case allocates, so that its segments are its own."""
    mine = torch.cuda.Stream(device)
    with torch.cuda.stream(mine):
        yield mine


def tensor(device: torch.device, value: int, size: int = SIZE) -> torch.Tensor:
    return torch.full((size,), value, dtype=torch.uint8, device=device)


def emptied(x: torch.Tensor) -> int:
    """Free a tensor's memory and keep the tensor; where it was."""
    address = x.data_ptr()
    x.untyped_storage().resize_(0)
    return address


@pytest.mark.usefixtures("stream")
@pytest.mark.covers("test_cuda::TestResizeStorageWithAddr::test_resize_storage_with_addr_exact_allocation")
def test_resize_with_addr_gets_a_free_block_by_its_address(device: torch.device) -> None:
    """Contract: a block that was freed is given again at its address, counted as allocated, and holds what is written
    to it."""
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
    """Contract: an address at which something lives is refused, and that is whole."""
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
    """Contract: of a free range, stretches in its middle can be had, in any order: each is at its address, what is left
    over before, between and behind them can be allocated, and nothing overlaps."""
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
    """Contract: an address that no block could have, since blocks begin at multiples of 512 bytes, is refused; the next
    one that a block can have is given."""
    x = tensor(device, 1)
    address = emptied(x)

    with pytest.raises(RuntimeError, match=r"aligned to .*512"):
        resize_at(x.untyped_storage(), SIZE // 2, address + off)
    resize_at(x.untyped_storage(), SIZE // 2, address + 512)
    assert x.untyped_storage().data_ptr() == address + 512


@pytest.mark.usefixtures("stream")
@pytest.mark.covers("test_cuda::TestResizeStorageWithAddr::test_resize_storage_with_addr_recovers_viewed_slices")
def test_resize_with_addr_makes_views_valid_again(device: torch.device) -> None:
    """Contract: slices of a tensor whose memory was freed look at it again once it has its address back."""
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
    """Contract: only an empty storage can be put somewhere; one that has memory keeps it, with its values."""
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
    """Contract: with a size of zero the address is not looked at, and the storage stays empty."""
    x = tensor(device, 1)
    emptied(x)

    resize_at(x.untyped_storage(), 0, 0xDEADBEEF)

    assert x.untyped_storage().nbytes() == 0


@pytest.mark.usefixtures("stream")
@pytest.mark.covers("test_cuda::TestResizeStorageWithAddr::test_resize_storage_with_coalesced_small_prefixes")
def test_resize_with_addr_takes_joined_small_blocks_apart(device: torch.device) -> None:
    """Contract: of small blocks in a row that were freed and so became one, each can be had again at its address."""
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
    """Contract: an address in no segment of the allocator's is refused, and the storage stays empty."""
    x = torch.empty(0, dtype=torch.uint8, device=device)

    with pytest.raises(RuntimeError, match=f"exact address {1 << 44:#x}"):
        resize_at(x.untyped_storage(), SIZE, 1 << 44)

    assert x.untyped_storage().nbytes() == 0
