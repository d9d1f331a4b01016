"""The values of a CUDA generator: a seed gives the numbers of Philox4x32-10, on each GPU of the same size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from . import philox

pytestmark = pytest.mark.requires(device="cuda")

#: With few elements, each thread makes one. With many, some threads make several, even on a large GPU.
SIZES = [1, 1000, 2_500_000]


def seeded(device: torch.device, seed: int, offset: int = 0) -> torch.Generator:
    generator = torch.Generator(device=device).manual_seed(seed)
    generator.set_offset(offset)
    return generator


def test_rand_and_randn_of_seed_0_have_known_values(device: torch.device) -> None:
    """The first numbers of seed 0, for less than a block of elements, are the same on every GPU."""
    uniform = torch.rand(5, device=device, generator=seeded(device, 0)).cpu()
    normal = torch.randn(5, device=device, generator=seeded(device, 0)).cpu()

    torch.testing.assert_close(uniform, torch.tensor([0.3990, 0.5167, 0.0249, 0.9401, 0.9459]), atol=5e-5, rtol=0)
    torch.testing.assert_close(normal, torch.tensor([-0.9247, -0.4253, -2.6438, 0.1452, -0.1209]), atol=5e-5, rtol=0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("offset", [0, 12])
def test_rand_has_the_numbers_of_philox(device: torch.device, size: int, offset: int) -> None:
    """float32 `rand` gives Philox's numbers bitwise, with a thread's elements a grid apart, and 1 replaced by 0.

    The generator advances by four per call of a thread.
    """
    generator = seeded(device, 0x299F31D0A4093822, offset)
    drawn = torch.rand(size, device=device, generator=generator).cpu()

    word = philox.words(device, 0x299F31D0A4093822, offset, size, 4)
    expected = philox.uniform(word)
    assert torch.equal(drawn, torch.where(expected == 1, 0, expected))
    taken = len(philox.calls(device, 0, 0, size, 4))
    assert generator.get_offset() == offset + 4 * taken


@pytest.mark.parametrize("size", SIZES)
def test_rand_of_float64_has_the_numbers_of_philox(device: torch.device, size: int) -> None:
    """A float64 number uses two Philox numbers, so a thread makes two elements per call."""
    drawn = torch.rand(size, dtype=torch.float64, device=device, generator=seeded(device, 5, 4)).cpu()

    expected = philox.uniform_double(philox.words(device, 5, 4, size, 2))
    assert torch.equal(drawn, torch.where(expected == 1, 0, expected))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
def test_rand_of_half_precision_rounds_the_float32_number(device: torch.device, dtype: torch.dtype) -> None:
    """Half precision gets the rounded float32 number, with 1 replaced by 0."""
    drawn = torch.rand(5000, dtype=dtype, device=device, generator=seeded(device, 6)).cpu()

    expected = philox.uniform(philox.words(device, 6, 0, 5000, 4)).to(dtype)
    assert torch.equal(drawn, torch.where(expected == 1, 0, expected))


def test_uniform_of_a_transposed_tensor_goes_by_memory(device: torch.device) -> None:
    """The elements of a dense tensor are numbered in memory order, whatever its strides."""
    drawn = torch.empty(30, 50, device=device).t().uniform_(generator=seeded(device, 7)).cpu()

    expected = philox.uniform(philox.words(device, 7, 0, 1500, 4))
    assert torch.equal(drawn.t().reshape(-1), torch.where(expected == 1, 0, expected))


@pytest.mark.parametrize("size", [1000, 2_500_000])
def test_randn_is_made_of_pairs_by_box_and_muller(device: torch.device, size: int) -> None:
    """A thread's first two numbers are distance and angle of its first two elements (Box-Muller, sine and cosine).

    A GPU's float32 sine and cosine are accurate to 5e-5.
    """
    drawn = torch.randn(size, device=device, generator=seeded(device, 8)).cpu().double()

    expected = philox.normal(philox.calls(device, 8, 0, size, 4))[:size]
    assert (drawn - expected).abs().max() <= 5e-5


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("low", "high", "per_call"), [(-5, 7, 4), (0, 1 << 28, 2), (0, (1 << 28) - 1, 4), (-(1 << 62), 1 << 62, 2)]
)
def test_randint_takes_the_remainder(device: torch.device, size: int, low: int, high: int, per_call: int) -> None:
    """An integer is the remainder of a 32-bit number, or of a 64-bit number for ranges from 2^28 on."""
    drawn = torch.randint(low, high, (size,), device=device, generator=seeded(device, 9)).cpu()

    word = philox.words(device, 9, 0, size, per_call)
    expected = torch.from_numpy((word % np.uint64(high - low)).astype(np.int64)) + low
    assert torch.equal(drawn, expected)


def test_bernoulli_is_one_below_the_probability(device: torch.device) -> None:
    """An element is 1 where the number of `rand`, before 1 is replaced, is below the probability."""
    drawn = torch.empty(5000, device=device).bernoulli_(0.3, generator=seeded(device, 10)).cpu()

    assert torch.equal(drawn, (philox.uniform(philox.words(device, 10, 0, 5000, 4)) < 0.3).float())
