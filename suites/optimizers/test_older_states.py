"""States of older releases of torch, and the bounds of the allowed ranges of settings."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from .catalogue import KINDS, Kind, give, new_gradients, new_weights, with_kinds

#: Settings that older releases lacked: a state without them gets their defaults.
LATER = (
    "foreach",
    "maximize",
    "capturable",
    "differentiable",
    "fused",
    "decoupled_weight_decay",
    "amsgrad",
    "nesterov",
    "centered",
)
#: Entries of a weight's state that used to be numbers and are tensors now.
NUMBERS = ("step", "eta", "mu", "mu_product")


def train(
    weights: list[torch.Tensor], optimiser: torch.optim.Optimizer, gradients: Sequence[Sequence[torch.Tensor]]
) -> None:
    for each in gradients:
        give(weights, each)
        optimiser.step()


def older(state: dict[str, Any]) -> dict[str, Any]:
    """Return the state in the form of an older release."""
    found = copy.deepcopy(state)
    for group in found["param_groups"]:
        for name in LATER:
            group.pop(name, None)
    for values in found["state"].values():
        for name in NUMBERS:
            if isinstance(values.get(name), torch.Tensor):
                values[name] = float(values[name])
    return found


@with_kinds()
@pytest.mark.parametrize("way", ["load_state_dict", "setstate"])
@pytest.mark.types("float64")
def test_state_of_an_older_release_continues(device: torch.device, kind: Kind, way: str) -> None:
    """A state without later settings, and with numbers in place of tensors, continues as in its release.

    The settings that it lacks get their defaults.
    """
    weights = [weight.detach().to(device) for weight in new_weights(device)]
    optimiser = kind.make(weights, "one_by_one", "plain")
    gradients = new_gradients(5)
    train(weights, optimiser, gradients[:2])
    others = [weight.clone() for weight in weights]
    restored = kind.make(others, "one_by_one", "plain")
    state = older(optimiser.state_dict())
    if way == "load_state_dict":
        restored.load_state_dict(state)
    else:
        groups = [{**group, "params": others} for group in state["param_groups"]]
        by_weight = {others[index]: values for index, values in copy.deepcopy(state["state"]).items()}
        defaults = {name: value for name, value in restored.defaults.items() if name not in LATER}
        restored.__setstate__({"state": by_weight, "param_groups": groups, "defaults": defaults})

    made = kind.make([torch.zeros(1)], "one_by_one", "plain").param_groups[0]
    for name in LATER:
        if name in made:
            wanted = made[name] if name == "decoupled_weight_decay" else False
            assert restored.param_groups[0][name] in (wanted, None)
    train(weights, optimiser, gradients[2:])
    train(others, restored, gradients[2:])
    # The default implementation may round in another order than the one that created the state.
    torch.testing.assert_close(others, weights, rtol=1e-7, atol=1e-9)
    for values in restored.state.values():
        for name in NUMBERS:
            assert isinstance(values.get(name, torch.zeros(())), torch.Tensor)


ENDS: dict[str, Any] = {"lr": 0.0, "weight_decay": 0.0, "eps": 0.0, "betas": (0.0, 0.0), "rho": 0.0, "momentum": 0.0}


@with_kinds()
@pytest.mark.types("float64")
def test_settings_at_the_ends_of_their_ranges_are_allowed(device: torch.device, kind: Kind) -> None:
    """A rate, decay, `eps`, momentum or beta of 0 is allowed; a step with a rate of 0 does not change the weights."""
    known = kind.make([torch.zeros(1)], "one_by_one", "plain").defaults
    for setting in ENDS.keys() & known.keys():
        weights = [weight.detach().to(device) for weight in new_weights(device)]
        start = [weight.clone() for weight in weights]
        optimiser = kind.make(weights, "one_by_one", "plain", **{setting: ENDS[setting]})
        give(weights, new_gradients(1)[0])
        optimiser.step()
        if setting == "lr" and kind.name != "Rprop":
            assert all(map(torch.equal, weights, start))


REFUSED = [
    ("Adadelta", {"rho": 1.5}),
    ("Adagrad", {"lr_decay": -0.1}),
    ("Adagrad", {"initial_accumulator_value": -0.1}),
    ("RMSprop", {"alpha": -0.1}),
    ("NAdam", {"momentum_decay": -0.1}),
    ("SGD", {"nesterov": True}),
    ("SGD", {"nesterov": True, "momentum": 0.9, "dampening": 0.1}),
    ("Rprop", {"etas": (1.5, 1.2)}),
    ("Rprop", {"etas": (0.5, 0.9)}),
    ("Rprop", {"etas": (0.0, 1.2)}),
    ("Adam", {"foreach": True, "fused": True}),
    ("AdamW", {"foreach": True, "fused": True}),
    ("SGD", {"foreach": True, "fused": True}),
    ("Adagrad", {"foreach": True, "fused": True}),
    ("Adam", {"differentiable": True, "fused": True}),
    ("SGD", {"differentiable": True, "fused": True}),
    ("Adam", {"lr": torch.tensor([0.1, 0.1])}),
    ("SGD", {"lr": torch.tensor([0.1, 0.1])}),
]


@pytest.mark.parametrize(
    ("name", "given"), REFUSED, ids=lambda value: value if isinstance(value, str) else "-".join(value)
)
def test_settings_that_do_not_fit_together_are_refused(device: torch.device, name: str, given: dict[str, Any]) -> None:
    """Settings outside of their ranges, or that exclude each other, are refused in the constructor."""
    with pytest.raises((ValueError, RuntimeError)):
        KINDS[name].make([torch.zeros(1, device=device)], "one_by_one", "plain", **({"foreach": None} | given))


@pytest.mark.types("float64")
def test_lbfgs_line_search_does_not_go_up(device: torch.device) -> None:
    """With `line_search_fn="strong_wolfe"`, no step raises the loss, even if the first trial of a step is too long.

    Each step satisfies the condition of sufficient decrease, and the search ends at a flat point.
    """
    x = torch.tensor([-1.2, 1.0], dtype=torch.float64, device=device, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [x], lr=8.0, max_iter=1, max_eval=30, line_search_fn="strong_wolfe", tolerance_change=0.0
    )
    losses = []

    def closure() -> torch.Tensor:
        optimiser.zero_grad()
        loss = (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2
        loss.backward()
        return loss

    for _ in range(80):
        before = x.detach().clone()
        loss = optimiser.step(closure)
        losses.append(loss.item())
        after = closure().item()
        slope = float(optimiser.state[x]["d"] @ optimiser.state[x]["prev_flat_grad"])
        length = (x.detach() - before).norm() / optimiser.state[x]["d"].norm()
        assert slope <= 0
        assert after <= loss.item() + 1e-4 * float(length) * slope + 1e-12
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 1e-6
    assert x.tolist() == pytest.approx([1.0, 1.0], abs=1e-3)
