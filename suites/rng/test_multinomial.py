"""`multinomial`: outcomes with zero probability are never drawn, and others at their rate."""

from __future__ import annotations

import pytest
import torch

from .seeded import seeded

COVERS = pytest.mark.covers("test_cuda::TestCuda::test_multinomial_ext")


@COVERS
@pytest.mark.parametrize("replacement", [True, False], ids=["with_replacement", "without_replacement"])
@pytest.mark.parametrize("seed", range(5))
def test_multinomial_never_draws_zero_probability(device: torch.device, seed: int, replacement: bool) -> None:
    """Zero weights are never drawn from a long row with many zeros, in runs at both ends and in the middle."""
    weights = torch.zeros(3000)
    weights[300:1500:3] = torch.rand(400, generator=torch.Generator().manual_seed(seed)) + 0.01
    weights[2000:2100] = 1e-4
    weights[2500] = 50.0
    positive = int((weights > 0).sum())
    weights = weights.to(device)

    drawn = torch.multinomial(weights, 5000 if replacement else positive, replacement, generator=seeded(device, seed))

    assert weights[drawn].min().item() > 0
    if not replacement:
        assert drawn.unique().numel() == positive


@COVERS
def test_multinomial_draws_the_one_possible_outcome_of_a_row(device: torch.device) -> None:
    """In thousands of rows with a single positive weight each, every row draws it."""
    last = torch.ones(3421, dtype=torch.int64)
    some = torch.randint(7, (3421,), generator=torch.Generator().manual_seed(1))

    for only, count in ((last, 2), (some, 7)):
        weights = torch.nn.functional.one_hot(only, count).float().to(device)
        drawn = torch.multinomial(weights, 1, generator=seeded(device, 5214))
        assert drawn.shape == (3421, 1)
        assert torch.equal(drawn.cpu()[:, 0], only)


@COVERS
def test_multinomial_of_a_million_small_weights_draws_no_zero(device: torch.device) -> None:
    """Of a million weights, half of them zero and the others tiny, no sample has weight zero."""
    weights = torch.randn(1_000_000, generator=torch.Generator().manual_seed(33)).clamp(min=0).mul(3e-5).to(device)
    assert 0.4 < weights.gt(0).float().mean().item() < 0.6

    drawn = weights.multinomial(1_000_000, replacement=True, generator=seeded(device, 33))

    assert weights[drawn].min().item() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_multinomial_outcomes_are_as_frequent_as_their_weights(device: torch.device, dtype: torch.dtype) -> None:
    """With replacement, each outcome's share is that of its weight.

    The tolerance is six standard errors of a hundred thousand samples, so a correct generator fails less than once in
    10^8.
    """
    weights = torch.tensor([1.0, 2.0, 0.0, 3.0, 4.0], dtype=dtype, device=device)
    samples = 100_000

    drawn = torch.multinomial(weights, samples, replacement=True, generator=seeded(device, 7)).cpu()

    for outcome, share in enumerate((0.1, 0.2, 0.0, 0.3, 0.4)):
        error = (share * (1 - share) / samples) ** 0.5
        assert abs(drawn.eq(outcome).double().mean().item() - share) <= 6 * error


def test_multinomial_without_replacement_draws_each_once_heavy_first(device: torch.device) -> None:
    """Without replacement, a row gives a permutation, whose first element is the heaviest at its share of rows.

    The tolerance is six standard errors of ten thousand rows.
    """
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0], device=device).expand(10_000, 4)

    drawn = torch.multinomial(weights, 4, generator=seeded(device, 3)).cpu()

    assert torch.equal(drawn.sort(1).values, torch.arange(4).expand(10_000, 4))
    share = drawn[:, 0].eq(3).double().mean().item()
    assert abs(share - 0.4) <= 6 * (0.4 * 0.6 / 10_000) ** 0.5


def test_multinomial_moves_the_generator_and_repeats_with_a_seed(device: torch.device) -> None:
    """A seed determines the samples, and the next call with the same generator gives others."""
    weights = torch.ones(1000, device=device)
    first, second = (torch.multinomial(weights, 500, True, generator=seeded(device, 1)) for _ in range(2))
    generator = seeded(device, 1)
    torch.multinomial(weights, 500, True, generator=generator)

    assert torch.equal(first, second)
    assert not torch.equal(torch.multinomial(weights, 500, True, generator=generator), first)


@pytest.mark.parametrize(
    ("shape", "samples", "said"),
    [
        ((3,), 5, "without replacement"),
        ((3,), 0, "n_sample"),
        ((3,), -1, "n_sample"),
        ((2, 2, 2), 1, "1 or 2 dim"),
        ((), 1, "1 or 2 dim"),
    ],
    ids=["too_many", "none", "negative", "three_dimensions", "no_dimension"],
)
def test_multinomial_refuses_bad_weights_and_numbers_of_samples(
    device: torch.device, shape: tuple[int, ...], samples: int, said: str
) -> None:
    """Too many or no samples, or weights of an invalid shape or dtype, raise at the call."""
    with pytest.raises(RuntimeError, match=said):
        torch.multinomial(torch.ones(shape, device=device), samples)
    with pytest.raises(RuntimeError, match=r"(?i)floating"):
        torch.multinomial(torch.ones(3, dtype=torch.int64, device=device), 1)
