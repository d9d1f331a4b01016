"""Large copies, each byte checked: from the host, to it, on the device and between devices.

Each eight bytes are the index of their element times an odd constant. All are different, so a shift, a repetition or a
lost part is found wherever it is. Both the device, with its own arithmetic, and the host, with NumPy's, compare each
byte. Sizes are on both sides of powers of two, at which drivers change from one transfer to several, up to 4 GiB.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from ..synchronizing import synchronize

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
#: An odd number, so that each product modulo 2^64 occurs once.
FACTOR = 0x9E3779B97F4A7C15
#: Bytes that are generated and compared at a time.
PIECE = 8 * MIB


def large(size: int, memory: str) -> Any:
    """Return a size for GPUs with this much memory. Sizes up to 64 MiB also run on the CPU."""
    marks = pytest.mark.requires(silicon=True, memory=f">={memory}", free_memory=f">={memory}")
    return pytest.param(size, marks=[marks, pytest.mark.timeout(900)])


SIZES: list[Any] = [
    16 * MIB - 1,
    16 * MIB,
    16 * MIB + 1,
    32 * MIB + 4097,
    64 * MIB - 3,
    large(256 * MIB + 1, "2GiB"),
    large(GIB - 1, "4GiB"),
    large(2 * GIB - 1, "6GiB"),
    large(2 * GIB + 1, "6GiB"),
    large(4 * GIB, "12GiB"),
    large(4 * GIB + 9, "12GiB"),
]
SIZE = pytest.mark.parametrize("size", SIZES, ids=lambda size: str(size))
PINNED = pytest.mark.parametrize(
    "pinned",
    [False, pytest.param(True, marks=pytest.mark.requires(accelerator=True, pinned_memory=True))],
    ids=["pageable", "pinned"],
)


def pieces(size: int) -> Iterator[tuple[int, int]]:
    """Yield the beginning and the end of each piece of a size."""
    for begin in range(0, size, PIECE):
        yield begin, min(begin + PIECE, size)


def expected(begin: int, end: int) -> np.ndarray[Any, Any]:
    """Return the bytes between two places, computed by NumPy. The first place is a multiple of eight."""
    places = np.arange(begin // 8, -(-end // 8), dtype=np.uint64)
    return (places * np.uint64(FACTOR)).view(np.uint8)[: end - begin]


def made(size: int, *, pinned: bool = False) -> torch.Tensor:
    """Return the pattern on the host."""
    x = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    bytes_of = x.numpy()
    for begin, end in pieces(size):
        bytes_of[begin:end] = expected(begin, end)
    return x


def assert_on_host(x: torch.Tensor, size: int) -> None:
    """Check each byte with NumPy, and name the first wrong one."""
    found = x.numpy()
    for begin, end in pieces(size):
        wanted = expected(begin, end)
        if not np.array_equal(found[begin:end], wanted):
            place = begin + int(np.argmax(found[begin:end] != wanted))
            raise AssertionError(f"byte {place} of {size} is {found[place]}, expected {wanted[place - begin]}")


def assert_on_device(x: torch.Tensor, size: int) -> None:
    """Check each byte with the device's own arithmetic, in whole numbers of 64 bits that wrap."""
    factor = FACTOR - (1 << 64)
    for begin, end in pieces(size):
        places = torch.arange(begin // 8, -(-end // 8), dtype=torch.int64, device=x.device)
        wanted = (places * factor).view(torch.uint8)[: end - begin]
        assert torch.equal(x[begin:end], wanted), f"bytes {begin} to {end} of {size} differ on the device"


@SIZE
@PINNED
@pytest.mark.parametrize("non_blocking", [False, True], ids=["blocking", "non_blocking"])
def test_to_and_back_keeps_each_byte_of_a_large_copy(
    device: torch.device, size: int, pinned: bool, non_blocking: bool
) -> None:
    """A copy to the device, and back into other memory of the host, keeps each byte."""
    x = made(size, pinned=pinned)

    there = x.to(device, non_blocking=non_blocking, copy=True)
    synchronize(device)
    assert_on_device(there, size)
    assert_on_host(x, size)
    x.zero_()
    x.copy_(there, non_blocking=non_blocking)
    synchronize(device)
    assert_on_host(x, size)


@SIZE
def test_clone_and_copy_keep_each_byte_of_a_large_copy(device: torch.device, size: int) -> None:
    """`clone`, and `copy_` into a part of other memory, keep each byte on the device and write nothing else."""
    there = made(size).to(device)

    twice = there.clone()
    assert_on_device(twice, size)
    del twice
    around = torch.full((size + 64,), 0x5A, dtype=torch.uint8, device=device)
    around[32 : 32 + size].copy_(there)
    synchronize(device)
    assert (around[:32] == 0x5A).all()
    assert (around[32 + size :] == 0x5A).all()
    assert_on_host(around[32 : 32 + size].cpu(), size)


@SIZE
@pytest.mark.parametrize("offset", [1, 3, 8])
def test_copies_from_odd_addresses_keep_each_byte(device: torch.device, size: int, offset: int) -> None:
    """A source that begins at any address keeps its bytes on the way to the device and back."""
    x = made(size)

    there = x[offset:].to(device, copy=True)
    back = torch.zeros(size, dtype=torch.uint8)
    back[offset:].copy_(there)
    back[:offset] = x[:offset]

    assert_on_host(back, size)


@pytest.mark.requires(accelerator=True, devices=2)
@SIZE
@pytest.mark.parametrize("non_blocking", [False, True], ids=["blocking", "non_blocking"])
def test_copies_between_devices_keep_each_byte_of_a_large_copy(
    device: torch.device, size: int, non_blocking: bool
) -> None:
    """A copy from each device to each other device keeps each byte."""
    x = made(size)
    count = torch.get_device_module(device).device_count()

    for source in range(count):
        first = x.to(torch.device(device.type, source))
        for target in range(count):
            if source == target:
                continue
            place = torch.device(device.type, target)
            there = first.to(place, non_blocking=non_blocking)
            for each in (first.device, place):
                synchronize(each)
            assert there.device == place
            assert_on_device(there, size)
            assert_on_host(there.cpu(), size)
            del there


@pytest.mark.parametrize(
    "size", [4 * MIB + 3, 20 * MIB, large(GIB // 4, "6GiB"), large(GIB + 1, "12GiB")], ids=lambda size: str(size)
)
@pytest.mark.parametrize("source", ["int32", pytest.param("float32", marks=pytest.mark.types("float64"))])
def test_large_copies_that_convert_keep_each_number(device: torch.device, size: int, source: str) -> None:
    """A large copy that widens its elements, in both directions, keeps each number."""
    count = size // 4
    x = torch.empty(count, dtype=getattr(torch, source))
    for begin, end in pieces(count):
        x.numpy()[begin:end] = np.arange(begin, end) * 7919 % 16_777_213
    wider = torch.float64 if source == "float32" else torch.int64

    there = x.to(device, wider)
    back = there.to("cpu", getattr(torch, source))

    for begin, end in pieces(count):
        wanted = np.arange(begin, end) * 7919 % 16_777_213
        assert np.array_equal(there[begin:end].cpu().numpy(), wanted)
        assert np.array_equal(back.numpy()[begin:end], wanted)


def test_the_pattern_shows_one_wrong_byte() -> None:
    """Control: a wrong byte, a shift by eight bytes and a repeated piece are found."""
    size = 2 * PIECE + 5
    for spoil in ("bit", "shift", "repeat"):
        x = made(size)
        assert_on_host(x, size)
        if spoil == "bit":
            x[size - 1] ^= 1
        elif spoil == "shift":
            x[:-8] = x[8:].clone()
        else:
            x[PIECE : 2 * PIECE] = x[:PIECE].clone()
        with pytest.raises(AssertionError, match="expected"):
            assert_on_host(x, size)
