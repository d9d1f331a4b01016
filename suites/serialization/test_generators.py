"""Saved and loaded random state: draws continue where they stopped."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch

from ..rng.forked import forked
from .files import loaded, saved, through_a_file


def draw(generator: torch.Generator) -> torch.Tensor:
    return torch.rand(1000, device=generator.device, generator=generator)


def test_generator_get_state_goes_through_a_file(device: torch.device) -> None:
    """A generator's saved state, loaded into another generator, makes it draw the original's next numbers."""
    generator = torch.Generator(device=device).manual_seed(31)
    draw(generator)
    state = through_a_file(generator.get_state())
    expected = draw(generator)

    other = torch.Generator(device=device).manual_seed(1)
    other.set_state(state)

    assert torch.equal(draw(other), expected)
    assert other.initial_seed() == 31


def test_generator_state_is_loaded_to_the_cpu_whatever_map_location(device: torch.device) -> None:
    """A state loaded to the device with `map_location` is there, and a generator either raises or accepts it correctly.

    After `cpu()` it is accepted.
    """
    generator = torch.Generator(device=device).manual_seed(3)
    checkpoint = loaded(saved({"random": generator.get_state()}), map_location=device)
    expected = draw(generator)

    other, refusal = torch.Generator(device=device), ""
    try:
        other.set_state(checkpoint["random"])
    except (RuntimeError, TypeError) as error:
        refusal = str(error)
    if refusal:
        assert device.type != "cpu"
        assert "ByteTensor" in refusal
    else:
        assert torch.equal(draw(other), expected)
    other.set_state(checkpoint["random"].cpu())

    assert checkpoint["random"].device == device
    assert generator.get_state().device.type == "cpu"
    assert torch.equal(draw(other), expected)


WAYS: dict[str, Callable[[torch.Generator], torch.Generator]] = {
    "pickle": lambda generator: pickle.loads(pickle.dumps(generator)),
    "clone_state": lambda generator: generator.clone_state(),
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_generator_pickle_and_clone_are_independent(
    device: torch.device, way: Callable[[torch.Generator], torch.Generator]
) -> None:
    """A pickled or cloned generator is on the same device, draws the same numbers, and is independent."""
    generator = torch.Generator(device=device).manual_seed(17)
    draw(generator)

    twin = way(generator)
    from_twin = [draw(twin) for _ in range(3)]

    assert twin.device == generator.device
    assert [torch.equal(draw(generator), x) for x in from_twin] == [True] * 3
    assert not torch.equal(from_twin[0], from_twin[1])


def test_set_rng_state_from_a_file_restores_cpu_and_device(device: torch.device) -> None:
    """The saved states of the CPU's and the device's generators restore both."""
    with forked(device):
        torch.manual_seed(8)
        states = [torch.get_rng_state()]
        if device.type != "cpu":
            states.append(torch.get_device_module(device).get_rng_state(device))
        expected = [torch.rand(100), torch.rand(100, device=device)]
        torch.manual_seed(9)

        restored = through_a_file(states)
        torch.set_rng_state(restored[0])
        if device.type != "cpu":
            torch.get_device_module(device).set_rng_state(restored[1], device)

        assert all(torch.equal(torch.rand_like(x), x) for x in expected)


def test_generator_get_state_is_a_copy(device: torch.device) -> None:
    """A state is a copy: draws do not change it, and writing to it does not affect the generator."""
    generator = torch.Generator(device=device).manual_seed(2)
    state = generator.get_state()
    kept = copy.deepcopy(state)

    expected = draw(generator)
    assert torch.equal(state, kept)
    generator.set_state(state)
    state.zero_()

    assert torch.equal(draw(generator), expected)
