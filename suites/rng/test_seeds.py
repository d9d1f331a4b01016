"""Seeds: accepted values, their scope, and queries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from .forked import forked

accelerator = pytest.mark.requires(accelerator=True)


@pytest.fixture(autouse=True)
def _states_restored(device: torch.device) -> Iterator[None]:
    """Restore the global generators after the case."""
    with forked(device):
        yield


def module(device: torch.device) -> Any:
    return torch.get_device_module(device)


@accelerator
@pytest.mark.covers("test_cuda::TestCuda::test_torch_manual_seed_seeds_cuda_devices")
def test_torch_manual_seed_and_initial_seed_fix_what_is_drawn(device: torch.device) -> None:
    """`torch.manual_seed` seeds the device: `initial_seed` returns the seed, and all kinds of draws repeat in order."""
    drawn = []
    for seed in (2, 2, 3):
        torch.manual_seed(seed)
        assert module(device).initial_seed() == seed
        x = torch.zeros(4, 4, device=device)
        drawn.append([x.uniform_().clone(), x.normal_().clone(), torch.randint(0, 1000, (50,), device=device)])
        assert module(device).initial_seed() == seed

    assert all(torch.equal(a, b) for a, b in zip(drawn[0], drawn[1], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(drawn[0], drawn[2], strict=True))


@accelerator
@pytest.mark.covers("test_cuda::TestCuda::test_manual_seed")
def test_device_manual_seed_fixes_what_is_drawn(device: torch.device) -> None:
    """The device's own `manual_seed` has the same effect on the device, and does not affect the CPU generator."""
    torch.manual_seed(1)
    host = torch.get_rng_state()
    drawn = []
    for seed in (2, 2, 5):
        module(device).manual_seed(seed)
        assert module(device).initial_seed() == seed
        x = torch.zeros(8, 8, device=device).uniform_()
        drawn.append((x.clone(), torch.bernoulli(torch.full_like(x, 0.5))))
        assert module(device).initial_seed() == seed

    assert all(torch.equal(a, b) for a, b in zip(drawn[0], drawn[1], strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(drawn[0], drawn[2], strict=True))
    assert torch.equal(torch.get_rng_state(), host)


@accelerator
def test_device_manual_seed_restarts_the_sequence(device: torch.device) -> None:
    """A seed restarts the sequence, after any number of draws of any size."""
    module(device).manual_seed(9)
    expected = torch.rand(10, device=device)

    for size in (1, 3, 1000, 100_001):
        torch.rand(size, device=device)
        torch.randn(size, device=device)
        module(device).manual_seed(9)
        assert torch.equal(torch.rand(10, device=device), expected)


#: Seeds beyond 32 bits. `torch.manual_seed` also seeds the device.
WIDE = pytest.mark.requires(wide_seeds=True)
NEGATIVE = [pytest.param(seed, marks=WIDE) for seed in (-1, -5, -(2**63))]
SEEDS = [
    *(0, 1, 2**31 - 1, 2**31, 2**32 - 1),
    *(pytest.param(seed, marks=WIDE) for seed in (2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1)),
]


@pytest.mark.parametrize("seed", SEEDS)
def test_generator_manual_seed_takes_every_seed_of_64_bits(device: torch.device, seed: int) -> None:
    """Seeds from 0 to 2**64 - 1 are accepted, returned unchanged and repeatable, and the next seed draws other numbers.

    The CPU generator, a Mersenne twister, is documented to use the low 32 bits, so its next seed differs in those.
    """
    generator = torch.Generator(device=device)

    def drawn(value: int) -> torch.Tensor:
        generator.manual_seed(value)
        assert generator.initial_seed() == value
        return torch.rand(64, device=device, generator=generator)

    assert torch.equal(drawn(seed), drawn(seed))
    assert not torch.equal(drawn(seed), drawn(seed ^ 1))


@accelerator
@WIDE
def test_generator_manual_seed_uses_the_high_half(device: torch.device) -> None:
    """The device's generator uses all 64 bits: seeds that differ only in the high half draw other numbers."""
    generator = torch.Generator(device=device)
    drawn = [torch.rand(64, device=device, generator=generator.manual_seed(5 + (high << 32))) for high in range(4)]

    assert not any(torch.equal(drawn[a], drawn[b]) for a in range(4) for b in range(a))


@pytest.mark.parametrize("seed", NEGATIVE)
def test_generator_manual_seed_takes_a_negative_seed_as_64_bits(device: torch.device, seed: int) -> None:
    """A negative seed is equivalent to the seed plus 2**64, and is returned as such."""
    generator = torch.Generator(device=device)

    generator.manual_seed(seed)
    drawn = torch.rand(16, device=device, generator=generator)

    assert generator.initial_seed() == seed + 2**64
    assert torch.equal(torch.rand(16, device=device, generator=generator.manual_seed(seed + 2**64)), drawn)


@pytest.mark.parametrize("seed", [*SEEDS, *NEGATIVE])
def test_torch_manual_seed_takes_what_a_generator_takes(device: torch.device, seed: int) -> None:
    """`torch.manual_seed` accepts the same seeds as a generator, with the same `initial_seed` and device draws."""
    torch.manual_seed(seed)
    drawn = torch.rand(16, device=device)

    assert torch.initial_seed() == seed % 2**64
    assert torch.equal(torch.rand(16, device=device, generator=torch.Generator(device).manual_seed(seed)), drawn)


@WIDE  # `torch.seed` draws a seed of 64 bits for the device, too
def test_torch_seed_is_another_each_time() -> None:
    """`torch.seed` sets and returns a different seed each time, which reproduces the draws in `torch.manual_seed`."""
    reported = []
    for _ in range(3):
        reported.append(torch.seed())
        assert torch.initial_seed() == reported[-1]
        drawn = torch.rand(16)
        torch.manual_seed(reported[-1])
        assert torch.equal(torch.rand(16), drawn)

    assert len(set(reported)) == 3


@pytest.mark.parametrize("seed", [2**64, -(2**63) - 1, "1", None, [1]], ids=["large", "small", "text", "none", "list"])
def test_generator_manual_seed_refuses_numbers_beyond_64_bits(device: torch.device, seed: object) -> None:
    """A seed beyond 64 bits, or a non-number, raises, and the generator's state does not change."""
    generator = torch.Generator(device=device).manual_seed(4)
    state = generator.get_state()

    with pytest.raises((RuntimeError, ValueError, TypeError, OverflowError)):
        generator.manual_seed(seed)  # type: ignore[arg-type]

    assert generator.initial_seed() == 4
    assert torch.equal(generator.get_state(), state)


def test_generator_seed_is_another_each_time(device: torch.device) -> None:
    """`Generator.seed` sets and returns a different seed each time, which reproduces the draws."""
    generator = torch.Generator(device=device)
    seen = set()
    for _ in range(10):
        reported = generator.seed()
        assert generator.initial_seed() == reported
        drawn = torch.rand(16, device=device, generator=generator)
        assert torch.equal(torch.rand(16, device=device, generator=generator.manual_seed(reported)), drawn)
        seen.add(reported)

    assert len(seen) == 10


@accelerator
@WIDE
def test_torch_seed_and_seed_all_reach_the_device(device: torch.device) -> None:
    """`torch.seed` and the device's `seed_all` give the device a new seed each time."""
    reported = []
    for _ in range(3):
        torch.seed()
        reported.append(module(device).initial_seed())
        module(device).seed_all()
        reported.append(module(device).initial_seed())

    assert len(set(reported)) == 6


@pytest.mark.requires(device="cuda")
@pytest.mark.parametrize("seed", [5.0, True, "7"], ids=repr)
@pytest.mark.parametrize("name", ["manual_seed", "manual_seed_all"])
def test_cuda_manual_seed_takes_what_is_a_number(device: torch.device, name: str, seed: object) -> None:
    """`torch.cuda.manual_seed` and `manual_seed_all` accept whatever `int` accepts."""
    getattr(torch.cuda, name)(seed)
    assert torch.cuda.default_generators[device.index].initial_seed() == int(seed)  # type: ignore[call-overload]


@pytest.mark.requires(device="cuda", devices=2)
def test_cuda_seed_all_gives_all_devices_one_new_seed() -> None:
    """`torch.cuda.seed_all` draws one seed, for all devices; `seed` draws one for the current device only."""
    seen = set()
    for _ in range(3):
        torch.cuda.seed_all()
        seeds = {generator.initial_seed() for generator in torch.cuda.default_generators}
        assert len(seeds) == 1
        seen |= seeds
        kept = torch.cuda.default_generators[1].initial_seed()
        torch.cuda.seed()
        assert torch.cuda.default_generators[1].initial_seed() == kept
        assert torch.cuda.default_generators[0].initial_seed() != kept
    assert len(seen) == 3


@accelerator
@pytest.mark.requires(devices=2)
@pytest.mark.covers("test_cuda::TestCuda::test_torch_manual_seed_seeds_cuda_devices")
def test_manual_seed_all_reaches_every_device(device: torch.device) -> None:
    """`torch.manual_seed` and `manual_seed_all` seed all devices equally; `manual_seed` only the current one."""
    other = torch.device(device.type, 1)
    for seed_all in (torch.manual_seed, module(device).manual_seed_all):
        seed_all(6)
        first, second = torch.rand(100, device=device), torch.rand(100, device=other)
        seed_all(6)
        assert torch.equal(torch.rand(100, device=device), first)
        assert torch.equal(torch.rand(100, device=other), second)
        assert torch.equal(first.cpu(), second.cpu())

    before = module(device).get_rng_state(other)
    module(device).manual_seed(7)
    assert torch.equal(module(device).get_rng_state(other), before)
    assert module(device).initial_seed() == 7
    with torch.accelerator.device_index(1):
        assert module(device).initial_seed() == 6
