"""Generators of the device: seeds, the effect of draws, and the state."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from .forked import forked
from .seeded import seeded

DRAWS: dict[str, Callable[[torch.device, torch.Generator], torch.Tensor]] = {
    "rand": lambda device, generator: torch.rand(1000, device=device, generator=generator),
    "randn": lambda device, generator: torch.randn(1000, device=device, generator=generator),
    "randint": lambda device, generator: torch.randint(0, 1 << 30, (1000,), device=device, generator=generator),
    "randperm": lambda device, generator: torch.randperm(1000, device=device, generator=generator),
    "bernoulli": lambda device, generator: torch.full((1000,), 0.5, device=device).bernoulli_(generator=generator),
    "exponential": lambda device, generator: torch.empty(1000, device=device).exponential_(generator=generator),
    "multinomial": lambda device, generator: torch.multinomial(
        torch.ones(1000, device=device), 500, generator=generator
    ),
}
DRAW = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())


@DRAW
def test_generator_manual_seed_fixes_what_is_drawn(
    device: torch.device, draw: Callable[[torch.device, torch.Generator], torch.Tensor]
) -> None:
    """Generators with the same seed draw the same numbers, and with another seed others."""
    first, second, other = (draw(device, seeded(device, seed)) for seed in (7, 7, 8))

    assert torch.equal(first, second)
    assert not torch.equal(first, other)


@DRAW
def test_generator_moves_with_each_draw(
    device: torch.device, draw: Callable[[torch.device, torch.Generator], torch.Tensor]
) -> None:
    """A generator draws different numbers at the next draw."""
    generator = seeded(device, 7)
    first, second = draw(device, generator), draw(device, generator)

    assert generator.initial_seed() == 7
    assert not torch.equal(first, second)


@DRAW
def test_generator_set_state_repeats_the_numbers(
    device: torch.device, draw: Callable[[torch.device, torch.Generator], torch.Tensor]
) -> None:
    """A generator continues from an earlier state after `set_state`, as does another generator with that state."""
    generator, twin = seeded(device, 7), torch.Generator(device=device)
    draw(device, generator)
    state = generator.get_state()
    expected = draw(device, generator)

    generator.set_state(state)
    twin.set_state(state)

    assert torch.equal(draw(device, generator), expected)
    assert torch.equal(draw(device, twin), expected)


def test_torch_manual_seed_reaches_the_device(device: torch.device) -> None:
    """`torch.manual_seed` also seeds the device's generator, which draws use by default."""
    drawn = []
    with forked(device):
        for seed in (3, 3, 4):
            torch.manual_seed(seed)
            drawn.append(torch.rand(100, device=device))

    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.requires(accelerator=True)
def test_generator_of_another_device_is_refused(device: torch.device) -> None:
    """An operation on the device with a CPU generator raises, and the error names both devices."""
    with pytest.raises(RuntimeError, match=f"(?i)({device.type}|privateuse).*cpu|cpu.*({device.type}|privateuse)"):
        torch.rand(3, device=device, generator=torch.Generator(device="cpu"))


def test_rand_and_randn_have_their_mean_and_variance(device: torch.device) -> None:
    """Uniform numbers are in [0, 1) with mean 1/2, and normal ones have mean 0 and variance 1.

    With 100,000 draws, the standard errors of the means are 0.0009 and 0.0032, and that of the variance is 0.0045. The
    bounds are ten of them, so a correct generator fails less than once in 10^20.
    """
    generator = seeded(device, 11)
    uniform = torch.rand(100_000, device=device, generator=generator).cpu().double()
    normal = torch.randn(100_000, device=device, generator=generator).cpu().double()

    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.0095
    assert abs(normal.mean()) < 0.032
    assert abs(normal.var() - 1) < 0.045


def test_normal_has_the_mean_and_deviation_asked_for(device: torch.device) -> None:
    """`normal_` and `torch.normal` with mean 3 and deviation 5 draw five times `randn` plus three from the same state.

    The tolerance is some float32 roundings.
    """
    generator = torch.Generator(device=device)
    standard = torch.randn(1000, device=device, generator=generator.manual_seed(8)).cpu()

    filled = torch.empty(1000, device=device).normal_(3, 5, generator=generator.manual_seed(8))
    made = torch.normal(3.0, 5.0, (1000,), device=device, generator=generator.manual_seed(8))

    for found in (filled, made):
        torch.testing.assert_close(found.cpu(), standard * 5 + 3, rtol=1e-5, atol=1e-5)
