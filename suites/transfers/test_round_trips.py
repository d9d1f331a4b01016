"""Round trips to the device and back: every dtype, shape and layout, as a whole and in parts."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ..synchronizing import synchronize
from .bit_patterns import DTYPE, bit_patterns, bits, pattern

#: Sizes around powers of two, where implementations change behavior, and a large odd one.
SIZES = [0, 1, 2, 3, 255, 256, 257, 4095, 4096, 4097, (1 << 16) + 1, (1 << 20) - 1, (1 << 22) + 12_345]
SIZE = pytest.mark.parametrize("size", SIZES)

PIN = pytest.mark.parametrize(
    "pinned",
    [False, pytest.param(True, marks=pytest.mark.requires(accelerator=True, pinned_memory=True))],
    ids=["pageable", "pinned"],
)
#: A copy to the host that does not block makes a pinned tensor.
NON_BLOCKING = pytest.mark.parametrize(
    "non_blocking",
    [False, pytest.param(True, marks=pytest.mark.requires(pinned_memory=True))],
    ids=["blocking", "non_blocking"],
)


def there_and_back(x: torch.Tensor, device: torch.device, *, non_blocking: bool) -> torch.Tensor:
    """Copy `x` to the device, clone it there, and copy it back."""
    there = x.to(device, non_blocking=non_blocking, copy=True)
    assert there.device == device
    back = there.clone().to("cpu", non_blocking=non_blocking, copy=True)
    synchronize(device)
    return back


@SIZE
@PIN
@NON_BLOCKING
def test_to_and_back_keeps_every_byte(device: torch.device, size: int, pinned: bool, non_blocking: bool) -> None:
    """A round trip preserves every byte, for any size, from pageable and pinned memory, blocking and non-blocking."""
    sent = pattern(size) ^ (0x55 * (2 * pinned + non_blocking))  # memory reused from earlier cases has other bytes
    x = sent.pin_memory() if pinned else sent.clone()

    back = there_and_back(x, device, non_blocking=non_blocking)

    assert torch.equal(back, sent)
    assert torch.equal(x, sent)


@DTYPE
def test_to_and_back_keeps_every_dtype_bit_by_bit(device: torch.device, dtype: torch.dtype) -> None:
    """A round trip preserves every bit pattern, including NaN payloads, infinities, negative zeros and subnormals.

    For 8- and 16-bit dtypes all patterns are tested. The same holds for elementwise copies with strides.
    """
    x = bit_patterns(dtype)
    size = len(x)
    strided = torch.stack([x, x.flip(0)], dim=1).to(device)[:, 0]
    target = torch.zeros(2 * size, dtype=dtype, device=device)

    back = there_and_back(x, device, non_blocking=False)
    gathered = strided.contiguous()
    target[1::2].copy_(x)
    synchronize(device)

    assert back.dtype == dtype
    assert torch.equal(bits(x), bits(bit_patterns(dtype)))
    for copy in (back, gathered, strided.cpu(), target[1::2]):
        assert torch.equal(bits(copy), bits(x))
    assert not bits(target[::2]).any()


LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "scalar": lambda: torch.tensor(3.5),
    "no_elements": lambda: torch.empty(0, 3),
    "transposed": lambda: torch.arange(60.0).view(3, 20).t(),
    "strided": lambda: torch.arange(100.0)[::3],
    "offset": lambda: torch.arange(100.0)[7:],
    "two_strides": lambda: torch.arange(400.0).view(20, 20)[1::2, 2::3],
    "permuted": lambda: torch.arange(120.0).view(2, 3, 4, 5).permute(3, 1, 0, 2),
    "channels_last": lambda: torch.arange(120.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "expanded": lambda: torch.arange(5.0)[:, None].expand(5, 7),
    "overlapping": lambda: torch.arange(10.0).as_strided((6, 4), (1, 1)),
    "conjugate": lambda: torch.view_as_complex(torch.arange(20.0).view(10, 2)).conj(),
    "negative_view": lambda: torch.view_as_complex(torch.arange(20.0).view(10, 2)).conj().imag,
    "flipped": lambda: torch.arange(30.0).view(5, 6).flip(0),
}
LAYOUT = pytest.mark.parametrize("make", LAYOUTS.values(), ids=LAYOUTS.keys())


def is_dense(x: torch.Tensor) -> bool:
    """Return whether the elements fill a block of memory without gaps or overlap, in any order."""
    return x.permute(sorted(range(x.dim()), key=x.stride, reverse=True)).is_contiguous()


@LAYOUT
@NON_BLOCKING
def test_to_and_back_keeps_every_layout(
    device: torch.device, make: Callable[[], torch.Tensor], non_blocking: bool
) -> None:
    """A round trip of a view preserves shape and values, and strides if the view is dense."""
    x = make()

    back = there_and_back(x, device, non_blocking=non_blocking)

    assert back.shape == x.shape
    assert torch.equal(back, x)
    if is_dense(x):
        assert back.stride() == x.stride()


def framed(values: Any, shape: torch.Size) -> Any:
    """Return the nested lists of a tensor with one more element, -7, at both ends of each dimension."""
    if not shape:
        return values
    edge: Any = -7.0
    for size in reversed(shape[1:]):
        edge = [edge] * (size + 2)
    return [edge, *(framed(row, shape[1:]) for row in values), edge]


@LAYOUT
def test_copy_writes_only_its_target(device: torch.device, make: Callable[[], torch.Tensor]) -> None:
    """`copy_` into a part of a larger tensor, in both directions, writes exactly that part.

    The expected value uses lists.
    """
    x = make()
    shape = [size + 2 for size in x.shape]
    inside = tuple(slice(1, size + 1) for size in x.shape)

    for source, place in ((x, device), (x.to(device), torch.device("cpu"))):
        target = torch.full(shape, -7.0, dtype=x.dtype, device=place)
        target[inside].copy_(source)
        synchronize(device)
        assert target.cpu().tolist() == framed(x.tolist(), x.shape)


def test_copy_of_slices_leaves_no_gap_or_overlap(device: torch.device) -> None:
    """A tensor copied in pieces of odd sizes at odd offsets is complete, and no piece affects its neighbors."""
    x, cuts = pattern(100_003), [0, 1, 2, 5, 64, 67, 1023, 1025, 4096, 8191, 65_537, 65_538, 99_999, 100_003]
    there = (~x).to(device)  # no byte is correct before its copy
    back = ~x

    pieces = list(itertools.pairwise(cuts))
    for begin, end in pieces[::2] + pieces[1::2]:
        there[begin:end].copy_(x[begin:end], non_blocking=True)
    for begin, end in pieces[1::2] + pieces[::2]:
        back[begin:end].copy_(there[begin:end])
    synchronize(device)

    assert torch.equal(back, x)


def test_copy_broadcasts_as_an_assignment_does(device: torch.device) -> None:
    """`copy_` from a smaller shape broadcasts; an incompatible shape raises and leaves the target unchanged."""
    target = torch.zeros(4, 3, device=device)

    target.copy_(torch.tensor([1.0, 2.0, 3.0]))
    assert target.cpu().tolist() == [[1, 2, 3]] * 4
    target.copy_(torch.arange(4.0)[:, None])
    assert target.cpu().tolist() == [[value] * 3 for value in range(4)]
    with pytest.raises(RuntimeError, match=r"size of tensor|shape|expand"):
        target.copy_(torch.ones(5))
    assert target.cpu().tolist() == [[value] * 3 for value in range(4)]


@pytest.mark.requires(pinned_memory=True)
def test_to_of_many_tensors_at_once(device: torch.device) -> None:
    """A hundred tensors in transit together, without synchronization, are all unchanged after the round trip."""
    sources = [pattern(1000 + 37 * number) + number for number in range(100)]

    there = [x.to(device, non_blocking=True) for x in sources]
    back = [x.to("cpu", non_blocking=True) for x in there]
    synchronize(device)

    assert [number for number, x in enumerate(back) if not torch.equal(x, sources[number])] == []
