"""Copies of types that few kernels support: float8, float4, complex32, unsigned 16 to 64 bits.

`test_round_trips.py` has the others. Types of fewer than 8 bits (`int4`, `uint1`, …) and `bits8` to `bits16` have no
kernels, not even for copies of all their elements, and quantized types are deprecated; no case has them.
"""

from __future__ import annotations

import pytest
import torch

from ..synchronizing import synchronize
from .bit_patterns import bits, name, pattern
from .test_round_trips import NON_BLOCKING

RARE = [
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
    torch.float4_e2m1fn_x2,
    torch.complex32,
]


TYPE = pytest.mark.parametrize("dtype", RARE, ids=name)
#: torch has kernels of float4 for copies of whole tensors only.
BY_KERNELS = pytest.mark.parametrize("dtype", [dtype for dtype in RARE if dtype != torch.float4_e2m1fn_x2], ids=name)

pytestmark = pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")


def every_pattern(dtype: torch.dtype, more: int = 0) -> torch.Tensor:
    """Return all patterns of 8- and 16-bit types in order, or mixed bytes for wider types; then `more` mixed ones."""
    width = dtype.itemsize
    if width <= 2:
        counted = torch.arange(1 << 8 * width, dtype=torch.int32)
        first = torch.stack([counted >> 8 * byte & 255 for byte in range(width)], dim=1).to(torch.uint8).flatten()
    else:
        ends = [byte for value in (0, 1, 127, 128, 255) for byte in [value] * width]
        first = torch.tensor(ends, dtype=torch.uint8)
    return torch.cat([first, pattern(width * (4099 + more))]).view(dtype)


@TYPE
@NON_BLOCKING
def test_to_and_copy_keep_each_bit(device: torch.device, dtype: torch.dtype, non_blocking: bool) -> None:
    """`to`, `copy_` and `clone` keep each bit pattern, to the device, on it, and back."""
    x = every_pattern(dtype, more=100 * non_blocking)
    sent = bits(x).clone()

    there = x.to(device, non_blocking=non_blocking, copy=True)
    twice = there.clone()
    filled = torch.empty_like(x, device=device).copy_(x, non_blocking=non_blocking)
    back = twice.to("cpu", non_blocking=non_blocking, copy=True)
    host = torch.empty_like(x).copy_(filled, non_blocking=non_blocking)
    synchronize(device)

    assert (there.dtype, there.device) == (dtype, device)
    for copy in (there, twice, filled, back, host):
        assert torch.equal(bits(copy), sent)
    assert torch.equal(bits(x), sent)


@pytest.mark.requires(pinned_memory=True)
@pytest.mark.requires(accelerator=True)
@TYPE
@NON_BLOCKING
def test_pinned_memory_keeps_each_bit(device: torch.device, dtype: torch.dtype, non_blocking: bool) -> None:
    """Copies from and to pinned memory keep each bit pattern."""
    x = every_pattern(dtype)
    pinned = x.pin_memory()

    there = pinned.to(device, non_blocking=non_blocking)
    back = torch.empty_like(x, pin_memory=True).copy_(there, non_blocking=non_blocking)
    synchronize(device)

    assert pinned.is_pinned()
    assert torch.equal(bits(there), bits(x))
    assert torch.equal(bits(back), bits(x))


@BY_KERNELS
def test_copies_with_strides_keep_each_bit(device: torch.device, dtype: torch.dtype) -> None:
    """Copies of every other element, transposed and by odd slices keep each bit; elements between do not change."""
    x = every_pattern(dtype)[: (len(every_pattern(dtype)) // 3) * 3]
    there = x.to(device)
    spread = torch.zeros(2 * len(x), dtype=torch.uint8 if dtype.itemsize == 1 else dtype, device=device).view(dtype)

    spread[1::2].copy_(there)
    gathered = spread[1::2].contiguous()
    turned = there.view(3, -1).t().contiguous()
    piece = torch.empty_like(there[5:-7]).copy_(there[5:-7])
    synchronize(device)

    assert torch.equal(bits(gathered), bits(x))
    assert torch.equal(bits(spread[1::2].cpu()), bits(x))
    assert not bits(spread[::2].contiguous()).any()
    assert torch.equal(bits(turned.t().contiguous()), bits(x))
    assert torch.equal(bits(piece), bits(x[5:-7]))


@pytest.mark.requires(accelerator=True, devices=2)
@TYPE
@NON_BLOCKING
def test_copies_between_devices_keep_each_bit(device: torch.device, dtype: torch.dtype, non_blocking: bool) -> None:
    """A copy from one device to another and back keeps each bit pattern."""
    x, other = every_pattern(dtype), torch.device(device.type, 1)

    there = x.to(device).to(other, non_blocking=non_blocking)
    back = there.to(device, non_blocking=non_blocking)
    for place in (device, other):
        synchronize(place)

    assert there.device == other
    assert torch.equal(bits(there), bits(x))
    assert torch.equal(bits(back), bits(x))


@BY_KERNELS
def test_cat_and_stack_keep_each_bit(device: torch.device, dtype: torch.dtype) -> None:
    """Concatenation and stacking, which copy with their own kernels, keep each bit pattern."""
    x = every_pattern(dtype)
    there = x.to(device)

    joined = torch.cat([there[:77], there[77:]])
    stacked = torch.stack([there, there])

    assert torch.equal(bits(joined), bits(x))
    assert torch.equal(bits(stacked), torch.cat([bits(x), bits(x)]))
