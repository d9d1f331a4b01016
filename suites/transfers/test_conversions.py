"""Copies between host and device that change the type: the same values as the host's own conversion."""

from __future__ import annotations

import itertools

import pytest
import torch

from .test_round_trips import NON_BLOCKING, settle

TYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
]
PAIRS = [pair for pair in itertools.product(TYPES, TYPES) if pair[0] != pair[1]]


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def values(dtype: torch.dtype) -> torch.Tensor:
    """Numbers that every type can hold: a conversion of them is defined."""
    return (torch.arange(1000) % 100).to(dtype)


@pytest.mark.covers("test_cuda::TestCuda::test_copy_non_blocking_type_conversion")
@NON_BLOCKING
@pytest.mark.parametrize(("source", "target"), PAIRS, ids=[f"{name(a)}-{name(b)}" for a, b in PAIRS])
@pytest.mark.filterwarnings("ignore:Casting complex values to real")
def test_a_copy_converts_as_the_host_does(
    device: torch.device, source: torch.dtype, target: torch.dtype, non_blocking: bool
) -> None:
    """Contract: `to` and `copy_` with another type, to the device and from it, give what the conversion gives on the
    host."""
    x = values(source)
    expected = values(source).to(target)

    there = x.to(device, target, non_blocking=non_blocking)
    filled = torch.empty_like(expected, device=device).copy_(x, non_blocking=non_blocking)
    back = x.to(device).to("cpu", target, non_blocking=non_blocking)
    host = torch.empty_like(expected).copy_(x.to(device), non_blocking=non_blocking)
    settle(device)

    assert (there.dtype, there.device) == (target, device)
    for result in (there, filled, back, host):
        assert torch.equal(result.cpu(), expected)


def test_rounding_is_to_nearest_even(device: torch.device) -> None:
    """Contract: float32 to bfloat16 and float16 rounds to the nearest, halves to even, on the way as on the host; what
    is too large for float16 is infinite, NaN stays NaN."""
    x = torch.tensor([1.0, 1.00390625, 1.01171875, 2049.0, 2051.0, 65_519.0, 65_520.0, 1e30, -1e30, 1e-8, float("nan")])

    for dtype in (torch.bfloat16, torch.float16):
        there = x.to(device, dtype).cpu()
        assert torch.equal(there.nan_to_num(nan=7.0), x.to(dtype).nan_to_num(nan=7.0))
    assert x.to(device, torch.float16).cpu()[1:8].tolist()[2:] == [2048, 2052, 65_504, float("inf"), float("inf")]
    assert x.to(device, torch.float16).isnan().tolist() == [False] * 10 + [True]


def test_fractions_are_cut_towards_zero(device: torch.device) -> None:
    """Contract: a float becomes an integer by dropping its fraction, towards zero, on either side of it; a bool by
    being other than zero, NaN and the smallest number too."""
    x = torch.tensor([0.0, -0.0, 0.5, 0.999, 1.5, -0.5, -1.5, -2.999, 1e-40, 100.25])

    assert x.to(device, torch.int32).tolist() == [0, 0, 0, 0, 1, 0, -1, -2, 0, 100]
    assert x.to(device).to("cpu", torch.int8).tolist() == [0, 0, 0, 0, 1, 0, -1, -2, 0, 100]
    truth = torch.tensor([0.0, -0.0, 0.5, float("nan"), float("inf"), -3.0]).to(device, torch.bool)
    assert truth.tolist() == [False, False, True, True, True, True]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32], ids=name)
def test_integers_wrap(device: torch.device, dtype: torch.dtype) -> None:
    """Contract: an integer too large for the target keeps its low bits, on the way as on the host."""
    x = torch.tensor([0, 127, 128, 255, 256, 300, -1, -129, 1 << 15, (1 << 31) - 1, 1 << 31, 1 << 40, -(1 << 40) - 3])

    assert torch.equal(x.to(device, dtype).cpu(), x.to(dtype))
    assert torch.equal(x.to(device).to("cpu", dtype), x.to(dtype))


def test_conversion_and_layout_together(device: torch.device) -> None:
    """Contract: a copy may change type, device and strides at once; a target of other strides gets the values where
    they belong."""
    x = torch.arange(600, dtype=torch.int32).view(20, 30)

    target = torch.full((30, 20), -1.0, dtype=torch.float64, device=device).t()
    target[::2, 3:].copy_(x[::2, 3:], non_blocking=True)
    settle(device)

    expected = torch.full((20, 30), -1.0, dtype=torch.float64)
    expected[::2, 3:] = x[::2, 3:].double()
    assert torch.equal(target.cpu(), expected)
    assert torch.equal(x.to(device).t()[5:].to("cpu", torch.float32), x.t()[5:].float())
