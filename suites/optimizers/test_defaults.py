"""The documented defaults of optimizers and schedulers, and the arguments that their constructors refuse."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler as rates

from .catalogue import KINDS

#: The documented default arguments of each optimizer.
DEFAULTS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 1e-3, "momentum": 0, "dampening": 0, "weight_decay": 0, "nesterov": False},
    "Adam": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0, "amsgrad": False},
    "AdamW": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2, "amsgrad": False},
    "Adamax": {"lr": 2e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0},
    "NAdam": {"lr": 2e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0, "momentum_decay": 4e-3},
    "RAdam": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0, "decoupled_weight_decay": False},
    "Adagrad": {"lr": 1e-2, "lr_decay": 0, "weight_decay": 0, "initial_accumulator_value": 0, "eps": 1e-10},
    "Adadelta": {"lr": 1.0, "rho": 0.9, "eps": 1e-6, "weight_decay": 0},
    "RMSprop": {"lr": 1e-2, "alpha": 0.99, "eps": 1e-8, "weight_decay": 0, "momentum": 0, "centered": False},
    "ASGD": {"lr": 1e-2, "lambd": 1e-4, "alpha": 0.75, "t0": 1e6, "weight_decay": 0},
    "Rprop": {"lr": 1e-2, "etas": (0.5, 1.2), "step_sizes": (1e-6, 50)},
    "Adafactor": {"lr": 1e-2, "beta2_decay": -0.8, "eps": (None, 1e-3), "d": 1.0, "weight_decay": 0.0},
    "SparseAdam": {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8},
    "LBFGS": {
        "lr": 1,
        "max_iter": 20,
        "max_eval": 25,
        "tolerance_grad": 1e-7,
        "tolerance_change": 1e-9,
        "history_size": 100,
        "line_search_fn": None,
    },
    "Muon": {
        "lr": 1e-3,
        "weight_decay": 0.1,
        "momentum": 0.95,
        "nesterov": True,
        "ns_coefficients": (3.4445, -4.775, 2.0315),
        "eps": 1e-7,
        "ns_steps": 5,
    },
}
#: Settings that every optimizer with them has off or leaves to torch by default.
OFF: dict[str, Any] = {
    "maximize": False,
    "capturable": False,
    "differentiable": False,
    "foreach": None,
    "fused": None,
}


def made(name: str, weight: torch.Tensor, **settings: Any) -> torch.optim.Optimizer:
    cls: Callable[..., torch.optim.Optimizer] = getattr(torch.optim, name)
    return cls([weight], **settings)


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_the_documented_ones(name: str) -> None:
    """Without arguments, an optimizer has the documented settings, in its defaults and in its groups."""
    optimizer = made(name, torch.zeros(2, 2))
    (group,) = optimizer.param_groups
    wanted = DEFAULTS[name] | {setting: value for setting, value in OFF.items() if setting in optimizer.defaults}
    for held in (optimizer.defaults, group):
        assert {setting: held[setting] for setting in wanted} == wanted


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        (name, setting)
        for name in DEFAULTS
        for setting in ("maximize", "capturable", "differentiable", "foreach")
        if setting in inspect.signature(getattr(torch.optim, name)).parameters
    ],
)
def test_settings_that_are_on_are_those_of_the_group(name: str, setting: str) -> None:
    """A given setting is that of the group, and the other settings keep their defaults."""
    optimizer = made(name, torch.zeros(2, 2), **{setting: True})
    (group,) = optimizer.param_groups
    wanted = DEFAULTS[name] | {each: value for each, value in OFF.items() if each in optimizer.defaults}
    assert {each: group[each] for each in wanted} == wanted | {setting: True}


@pytest.mark.parametrize("name", ["LBFGS", "Adafactor", "Muon", "SparseAdam", *KINDS])
def test_lr_of_several_elements_is_refused(device: torch.device, name: str) -> None:
    """A rate that is a tensor of one element is accepted, and a tensor of several raises ValueError."""
    weight = torch.zeros(2, 2, device=device)
    with pytest.raises(ValueError, match="Tensor lr must be 1-element"):
        made(name, weight, lr=torch.tensor([0.1, 0.2]))
    made(name, weight, lr=torch.tensor([0.1]))


ALLOWED: dict[str, list[dict[str, Any]]] = {
    "SGD": [{"lr": 0.0}, {"momentum": 0.0}],
    "Adam": [{"lr": 0.0}, {"eps": 0.0}, {"betas": (0.0, 0.0)}],
    "SparseAdam": [{"betas": (0.0, 0.0)}],
    "Muon": [{"lr": 0.0}, {"momentum": 0.0}, {"weight_decay": 0.0}],
    "LBFGS": [{"lr": 0.0}],
    "Adafactor": [{"lr": 0.0}, {"beta2_decay": 0.0}, {"d": 1.0}, {"weight_decay": 0.0}],
}
IMPOSSIBLE: dict[str, list[dict[str, Any]]] = {
    "SparseAdam": [{"lr": 0.0}, {"eps": 0.0}, {"betas": (1.0, 0.9)}, {"betas": (0.9, 1.0)}, {"betas": (-0.1, 0.9)}],
    "Muon": [{"lr": -1.0}, {"momentum": -0.1}, {"weight_decay": -0.1}, {"adjust_lr_fn": "nothing"}],
    "LBFGS": [{"lr": -0.1}],
    "Adafactor": [
        {"lr": -0.1},
        {"beta2_decay": 0.1},
        {"d": 0.5},
        {"weight_decay": -0.1},
        {"eps": (-1.0, 1e-3)},
        {"eps": (None, -1e-3)},
    ],
}


@pytest.mark.parametrize("name", ALLOWED)
def test_settings_at_the_end_of_their_range_are_allowed(name: str) -> None:
    """The bounds of the documented ranges are allowed."""
    for settings in ALLOWED[name]:
        made(name, torch.zeros(2, 2), **settings)


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_settings_outside_of_their_range_are_refused(name: str) -> None:
    """Settings outside of the documented ranges raise ValueError."""
    for settings in IMPOSSIBLE[name]:
        with pytest.raises(ValueError, match=r"nvalid|should be|must be|not in|not supported|Adjust"):
            made(name, torch.zeros(2, 2), **settings)


@pytest.mark.parametrize("name", ["SparseAdam", "Adafactor"])
def test_complex_weights_are_refused(name: str) -> None:
    """An optimizer for real weights refuses complex ones, in its constructor or in its first step."""
    weight = torch.zeros(2, 2, dtype=torch.complex64)
    weight.grad = torch.ones(2, 2, dtype=torch.complex64)
    with pytest.raises((ValueError, RuntimeError), match="complex"):
        made(name, weight).step()


def test_onecyclelr_cycles_momentum_between_its_defaults() -> None:
    """`OneCycleLR` begins with a momentum of 0.95 and a 25th of the rate, and reaches 0.85 and the whole rate.

    It ends with a ten thousandth of the first rate.
    """
    weight = torch.zeros(2, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.9)
    scheduler = rates.OneCycleLR(optimizer, 0.5, total_steps=10)
    seen = []
    for step in range(10):
        seen.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["momentum"]))
        optimizer.step()
        if step < 9:
            scheduler.step()
    assert seen[0] == pytest.approx((0.02, 0.95))
    assert max(seen) == pytest.approx((0.5, 0.85))
    assert seen[-1] == pytest.approx((0.02 / 1e4, 0.95))
    assert seen.index(max(seen)) == 2


@pytest.mark.parametrize("adam", [False, True], ids=["momentum", "betas"])
def test_cycliclr_sets_the_momentum_when_it_is_made(adam: bool) -> None:
    """The constructor of `CyclicLR` sets the group's rate to the lowest one, and its momentum to the largest one."""
    weight = torch.zeros(2, requires_grad=True)
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam([weight], lr=1.0, betas=(0.5, 0.99))
        if adam
        else torch.optim.SGD([weight], lr=1.0, momentum=0.5)
    )
    rates.CyclicLR(optimizer, 0.1, 0.5)
    (group,) = optimizer.param_groups
    assert group["lr"] == 0.1
    if adam:
        assert group["betas"] == (0.9, 0.99)
    else:
        assert group["momentum"] == 0.9


def test_cycliclr_has_its_base_rate_whatever_the_group_has() -> None:
    """The rates of `CyclicLR` begin at its own base, even if the group has an initial rate of another scheduler."""
    optimizer = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=1.0)
    optimizer.param_groups[0]["initial_lr"] = 0.25
    scheduler = rates.CyclicLR(optimizer, 0.1, 0.5, step_size_up=4, cycle_momentum=False)
    assert scheduler.base_lrs == [0.1]
    for wanted in (0.2, 0.3, 0.4, 0.5, 0.4):
        optimizer.step()
        scheduler.step()
        assert optimizer.param_groups[0]["lr"] == pytest.approx(wanted)


@pytest.mark.parametrize(("mode", "iterations"), [("cycle", [1, 1, 1, 2]), ("iterations", [0, 2, 3, 5])])
def test_cycliclr_scales_by_cycle_or_by_iteration(mode: str, iterations: list[int]) -> None:
    """A custom function gets the number of the cycle or of the iteration, according to `scale_mode`."""
    asked: list[float] = []

    def scale(number: float) -> float:
        asked.append(number)
        return 1.0

    optimizer = torch.optim.SGD([torch.zeros(2, requires_grad=True)], lr=1.0)
    scheduler = rates.CyclicLR(
        optimizer, 0.1, 0.5, step_size_up=2, scale_fn=scale, scale_mode=mode, cycle_momentum=False
    )
    for _ in range(5):
        optimizer.step()
        scheduler.step()
    assert [asked[number] for number in (0, 2, 3, 5)] == iterations


SCHEDULERS_REFUSE: dict[str, tuple[type[Exception], Callable[[torch.optim.Optimizer], object]]] = {
    "OneCycleLR_with_epochs_only": (ValueError, lambda o: rates.OneCycleLR(o, 1.0, epochs=3)),
    "OneCycleLR_with_steps_per_epoch_only": (ValueError, lambda o: rates.OneCycleLR(o, 1.0, steps_per_epoch=3)),
    "OneCycleLR_of_0_epochs": (ValueError, lambda o: rates.OneCycleLR(o, 1.0, epochs=0, steps_per_epoch=3)),
    "CosineAnnealingWarmRestarts_with_a_text": (
        ValueError,
        lambda o: rates.CosineAnnealingWarmRestarts(o, 2, eta_min="low"),  # type: ignore[arg-type]
    ),
    "CosineAnnealingWarmRestarts_of_a_fraction": (
        ValueError,
        lambda o: rates.CosineAnnealingWarmRestarts(o, 2.5),  # type: ignore[arg-type]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS_REFUSE)
def test_schedulers_refuse_what_is_missing_or_of_another_type(name: str) -> None:
    """An incomplete length, and numbers of another type, are refused."""
    kind, make = SCHEDULERS_REFUSE[name]
    with pytest.raises(kind):
        make(torch.optim.SGD([torch.zeros(2)], lr=1.0, momentum=0.9))


def test_sequentiallr_of_nothing_says_so() -> None:
    """`SequentialLR` without schedulers raises ValueError, which says that it needs one."""
    with pytest.raises(ValueError, match="at least one scheduler"):
        rates.SequentialLR(torch.optim.SGD([torch.zeros(2)], lr=1.0), [], [])


def test_reducelronplateau_state_has_the_mode() -> None:
    """A state includes its mode: a scheduler for losses that loads one for accuracies then expects increases."""
    first, second = (torch.optim.SGD([torch.zeros(2)], lr=1.0) for _ in range(2))
    grows = rates.ReduceLROnPlateau(first, mode="max", factor=0.5, patience=0)
    falls = rates.ReduceLROnPlateau(second, mode="min", factor=0.5, patience=0)
    grows.step(1.0)
    falls.load_state_dict(grows.state_dict())
    falls.step(2.0)
    assert second.param_groups[0]["lr"] == 1.0
    falls.step(1.0)
    assert second.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("hook", ["state_dict_post", "state_dict_pre", "load_state_dict_pre", "load_state_dict_post"])
def test_hooks_of_states_run_in_the_order_of_their_registration(hook: str) -> None:
    """Hooks run in the order of their registration, and a hook with `prepend` runs before all others."""
    optimizer = torch.optim.SGD([torch.zeros(2)], lr=1.0)
    calls: list[str] = []

    def named(name: str) -> Callable[..., None]:
        return lambda *_: calls.append(name)

    register = getattr(optimizer, f"register_{hook}_hook")
    register(named("first"))
    register(named("second"))
    register(named("before"), prepend=True)
    optimizer.load_state_dict(optimizer.state_dict())
    assert calls == ["before", "first", "second"]


def test_hook_that_returns_a_state_replaces_it() -> None:
    """A state that a hook returns replaces the loaded one before `load_state_dict`, or the result of `state_dict`."""
    optimizer = torch.optim.SGD([torch.zeros(2)], lr=1.0)
    other = torch.optim.SGD([torch.zeros(2)], lr=0.25).state_dict()
    optimizer.register_load_state_dict_pre_hook(lambda *_: other)
    optimizer.load_state_dict(optimizer.state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.25
    optimizer.register_state_dict_post_hook(lambda *_: {"replaced": True})
    assert optimizer.state_dict() == {"replaced": True}


def test_zero_grad_keeps_what_it_does_not_need_to_change(device: torch.device) -> None:
    """Zeroed in place, a gradient that autograd tracks is detached, and one that requires grad no longer does."""
    weight = torch.ones(3, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1)
    weight.grad = torch.ones(3, device=device, requires_grad=True)
    optimizer.zero_grad(set_to_none=False)
    assert weight.grad.tolist() == [0.0] * 3
    assert not weight.grad.requires_grad


def test_add_param_group_takes_any_iterable(device: torch.device) -> None:
    """The weights of a group may be a generator, with or without names."""
    weights = [torch.zeros(2, device=device) for _ in range(4)]
    optimizer = torch.optim.SGD((weight for weight in weights[:2]), lr=0.1)
    optimizer.add_param_group({"params": (weight for weight in weights[2:]), "lr": 0.2})
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 2]
    assert all(a is b for a, b in zip(weights, [w for g in optimizer.param_groups for w in g["params"]], strict=True))
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": (weight for weight in weights[:1])})
