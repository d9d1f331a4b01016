"""Sums, means and norms in half precision, at overflow, underflow and rounding.

Sums of 16-bit numbers are accumulated at least in float32. Only the result and, on the CPU, the partial sum of each
thread are rounded to the dtype.
"""

from __future__ import annotations

import pytest
import torch

from .lengths import LENGTHS, name, unit

HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["fp16", "bf16"])
SIZES = pytest.mark.parametrize("size", LENGTHS)


@pytest.mark.covers("test_cuda::TestCuda::test_sum_fp16")
def test_sum_at_the_end_of_float16(device: torch.device) -> None:
    """The sum of 65504 float16 ones is exact, and that of 65536 is infinite, or exact with dtype float32."""

    def ones(count: int) -> torch.Tensor:
        return torch.ones(count, device=device, dtype=torch.float16)

    assert torch.zeros(10, device=device, dtype=torch.float16).sum().item() == 0
    assert ones(65504).sum().item() == 65504
    assert ones(65504).sum(dtype=torch.float32).item() == 65504
    assert ones(65536).sum().item() == float("inf")
    assert ones(65536).sum(dtype=torch.float32).item() == 65536


@pytest.mark.covers("test_cuda::TestCuda::test_sum_fp16")
@HALVES
def test_sum_counts_few_ones_among_many_zeros(device: torch.device, dtype: torch.dtype) -> None:
    """Every one of some hundred ones among more than a million elements is counted, also along dimensions.

    The number of ones is within what the dtype can count (2048 in float16, 256 in bfloat16), so the sum is exact for
    any split into parts.
    """
    flat = torch.zeros(1_203_611).bernoulli_(0.0005 if dtype == torch.float16 else 0.0001)
    block = torch.zeros(100, 121, 80).bernoulli_(0.0005)

    assert 50 < flat.sum() <= 2 / torch.finfo(dtype).eps
    assert flat.to(device, dtype).sum().item() == flat.count_nonzero().item()
    ones = [row.count_nonzero().item() for row in block.movedim(1, 0)]
    assert block.to(device, dtype).sum((0, 2)).tolist() == ones


@HALVES
@SIZES
def test_sum_of_half_precision_is_accumulated_in_float32(device: torch.device, dtype: torch.dtype, size: int) -> None:
    """A half-precision sum is within a bound for float32 accumulation, which accumulation in the dtype exceeds.

    The bound is one rounding of the result, one of each of two partial sums, which are at most twice the largest prefix
    sum, and 64 float32 roundings of the terms' magnitudes.
    """
    x = torch.randn(size).abs().to(dtype)
    exact, leading = x.double().sum(), x.double().cumsum(0).abs().max()

    found = x.to(device).sum()

    allowed = unit(dtype) * (exact.abs() + 2 * leading) + 64 * 2.0**-24 * x.double().abs().sum()
    assert found.dtype == dtype
    if not found.isinf():
        assert (found.cpu().double() - exact).abs() <= allowed
    else:
        assert exact > torch.finfo(dtype).max * (1 - 2 * unit(dtype))
    if size == 4097:
        by_hand = torch.zeros((), dtype=dtype)
        for term in x:
            by_hand += term
        assert (by_hand.double() - exact).abs() > allowed


@pytest.mark.covers("test_cuda::TestCuda::test_mean_fp16")
@HALVES
def test_mean_of_half_precision_does_not_overflow(device: torch.device, dtype: torch.dtype) -> None:
    """The mean of 65536 ones is 1, and the mean of two alternating numbers near the maximum is halfway between them."""
    ones = torch.ones(65536, device=device, dtype=dtype)
    # Multiples of 256, such as these and their mean, are representable in both dtypes.
    large = torch.tensor([59904.0, 49664.0], device=device, dtype=dtype).repeat(2048)

    assert ones.mean().item() == 1
    assert ones.mean(dtype=torch.float32).item() == 1
    assert large.mean().item() == 54784
    assert large.reshape(64, 64).mean(1).tolist() == [54784] * 64
    assert large.reshape(64, 64).mean(0).tolist() == [59904, 49664] * 32


@pytest.mark.covers("test_cuda::TestCuda::test_tiny_half_norm_")
def test_norm_of_subnormal_float16_is_not_zero(device: torch.device) -> None:
    """The norm of float16 subnormals, whose squares underflow, equals the float64 norm within a rounding.

    The tolerance is half a float16 subnormal step, 2^-25, plus a float32 rounding.
    """
    numbers = (torch.arange(25).float() / 100_000_000).half()
    exact = numbers.double().norm().item()

    found = numbers.to(device).norm().item()

    assert found > 0
    assert found == pytest.approx(exact, rel=0, abs=2.0**-25 + 1e-12)


@pytest.mark.covers("test_cuda::TestCuda::test_norm_type_conversion")
@pytest.mark.parametrize("order", [0, 1, 2])
def test_norm_with_dtype_float32_does_not_overflow(device: torch.device, order: int) -> None:
    """`norm(dtype=torch.float32)` of float16 numbers is computed in float32: 65536 twos have exact norms."""
    numbers = torch.tensor([2.0, 0.0, -2.0], device=device, dtype=torch.float16).repeat(32768)

    found = numbers.norm(p=order, dtype=torch.float32)

    assert found.dtype == torch.float32
    assert found.item() == (65536, 131072, 512)[order]


@HALVES
@pytest.mark.parametrize("order", [0.0, 1.0, 2.0, 3.0, float("inf"), float("-inf")])
def test_vector_norm_is_that_of_float64(device: torch.device, dtype: torch.dtype, order: float) -> None:
    """Norms along a dimension equal their float64 formulas.

    The tolerance covers the result's rounding, those of 300 float32 terms, and powers and roots for orders above two
    (together below 1e-4). The values include zeros, which order zero does not count and which are the minimum.
    """
    x = torch.randn(300, 5).to(dtype)
    x[::7, 0] = 0
    sizes = x.double().abs()
    if order in (float("inf"), float("-inf")):
        exact = sizes.amax(0) if order > 0 else sizes.amin(0)
    else:
        exact = (sizes**order).sum(0) ** (1 / order) if order else (sizes > 0).double().sum(0)

    found = torch.linalg.vector_norm(x.to(device), order, dim=0)

    assert found.dtype == dtype
    torch.testing.assert_close(found.cpu().double(), exact, rtol=unit(dtype) * 1.01 + 1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=name)
def test_to_float32_and_back_keeps_all_half_precision_patterns(device: torch.device, dtype: torch.dtype) -> None:
    """Each of the 65536 bit patterns converts to the float32 value computed from its bits, and back to itself.

    NaN patterns stay NaN.
    """
    bits = torch.arange(1 << 16, dtype=torch.int32)
    x = bits.to(torch.int16).view(dtype)
    mantissa_bits, bias = (10, 15) if dtype == torch.float16 else (7, 127)
    exponent, mantissa = (bits & 0x7FFF) >> mantissa_bits, bits & ((1 << mantissa_bits) - 1)
    normal = exponent > 0
    size = (mantissa + normal * (1 << mantissa_bits)).double() * torch.pow(
        torch.tensor(2.0, dtype=torch.float64), exponent.clamp(min=1) - bias - mantissa_bits
    )
    value = torch.where(bits >= 1 << 15, -size, size)
    finite = exponent < exponent.max()

    wide = x.to(device).float()
    back = wide.to(dtype).cpu()

    assert torch.equal(wide.cpu().double()[finite], value[finite])
    assert torch.equal(wide.cpu().isnan(), ~finite & (mantissa > 0))
    assert wide.cpu()[~finite & (mantissa == 0)].tolist() == [float("inf"), float("-inf")]
    assert torch.equal(back.view(torch.int16)[~wide.cpu().isnan()], x.view(torch.int16)[~wide.cpu().isnan()])
    assert back[wide.cpu().isnan()].isnan().all()
