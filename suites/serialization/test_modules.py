"""Saved and loaded modules, optimizers and checkpoints: training continues without interruption."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from .files import loaded, saved, through_a_file


def model(device: torch.device) -> nn.Sequential:
    """Return a small model with parameters and buffers, created from a fixed seed."""
    generator = torch.Generator().manual_seed(5)
    made = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    for parameter in made.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return made.to(device)


def step(module: nn.Module, optimiser: torch.optim.Optimizer, device: torch.device, number: int) -> float:
    """Take one training step on data determined by `number`, and return the loss."""
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(number)).to(device)
    loss = module(x).square().mean()
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    return loss.item()


def same(first: nn.Module, second: nn.Module) -> bool:
    a, b = first.state_dict(), second.state_dict()
    return list(a) == list(b) and all(torch.equal(a[name], b[name]) for name in a)


def test_load_state_dict_into_another_module(device: torch.device) -> None:
    """A module's saved state, loaded into another module on the device, makes it compute the same.

    Names, dtypes and devices are kept, and the target's tensors remain the same objects in memory.
    """
    source, target = model(device), model(device)
    step(source, torch.optim.SGD(source.parameters(), lr=0.1), device, 1)
    before = {name: value.data_ptr() for name, value in target.state_dict().items()}
    assert not same(source, target)

    state = through_a_file(source.state_dict())
    outcome = target.load_state_dict(state)

    assert (outcome.missing_keys, outcome.unexpected_keys) == ([], [])
    assert same(source, target)
    assert {value.device for value in state.values()} == {device}
    assert {name: value.dtype for name, value in state.items()} == {
        name: value.dtype for name, value in source.state_dict().items()
    }
    assert {name: value.data_ptr() for name, value in target.state_dict().items()} == before
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(6)).to(device)
    assert torch.equal(source.eval()(x), target.eval()(x))


def test_load_state_dict_across_cpu_and_device(device: torch.device) -> None:
    """`load_state_dict` copies values to the module's device if the state is on another one."""
    here, there = model(torch.device("cpu")), model(device)
    step(there, torch.optim.SGD(there.parameters(), lr=0.1), device, 1)

    here.load_state_dict(loaded(saved(there.state_dict()), map_location="cpu"))
    again = model(device)
    again.load_state_dict(through_a_file(here.state_dict()))

    assert {value.device.type for value in here.state_dict().values()} == {"cpu"}
    assert {value.device for value in again.state_dict().values()} == {device}
    assert same(there, again)


def test_load_state_dict_assign_takes_the_tensors_themselves(device: torch.device) -> None:
    """With `assign=True`, a meta module gets the loaded tensors themselves, on their device."""
    source = model(device)
    with torch.device("meta"):
        target = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    state = through_a_file(source.state_dict())

    target.load_state_dict(state, assign=True)

    assert {value.device for value in target.state_dict().values()} == {device}
    assert target[0].weight.data_ptr() == state["0.weight"].data_ptr()
    assert same(source, target)


@pytest.mark.parametrize("kind", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_load_state_dict_of_a_checkpoint_continues_training(device: torch.device, kind: str) -> None:
    """A model and optimizer restored from a checkpoint take the same steps as uninterrupted, on the same devices."""

    def optimiser_of(module: nn.Module) -> torch.optim.Optimizer:
        options = {"momentum": 0.9} if kind == "SGD" else {}
        made: torch.optim.Optimizer = getattr(torch.optim, kind)(module.parameters(), lr=0.05, **options)
        return made

    straight = model(device)
    optimiser = optimiser_of(straight)
    for number in range(3):
        step(straight, optimiser, device, number)
    data = saved({"model": straight.state_dict(), "optimiser": optimiser.state_dict(), "step": 3})
    expected = [step(straight, optimiser, device, number) for number in range(3, 6)]

    checkpoint = loaded(data)
    resumed = model(device)
    resumed.load_state_dict(checkpoint["model"])
    second = optimiser_of(resumed)
    second.load_state_dict(checkpoint["optimiser"])
    got = [step(resumed, second, device, number) for number in range(checkpoint["step"], 6)]

    assert got == expected
    assert same(straight, resumed)
    assert optimiser.state
    for state, original in zip(second.state.values(), optimiser.state.values(), strict=True):
        assert state.keys() == original.keys()
        for name, value in original.items():
            if isinstance(value, torch.Tensor):
                assert state[name].device == value.device, name


def test_load_state_dict_refuses_a_state_that_does_not_fit(device: torch.device) -> None:
    """A state with a missing or additional name, or a wrong shape, raises with the details.

    With `strict=False`, matching entries are loaded, and missing and unexpected names are returned.
    """
    source, target = model(device), model(device)
    step(source, torch.optim.SGD(source.parameters(), lr=0.1), device, 1)
    state = through_a_file(source.state_dict())
    wrong = copy.copy(state)
    wrong["0.weight"] = torch.zeros(3, 3, device=device)
    missing = {name: value for name, value in state.items() if name != "3.bias"}

    with pytest.raises(RuntimeError, match=r"size mismatch for 0\.weight"):
        target.load_state_dict(wrong)
    with pytest.raises(RuntimeError, match=r"(?s)Missing key.*3\.bias"):
        target.load_state_dict(missing)
    with pytest.raises(RuntimeError, match=r"(?s)Unexpected key.*extra"):
        target.load_state_dict({**state, "extra": torch.zeros(1)})
    target = model(device)
    bias = target[3].bias.detach().clone()
    outcome = target.load_state_dict({**missing, "extra": torch.zeros(1)}, strict=False)
    assert (outcome.missing_keys, outcome.unexpected_keys) == (["3.bias"], ["extra"])
    for name, value in target.state_dict().items():
        assert torch.equal(value, bias if name == "3.bias" else state[name]), name
    assert not torch.equal(bias, state["3.bias"])


def test_state_dict_saves_shared_parameters_once(device: torch.device) -> None:
    """Parameters shared by two modules are saved once, and are shared again after loading."""
    shared = nn.Linear(200, 200, device=device)
    both, one = nn.ModuleDict({"a": shared, "b": shared}), nn.ModuleDict({"a": shared})

    assert len(saved(both.state_dict())) < 1.2 * len(saved(one.state_dict()))
    back = through_a_file(both.state_dict())
    assert back["a.weight"].data_ptr() == back["b.weight"].data_ptr()


def test_load_mmap_maps_a_file_instead_of_reading(device: torch.device, tmp_path: Path) -> None:
    """`mmap=True` gives the same values, also on the device, and writes to loaded tensors do not change the file."""
    path = tmp_path / "state.pt"
    state = {name: value.cpu() for name, value in model(device).state_dict().items()}
    torch.save(state, path)

    mapped = torch.load(path, weights_only=True, mmap=True)
    on_device = torch.load(path, weights_only=True, mmap=True, map_location=device)
    assert all(torch.equal(mapped[name], state[name]) for name in state)
    for value in mapped.values():
        value.zero_()

    again = torch.load(path, weights_only=True)
    assert all(torch.equal(again[name], state[name]) for name in state)
    assert all(torch.equal(on_device[name].cpu(), state[name]) for name in state)
    assert {value.device for value in on_device.values()} == {device}


def test_deepcopy_of_a_module_is_what_save_and_load_give(device: torch.device) -> None:
    """`deepcopy` of a module gives the same state on the same device in separate memory."""
    source = model(device)
    copied = copy.deepcopy(source)
    assert same(source, copied)
    memories = [{value.data_ptr() for value in each.state_dict().values()} for each in (source, copied)]
    assert memories[0].isdisjoint(memories[1])

    step(copied, torch.optim.SGD(copied.parameters(), lr=0.1), device, 1)

    assert not same(source, copied)
    assert {value.device for value in copied.state_dict().values()} == {device}
