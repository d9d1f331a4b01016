"""Draws: no repetition, full coverage of large ranges, and no value outside the range."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from .forked import forked
from .seeded import seeded


@pytest.mark.covers("test_cuda::TestCuda::test_randint_randomness_for_large_range")
@pytest.mark.parametrize("bits", [33, 40, 52, 62])
def test_randint_uses_a_large_range_completely(device: torch.device, bits: int) -> None:
    """Integers of a range beyond 32 bits use all bits and are within the range.

    Of a hundred thousand draws, at most a few are equal (one pair is expected for 33 bits, none for more), and each bit
    below the top is set in half of them, within ten standard errors.
    """
    count = 100_000

    drawn = torch.randint(0, 1 << bits, (count,), device=device, generator=seeded(device, 13)).cpu()

    assert drawn.min() >= 0
    assert drawn.max() < 1 << bits
    assert count - drawn.unique().numel() <= 20
    shares = torch.tensor([(drawn >> bit & 1).double().mean().item() for bit in range(bits)])
    assert (shares - 0.5).abs().max().item() < 10 * 0.5 / count**0.5


def test_randperm_puts_every_number_at_every_position(device: torch.device) -> None:
    """`randperm` of any type gives each number once, and over 500 draws each number occurs at each position.

    The probability that one never does is 10^-47.
    """
    generator = seeded(device, 3)
    for dtype in (torch.int64, torch.int32, torch.uint8, torch.float32, torch.float16):
        asked = {"dtype": dtype, "device": device, "generator": generator}

        drawn = torch.stack([torch.randperm(5, **asked).cpu() for _ in range(500)])

        assert drawn.dtype == dtype
        assert (drawn.sort(dim=1).values == torch.arange(5)).all()
        assert [sorted(set(place)) for place in drawn.t().tolist()] == [[0, 1, 2, 3, 4]] * 5


@pytest.mark.requires(accelerator=True, free_memory=">=24GiB")
@pytest.mark.timeout(600)
@pytest.mark.covers("test_cuda::TestCuda::test_randint_generation_for_large_numel")
def test_randint_fills_more_elements_than_32_bits_count(device: torch.device) -> None:
    """A tensor of more than 2**31 elements is filled to its end.

    In its first, middle and last million, both outcomes are equally frequent, and the pieces differ.
    """
    size = (1 << 31) + (1 << 24) + 17

    drawn = torch.randint(0, 2, (size,), dtype=torch.int8, device=device, generator=seeded(device, 5))

    pieces = [drawn[:1_000_000].cpu(), drawn[size // 2 :][:1_000_000].cpu(), drawn[-1_000_000:].cpu()]
    for piece in pieces:
        assert set(piece.unique().tolist()) == {0, 1}
        assert abs(piece.double().mean().item() - 0.5) < 10 * 0.5 / 1000
    assert not torch.equal(pieces[0], pieces[1])
    assert not torch.equal(pieces[1], pieces[2])


DRAWS: dict[str, Callable[[torch.device, torch.Generator, int], torch.Tensor]] = {
    "rand": lambda device, generator, size: torch.rand(size, dtype=torch.float64, device=device, generator=generator),
    "randn": lambda device, generator, size: torch.randn(size, dtype=torch.float64, device=device, generator=generator),
    "randint": lambda device, generator, size: torch.randint(1 << 62, (size,), device=device, generator=generator),
    "exponential": lambda device, generator, size: torch.empty(size, dtype=torch.float64, device=device).exponential_(
        generator=generator
    ),
}


@pytest.mark.covers("test_cuda::TestCuda::test_random_no_reused_random_states")
@pytest.mark.parametrize(
    "draw",
    [
        pytest.param(draw, id=kind, marks=() if kind == "randint" else pytest.mark.types("float64"))
        for kind, draw in DRAWS.items()
    ],
)
@pytest.mark.parametrize("size", [1, 5, 1023, 40_000])
def test_generator_repeats_no_number(
    device: torch.device, draw: Callable[[torch.device, torch.Generator, int], torch.Tensor], size: int
) -> None:
    """Each draw advances the generator past all numbers used.

    Thirty consecutive draws of 52 bits or more have no repetition. The seed is fixed; by chance, one pair is expected
    once in a thousand runs.
    """
    generator = seeded(device, 21)

    numbers = torch.cat([draw(device, generator, size) for _ in range(30)])

    assert numbers.unique().numel() == numbers.numel()


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3, 4), (-(2**63), -(2**63) + 5), (2**62, 2**62 + 3)])
def test_randint_reaches_both_ends_of_its_range(device: torch.device, low: int, high: int) -> None:
    """Integers are in [low, high), and in a small range all occur about equally often."""
    drawn = torch.randint(low, high, (10_000,), device=device, generator=seeded(device, 3)).cpu()

    values, counts = drawn.unique(return_counts=True)
    share, each = 1 / (high - low), 10_000 / (high - low)
    assert values.tolist() == list(range(low, high))
    assert (counts.double() - each).abs().max().item() <= 8 * (10_000 * share * (1 - share)) ** 0.5


@pytest.mark.parametrize("size", [1, 2, 30, 1000, 60_000])
def test_randperm_has_each_index_once(device: torch.device, size: int) -> None:
    """`randperm` gives each index once, and from thirty elements on not in the natural order."""
    drawn = torch.randperm(size, device=device, generator=seeded(device, 3)).cpu()

    assert torch.equal(drawn.sort().values, torch.arange(size))
    if size >= 30:
        assert not torch.equal(drawn, torch.arange(size))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_rand_is_below_one_in_every_dtype(device: torch.device, dtype: torch.dtype) -> None:
    """Uniform numbers are in [0, 1), also in low precision, where rounding up would give 1."""
    drawn = torch.rand(500_000, dtype=dtype, device=device, generator=seeded(device, 8))

    assert drawn.min().item() >= 0
    assert drawn.max().item() < 1
    assert abs(drawn.cpu().double().mean().item() - 0.5) < 0.01


@pytest.mark.parametrize("p", [0.0, 0.25, 1.0])
def test_dropout_keeps_its_share_scale_and_mask(device: torch.device, p: float) -> None:
    """Dropout zeroes a share p, within ten standard errors, and scales the rest by 1 / (1 - p).

    The backward uses the same mask and scale.
    """
    x = torch.ones(100_000, device=device, requires_grad=True)
    with forked(device):
        torch.manual_seed(4)
        y = torch.nn.functional.dropout(x, p)
    y.sum().backward()

    kept = y.detach() != 0
    assert abs(kept.cpu().double().mean().item() - (1 - p)) <= 10 * (p * (1 - p) / 100_000) ** 0.5
    if p < 1:
        assert torch.allclose(y[kept], torch.full_like(y[kept], 1 / (1 - p)))
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())  # the gradients are ones


@pytest.mark.requires(accelerator=True)
@pytest.mark.types("float64")
def test_generator_shared_by_streams_repeats_no_number(device: torch.device) -> None:
    """Draws on several streams from one generator never repeat; a seed gives each stream the same numbers."""

    def drawn() -> torch.Tensor:
        generator, parts = seeded(device, 2), []
        streams = [torch.Stream(device) for _ in range(3)]
        for number in range(30):
            with streams[number % 3]:
                parts.append(torch.rand(1000, dtype=torch.float64, device=device, generator=generator))
        torch.accelerator.synchronize(device)
        return torch.cat(parts)

    first, second = drawn(), drawn()

    assert torch.equal(first, second)
    assert first.unique().numel() == first.numel()
