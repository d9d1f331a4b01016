"""Random state saved and loaded: the numbers go on where they stopped."""

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
    """Contract: the state of a generator, saved, loaded and given to another, has it draw what the first draws next."""
    generator = torch.Generator(device=device).manual_seed(31)
    draw(generator)
    state = through_a_file(generator.get_state())
    expected = draw(generator)

    other = torch.Generator(device=device).manual_seed(1)
    other.set_state(state)

    assert torch.equal(draw(other), expected)
    assert other.initial_seed() == 31


def test_generator_state_is_loaded_to_the_cpu_whatever_map_location(device: torch.device) -> None:
    """Contract: a state is host memory: a checkpoint that is loaded onto the device has it there, where a generator
    refuses it, or takes it and draws what it says; after `cpu()` it is taken."""
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
def test_generator_pickle_and_clone_go_on_by_themselves(
    device: torch.device, way: Callable[[torch.Generator], torch.Generator]
) -> None:
    """Contract: a generator that went through pickle, or was cloned, is on the same device, draws what the original
    would, and drawing from it does not move the original."""
    generator = torch.Generator(device=device).manual_seed(17)
    draw(generator)

    twin = way(generator)
    from_twin = [draw(twin) for _ in range(3)]

    assert twin.device == generator.device
    assert [torch.equal(draw(generator), x) for x in from_twin] == [True] * 3
    assert not torch.equal(from_twin[0], from_twin[1])


def test_set_rng_state_from_a_file_restores_cpu_and_device(device: torch.device) -> None:
    """Contract: the states of the host's generator and of the device's own, saved in a checkpoint, restore both."""
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
    """Contract: a state is a copy: it stays what it was when its generator goes on, and writing to it does not reach
    the generator."""
    generator = torch.Generator(device=device).manual_seed(2)
    state = generator.get_state()
    kept = copy.deepcopy(state)

    expected = draw(generator)
    assert torch.equal(state, kept)
    generator.set_state(state)
    state.zero_()

    assert torch.equal(draw(generator), expected)
