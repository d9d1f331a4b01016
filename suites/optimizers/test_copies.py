"""Copies are copies: what is loaded or copied shares no memory with its source, unless the documentation says so."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as rates
from torch.optim.swa_utils import AveragedModel

from suites.copies import shared

SETTINGS: dict[str, dict[str, Any]] = {
    "Adadelta": {},
    "Adafactor": {},
    "Adagrad": {},
    "Adam": {"amsgrad": True},
    "AdamW": {"amsgrad": True},
    "Adamax": {},
    "ASGD": {},
    "LBFGS": {"lr": 0.1},
    "Muon": {"lr": 0.1},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.9, "centered": True},
    "Rprop": {},
    "SGD": {"momentum": 0.9},
    "SparseAdam": {},
}
SPARSE = pytest.mark.requires(sparse=True)
NAMES = sorted(name for name in SETTINGS if hasattr(torch.optim, name))
EACH = [pytest.param(name, marks=[SPARSE] * (name == "SparseAdam")) for name in NAMES]


def stepped(name: str, device: torch.device, parameter: nn.Parameter | None = None) -> torch.optim.Optimizer:
    """Return an optimizer after two steps, with its rate in a tensor where it accepts one."""
    if parameter is None:
        parameter = nn.Parameter(torch.arange(1.0, 10.0, device=device).view(3, 3))
    settings = {"lr": torch.tensor(0.1)} | SETTINGS[name]
    if name in ("SparseAdam", "SGD"):
        settings["lr"] = 0.1
    optimizer: torch.optim.Optimizer = getattr(torch.optim, name)([parameter], **settings)

    def loss() -> torch.Tensor:
        parameter.grad = None
        total = (parameter**2).sum()
        total.backward()
        if name == "SparseAdam":
            assert parameter.grad is not None
            parameter.grad = parameter.grad.to_sparse()
        return total

    for _ in range(2):
        optimizer.step(loss)  # type: ignore[arg-type]
    return optimizer


def owned(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return what an optimizer has beside its parameters: its state, and the settings of its groups."""
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return {"state": list(optimizer.state.values()), "groups": groups}


ALIASED = pytest.mark.xfail(
    raises=AssertionError,
    strict=True,
    reason="`load_state_dict` of an optimizer keeps the given tensors: https://github.com/pytorch/pytorch/issues/196083",
)


@ALIASED
@pytest.mark.parametrize("name", EACH)
def test_optimizer_load_state_dict_shares_no_memory(name: str, device: torch.device) -> None:
    """An optimizer that loaded the state of another has tensors of its own: neither changes the other's state."""
    source, target = stepped(name, device), stepped(name, device)

    target.load_state_dict(source.state_dict())

    assert shared(owned(source), owned(target)) == []


@pytest.mark.parametrize("name", EACH)
def test_optimizer_deepcopy_shares_no_memory(name: str, device: torch.device) -> None:
    """`copy.deepcopy` of an optimizer or of its state shares no tensor with the optimizer, its parameters included."""
    source = stepped(name, device)

    copied = copy.deepcopy(source)

    assert shared([owned(source), source.param_groups], [owned(copied), copied.param_groups]) == []
    assert shared(owned(source), copy.deepcopy(source.state_dict())) == []


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("LBFGS", "SparseAdam")])
def test_optimizer_step_after_deepcopy_changes_no_copy(name: str, device: torch.device) -> None:
    """Further steps change the optimizer's state, and not the copy that was made before."""
    parameter = nn.Parameter(torch.arange(1.0, 10.0, device=device).view(3, 3))
    source = stepped(name, device, parameter)
    kept, again = copy.deepcopy(source.state_dict()), copy.deepcopy(source.state_dict())

    for _ in range(2):
        parameter.grad = torch.ones_like(parameter)
        source.step()

    for one, other in zip(kept["state"].values(), again["state"].values(), strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            torch.testing.assert_close(value, other[key], rtol=0, atol=0, equal_nan=True)


@dataclass(frozen=True)
class Stateful:
    """Something with a state: a function that makes one of a device, and what of it counts."""

    make: Callable[[torch.device], Any]
    owns: Callable[[Any], object] = lambda value: value


def _optimizer() -> torch.optim.Optimizer:
    return torch.optim.Adam([nn.Parameter(torch.ones(3))], lr=torch.tensor(0.1))


def _rates(scheduler: Any) -> object:
    """Return what a scheduler has beside its optimizer."""
    return {key: value for key, value in vars(scheduler).items() if key not in ("optimizer", "_schedulers")}


def _network(device: torch.device) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).to(device)


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "LinearLR": rates.LinearLR,
    "ExponentialLR": lambda optimizer: rates.ExponentialLR(optimizer, 0.9),
    "StepLR": lambda optimizer: rates.StepLR(optimizer, 2),
    "CosineAnnealingLR": lambda optimizer: rates.CosineAnnealingLR(optimizer, 5),
    "CosineAnnealingWarmRestarts": lambda optimizer: rates.CosineAnnealingWarmRestarts(optimizer, 5),
    "PolynomialLR": rates.PolynomialLR,
    "OneCycleLR": lambda optimizer: rates.OneCycleLR(optimizer, 0.5, 10, cycle_momentum=False),
    "LambdaLR": lambda optimizer: rates.LambdaLR(optimizer, lambda _: 0.5),
}
MODULES: dict[str, Stateful] = {
    "module": Stateful(_network),
    "AveragedModel": Stateful(lambda device: AveragedModel(_network(device))),
    "Embedding": Stateful(lambda device: nn.EmbeddingBag(4, 3, device=device)),
    "LSTM": Stateful(lambda device: nn.LSTM(3, 4).to(device)),
    "parametrized": Stateful(lambda device: nn.utils.parametrizations.weight_norm(nn.Linear(3, 4).to(device))),
}


@pytest.mark.parametrize("name", MODULES)
def test_module_load_state_dict_shares_no_memory(name: str, device: torch.device) -> None:
    """A module that loaded a state has tensors of its own; `state_dict` refers to those of the module, as documented.

    With `assign=True` the module takes over the given tensors, as documented.
    """
    source, target = MODULES[name].make(device), MODULES[name].make(device)

    target.load_state_dict(source.state_dict())

    assert shared(source, target) == []
    assert set(shared(source.state_dict(), source)) == set(shared(source.state_dict(), source.state_dict()))
    target.load_state_dict(source.state_dict(), assign=True)
    assert shared(source.state_dict(), target), "no tensor was taken over"


@pytest.mark.parametrize("name", MODULES)
def test_module_deepcopy_shares_no_memory(name: str, device: torch.device) -> None:
    """`copy.deepcopy` of a module that has gradients shares no parameter, buffer or gradient with it."""
    source = MODULES[name].make(device)
    for parameter in source.parameters():
        parameter.grad = torch.ones_like(parameter)

    copied = copy.deepcopy(source)

    assert shared(source, copied) == []


def test_averagedmodel_shares_no_memory_with_its_model(device: torch.device) -> None:
    """An averaged model is a copy, also after it was updated from the model."""
    source = _network(device)
    averaged = AveragedModel(source, use_buffers=True)
    assert shared(source, averaged) == []

    averaged.update_parameters(source)

    assert shared(source, averaged) == []


@pytest.mark.xfail(
    raises=AssertionError,
    strict=True,
    reason="`load_state_dict` of a scheduler keeps the lists of rates that it is given; no public issue found",
)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_scheduler_load_state_dict_shares_no_memory(name: str) -> None:
    """A scheduler of a rate in a tensor that loaded a state shares no tensor with the scheduler that it came from."""
    made = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # steps of the optimizer come first, but there are none here
        for _ in range(2):
            scheduler = SCHEDULERS[name](_optimizer())
            scheduler.step()
            made.append(scheduler)
    source, target = made

    target.load_state_dict(source.state_dict())

    groups = [scheduler.optimizer.param_groups for scheduler in made]
    assert shared([groups[0], _rates(source)], [groups[1], _rates(target)]) == []


@pytest.mark.parametrize(
    "layout",
    ["contiguous", "transposed", "strided", "expanded", "channels_last", pytest.param("sparse", marks=SPARSE)],
)
@pytest.mark.parametrize("how", ["clone", "deepcopy", "copy=True", "detach().clone()", "torch.tensor"])
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
def test_clone_shares_no_memory(how: str, layout: str, device: torch.device) -> None:
    """Each way to copy a tensor gives one with memory of its own, whatever its layout, and with equal values."""
    x = torch.arange(48.0, device=device).view(2, 2, 3, 4)
    layouts: dict[str, Callable[[], torch.Tensor]] = {
        "contiguous": lambda: x,
        "transposed": lambda: x.transpose(1, 3),
        "strided": lambda: x[..., ::2],
        "expanded": lambda: x[:1].expand(5, 2, 3, 4),
        "channels_last": lambda: x.to(memory_format=torch.channels_last),
        "sparse": x.to_sparse,
    }
    source = layouts[layout]()
    ways: dict[str, Callable[[], torch.Tensor]] = {
        "clone": source.clone,
        "deepcopy": lambda: copy.deepcopy(source),
        "copy=True": lambda: source.to(device, copy=True),
        "detach().clone()": lambda: source.detach().clone(),
        "torch.tensor": lambda: torch.tensor(source),
    }

    copied = ways[how]()

    assert shared([source, x], copied) == []
    assert copied.layout == source.layout
    assert copied.to_dense().equal(source.to_dense())


@pytest.mark.requires(accelerator=True)
def test_gradscaler_load_state_dict_shares_no_memory(device: torch.device) -> None:
    """A scaler that loaded a state has a scale of its own, also after both have scaled."""
    scalers = [torch.amp.GradScaler(device.type, init_scale=8.0) for _ in range(2)]
    for scaler in scalers:
        scaler.scale(torch.ones(1, device=device))

    scalers[1].load_state_dict(scalers[0].state_dict())
    for scaler in scalers:
        scaler.scale(torch.ones(1, device=device))

    assert shared(scalers[0], scalers[1]) == []
