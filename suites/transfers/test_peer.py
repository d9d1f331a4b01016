"""Copies between devices: values, order, and every layout."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from ..streams.busy import NOT_SHOWN, POISON, TRIALS, calibrate, seen_in_trials, sleep_on
from .bit_patterns import DTYPE, bit_patterns, bits, pattern
from .test_round_trips import LAYOUT, NON_BLOCKING, SIZE

pytestmark = pytest.mark.requires(accelerator=True, devices=2)


@pytest.fixture
def other(device: torch.device) -> torch.device:
    """Return the second of the two devices."""
    return torch.device(device.type, 1)


def settle() -> None:
    for index in range(2):
        torch.accelerator.synchronize(index)


@SIZE
@NON_BLOCKING
def test_peer_copy_keeps_every_byte(device: torch.device, other: torch.device, size: int, non_blocking: bool) -> None:
    """A tensor copied to another device, back, and to the host is unchanged, for any size."""
    sent = pattern(size) ^ (0x55 * non_blocking)  # memory reused from the previous case has other bytes
    x = sent.to(device)

    there = x.to(other, non_blocking=non_blocking)
    again = there.to(device, non_blocking=non_blocking)
    settle()

    assert (there.device, again.device) == (other, device)
    assert torch.equal(there.cpu(), sent)
    assert torch.equal(again.cpu(), sent)


@DTYPE
def test_peer_copy_keeps_every_dtype_bit_by_bit(device: torch.device, other: torch.device, dtype: torch.dtype) -> None:
    """A copy between devices, in either direction, preserves every bit pattern."""
    x = bit_patterns(dtype)

    assert torch.equal(bits(x.to(device).to(other)), bits(x))
    turned = x.flip(0)  # memory reused from `x` does not contain it
    assert torch.equal(bits(turned.to(other).to(device)), bits(turned))


@LAYOUT
def test_peer_copy_keeps_every_layout(
    device: torch.device, other: torch.device, make: Callable[[], torch.Tensor]
) -> None:
    """A copy of a view to a view on another device preserves shape and values, and writes nothing else."""
    x = make()
    target = torch.full([size + 1 for size in x.shape], -7.0, dtype=x.dtype, device=other)
    part = target[tuple(slice(1, None) for _ in x.shape)]

    crossed = x.to(device).to(other)
    part.copy_(x.to(device))

    assert torch.equal(crossed.cpu(), x)
    assert torch.equal(part.cpu(), x)
    part.fill_(-7.0)
    assert (target == -7).all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.int32, torch.bool], ids=str)
def test_peer_copy_converts_dtype(device: torch.device, other: torch.device, dtype: torch.dtype) -> None:
    """A copy to another device may change the dtype, with the same rules as on the host."""
    numbers = [number / 4 for number in range(-50, 50)]
    kind = {torch.float64: float, torch.int32: int, torch.bool: bool}[dtype]
    x, expected = torch.tensor(numbers).to(device), [kind(number) for number in numbers]

    for moved in (x.to(other, dtype), torch.empty(100, dtype=dtype, device=other).copy_(x)):
        assert (moved.dtype, moved.device) == (dtype, other)
        assert moved.tolist() == expected


def test_peer_copy_has_separate_memory(device: torch.device, other: torch.device) -> None:
    """A copy on another device has separate memory; `to` with the tensor's own device returns the tensor itself."""
    x = torch.arange(100, device=device)
    copy = x.to(other)

    copy.add_(1)
    x.mul_(2)

    assert torch.equal(x.cpu(), torch.arange(100) * 2)
    assert torch.equal(copy.cpu(), torch.arange(100) + 1)
    assert copy.to(other) is copy


def test_peer_copy_source_may_be_changed_after_it_in_stream_order(device: torch.device, other: torch.device) -> None:
    """Work on the source's current stream after a copy between devices runs after the copy has read the source.

    The source is overwritten right after the call. The copy is also delayed by the target's stream, so an unordered
    overwrite would run first.
    """
    x = torch.zeros(1 << 18, dtype=torch.int32, device=device)
    target = torch.zeros(1 << 18, dtype=torch.int32, device=other)
    for each in (device, other):
        calibrate(each)

    for value in range(1, TRIALS + 1):
        x.fill_(value)
        settle()
        sleep_on(torch.accelerator.current_stream(other))
        target.copy_(x, non_blocking=True)
        x.fill_(POISON)
        settle()
        assert (target == value).all()


@pytest.mark.requires(asynchronous=True)
def test_peer_copy_source_that_is_dropped_has_been_read(device: torch.device, other: torch.device) -> None:
    """A source freed right after a copy to another device is not overwritten before the copy reads it.

    The copy is delayed, and its source's memory is reused meanwhile, which must be observed at least once.
    """
    calibrate(other)
    for each in (device, other):
        calibrate(each)
    torch.accelerator.empty_cache()

    def asleep(value: int) -> bool:
        x = torch.full((3 << 20,), value, dtype=torch.int32, device=device)
        settle()
        stream = torch.accelerator.current_stream(other)
        sleep_on(stream)
        target = x.to(other, non_blocking=True)
        at_work, address = not stream.query(), x.data_ptr()
        del x
        next_block = torch.full((3 << 20,), POISON, dtype=torch.int32, device=device)
        settle()
        assert (target == value).all()
        return at_work and next_block.data_ptr() == address

    assert seen_in_trials(asleep), NOT_SHOWN


# 2.11 warns about the two streams of two devices, as if they could be the same.
@pytest.mark.filterwarnings("ignore:The AccumulateGrad node's stream does not match:UserWarning")
def test_peer_copy_backward_gives_gradients_on_each_device(device: torch.device, other: torch.device) -> None:
    """A graph over two devices gives each leaf its gradient on its own device, with the CPU's values."""
    a = torch.arange(1.0, 5.0, device=device).requires_grad_()
    b = torch.arange(2.0, 6.0, device=other).requires_grad_()

    ((a.to(other) * b).to(device) + a).square().sum().backward()

    at, bt = torch.arange(1.0, 5.0, requires_grad=True), torch.arange(2.0, 6.0, requires_grad=True)
    (at * bt + at).square().sum().backward()
    for got, expected, where in ((a, at, device), (b, bt, other)):
        assert got.grad is not None
        assert expected.grad is not None
        assert got.grad.device == where
        assert torch.equal(got.grad.cpu(), expected.grad)


def test_peer_copies_in_both_directions_at_once(device: torch.device, other: torch.device) -> None:
    """Concurrent copies in both directions on separate streams do not affect each other."""
    here, there = torch.Stream(device), torch.Stream(other)
    sources = [[torch.full((10_000 + n,), n, device=each) for n in range(50)] for each in (device, other)]
    settle()

    moved: list[list[torch.Tensor]] = [[], []]
    for n in range(50):
        with here:
            moved[0].append(sources[0][n].to(other, non_blocking=True))
        with there:
            moved[1].append(sources[1][n].to(device, non_blocking=True))
    settle()

    for row in moved:
        assert [len(x) for x in row] == [10_000 + n for n in range(50)]
        assert [n for n, x in enumerate(row) if not bool((x == n).all())] == []
    assert {(x.device.index) for x in moved[0]} == {1}
    assert {(x.device.index) for x in moved[1]} == {0}
