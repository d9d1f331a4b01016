"""The operators that synchronized batch normalization consists of, compared with NumPy.

`nn.SyncBatchNorm` computes the mean of its own part, gathers all means, normalizes, and does the same for gradients.
Sums of n numbers below 4 in float32 are added in blocks: their mean is off by at most 64 roundings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from ._torch_private import aten
from .oracle import Array, assert_within, numbers, tensor, unit

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
#: Only CUDA has these operators, and the simulated CUDA has no CPU kernel to run in their place.
GPU = pytest.mark.requires(device="cuda", silicon=True)
EPS = 1e-5
AXES = (0, 2, 3)
LAST = pytest.mark.parametrize("last", [False, True], ids=["channels_first", "channels_last"])
TYPE = pytest.mark.parametrize("dtype", [F32, F16, BF16], ids=lambda dtype: str(dtype).removeprefix("torch."))
SHAPES = [(3, 5, 7, 9), (2, 64, 33, 31), (1, 3, 1, 130)]


@dataclass
class Batch:
    """Images on a device and the same numbers in NumPy, with their statistics."""

    x: torch.Tensor
    array: Array

    @classmethod
    def drawn(
        cls, rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, last: bool
    ) -> Batch:
        shift = rng.uniform(-2, 2, (1, shape[1], 1, 1))
        host = torch.from_numpy(rng.uniform(-1, 1, shape) + shift).to(dtype)
        form = torch.channels_last if last else torch.contiguous_format
        return cls(host.to(device).contiguous(memory_format=form), numbers(host))

    @property
    def mean(self) -> Array:
        return np.asarray(self.array.mean(AXES))

    @property
    def inverse(self) -> Array:
        return np.asarray(1 / np.sqrt(self.array.var(AXES) + EPS))

    @property
    def off(self) -> Array:
        """The distances from the mean."""
        return np.asarray(self.array - _wide(self.mean))


def _wide(values: Array) -> Array:
    return values.reshape(1, -1, 1, 1)


@pytest.mark.operator("batch_norm_stats", "batch_norm_elemt")
@GPU
@LAST
@TYPE
def test_batch_norm_stats_and_elemt(
    device: torch.device, rng: np.random.Generator, last: bool, dtype: torch.dtype
) -> None:
    """Mean and inverse deviation of each channel are in float32, and the normalized images in their type."""
    for shape in SHAPES:
        batch = Batch.drawn(rng, shape, dtype, device, last)
        mean, inverse = aten("batch_norm_stats.default")(batch.x, EPS)
        assert mean.dtype == inverse.dtype == F32
        assert_within(mean, batch.mean, 64 * unit(F32) * 4)
        assert_within(inverse, batch.inverse, 512 * unit(F32) * batch.inverse)
        weight, bias = rng.uniform(0.5, 1.5, shape[1]), rng.uniform(-1, 1, shape[1])
        found = aten("batch_norm_elemt.default")(
            batch.x, tensor(weight, F32, device), tensor(bias, F32, device), mean, inverse, EPS
        )
        wanted = batch.off * _wide(batch.inverse * weight) + _wide(bias)
        assert found.dtype == dtype
        assert_within(found, wanted, 2 * unit(dtype) * (np.abs(wanted) + 1) + 2048 * unit(F32) * np.abs(wanted).max())


@pytest.mark.operator("batch_norm_gather_stats_with_counts")
@GPU
@pytest.mark.parametrize("parts", [1, 3, 70])
def test_batch_norm_gather_stats_with_counts_joins_the_parts(
    device: torch.device, rng: np.random.Generator, parts: int
) -> None:
    """Mean and deviation of all parts together are weighted by counts; the running ones use the unbiased variance."""
    channels = 9
    counts = rng.integers(2, 40, parts).astype(np.float64)
    rows = [rng.uniform(-1, 1, (int(count), channels)) + rng.uniform(-1, 1) for count in counts]
    means = np.stack([row.mean(0) for row in rows])
    inverses = np.stack([1 / np.sqrt(row.var(0) + EPS) for row in rows])
    running = [tensor(np.linspace(low, low + 1, channels), F32, device) for low in (0, 1)]
    before = [numbers(each) for each in running]

    mean, inverse = aten("batch_norm_gather_stats_with_counts.default")(
        tensor(np.zeros((2, channels, 3)), F32, device), tensor(means, F32, device), tensor(inverses, F32, device),
        *running, 0.25, EPS, tensor(counts, F32, device),
    )  # fmt: skip

    whole = np.concatenate(rows)
    assert_within(mean, whole.mean(0), 256 * unit(F32) * 2)
    assert_within(inverse, 1 / np.sqrt(whole.var(0) + EPS), 4096 * unit(F32) * 4)
    for each, old, new in zip(running, before, (whole.mean(0), whole.var(0, ddof=1)), strict=True):
        assert_within(each, 0.75 * old + 0.25 * new, 1024 * unit(F32) * 4)


@pytest.mark.operator("batch_norm_backward_reduce", "batch_norm_backward_elemt")
@GPU
@LAST
@TYPE
def test_batch_norm_backward_reduce_and_elemt(
    device: torch.device, rng: np.random.Generator, last: bool, dtype: torch.dtype
) -> None:
    """Sums of gradients, alone and times the distance from the mean, and gradients of the images equal NumPy's."""
    for shape in SHAPES:
        batch, slope = (Batch.drawn(rng, shape, dtype, device, last) for _ in range(2))
        weight = rng.uniform(0.5, 1.5, shape[1])
        given = [tensor(each, F32, device) for each in (batch.mean, batch.inverse, weight)]
        count = batch.array.size // shape[1]

        sums = aten("batch_norm_backward_reduce.default")(slope.x, batch.x, *given, True, True, True)

        total = slope.array.sum(AXES)
        moment = (slope.array * batch.off).sum(AXES)
        size = 256 * unit(F32) * 4 * count * max(1, batch.inverse.max())
        # The kernel for channels first rounds each product of a gradient and a distance to the type of the images.
        products = unit(dtype) * np.abs(slope.array * batch.off).sum(AXES)
        allowed = (size, size + products, size + products * batch.inverse, size)
        for found, wanted, bound in zip(sums, (total, moment, moment * batch.inverse, total), allowed, strict=True):
            assert_within(found, wanted, bound)
        counts = torch.tensor([count], dtype=torch.int32, device=device)
        found = aten("batch_norm_backward_elemt.default")(slope.x, batch.x, *given, *sums[:2], counts)
        inverse = _wide(batch.inverse)
        wanted = (slope.array - _wide(total) / count - batch.off * inverse**2 * _wide(moment) / count) * (
            inverse * _wide(weight)
        )
        assert found.dtype == dtype
        largest = np.abs(wanted).max() + inverse.max()
        assert_within(found, wanted, 2 * unit(dtype) * np.abs(wanted) + 4096 * unit(F32) * largest)


@pytest.mark.operator("batch_norm_update_stats")
@LAST
def test_batch_norm_update_stats_moves_the_running_ones(
    device: torch.device, rng: np.random.Generator, last: bool
) -> None:
    """Running mean and unbiased variance move by a share towards those of the batch; the batch's own are returned."""
    for shape in SHAPES:
        batch = Batch.drawn(rng, shape, F32, device, last)
        running = [tensor(np.linspace(low, low + 1, shape[1]), F32, device) for low in (0, 1)]
        before = [numbers(each) for each in running]
        mean, variance = aten("batch_norm_update_stats.default")(batch.x, *running, 0.25)
        assert_within(mean, batch.mean, 64 * unit(F32) * 4)
        assert_within(variance, batch.array.var(AXES), 256 * unit(F32) * 4)
        news = batch.mean, batch.array.var(AXES, ddof=1)
        for each, old, new in zip(running, before, news, strict=True):
            assert_within(each, 0.75 * old + 0.25 * new, 256 * unit(F32) * 4)


@pytest.mark.operator("_fused_rms_norm")
@TYPE
def test_rms_norm_divides_by_the_root_of_the_mean_square(
    device: torch.device, rng: np.random.Generator, dtype: torch.dtype
) -> None:
    """`rms_norm` divides rows of 1 to 5000 elements by their root mean square, also over two dimensions.

    It returns the inverse in float32.
    """
    for shape, dims in (((3, 1), 1), ((5, 33), 1), ((2, 3, 1024), 1), ((2, 5000), 1), ((4, 3, 50), 2)):
        host = torch.from_numpy(rng.uniform(-2, 2, shape)).to(dtype)
        size = shape[-dims:]
        weight = torch.from_numpy(rng.uniform(0.5, 1.5, size)).to(dtype)
        found, inverse = aten("_fused_rms_norm.default")(host.to(device), size, weight.to(device), EPS)
        axes = tuple(range(-dims, 0))
        a = numbers(host)
        exact = 1 / np.sqrt((a**2).mean(axes, keepdims=True) + EPS)
        wanted = a * exact * numbers(weight)
        assert_within(inverse, exact, 64 * unit(F32) * exact)
        # float16 numbers below 2^-14 are multiples of 2^-24.
        assert_within(found, wanted, (3 * unit(dtype) + 128 * unit(F32)) * np.abs(wanted) + 2.0**-24)
