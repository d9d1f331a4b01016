"""The functions behind the optimizers, such as `torch.optim.adamw.adamw`, and settings that are tensors."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

from .catalogue import new_gradients, new_weights

#: The settings of each function, which are those of its class.
SETTINGS: dict[str, dict[str, Any]] = {
    "Adadelta": {"lr": 0.5, "rho": 0.8, "eps": 1e-6, "weight_decay": 0.1},
    "Adagrad": {"lr": 0.1, "lr_decay": 0.2, "eps": 1e-6, "weight_decay": 0.1},
    "Adam": {"lr": 0.1, "betas": (0.7, 0.9), "eps": 1e-6, "weight_decay": 0.1, "amsgrad": False},
    "Adamax": {"lr": 0.1, "betas": (0.7, 0.9), "eps": 1e-6, "weight_decay": 0.1},
    "AdamW": {"lr": 0.1, "betas": (0.7, 0.9), "eps": 1e-6, "weight_decay": 0.1, "amsgrad": False},
    "ASGD": {"lr": 0.1, "lambd": 0.01, "alpha": 0.7, "t0": 1.0, "weight_decay": 0.1},
    "NAdam": {"lr": 0.1, "betas": (0.7, 0.9), "eps": 1e-6, "weight_decay": 0.1, "momentum_decay": 0.01},
    "RAdam": {"lr": 0.1, "betas": (0.7, 0.9), "eps": 1e-6, "weight_decay": 0.1},
    "RMSprop": {"lr": 0.1, "alpha": 0.8, "eps": 1e-6, "weight_decay": 0.1, "momentum": 0.0, "centered": False},
    "Rprop": {"lr": 0.1, "etas": (0.5, 1.2), "step_sizes": (1e-6, 50.0)},
}
#: The names in a weight's state of the lists that have other names in the functions.
STATE = {
    "square_avgs": "square_avg",
    "acc_deltas": "acc_delta",
    "state_sums": "sum",
    "state_steps": "step",
    "exp_avgs": "exp_avg",
    "exp_avg_sqs": "exp_avg_sq",
    "exp_infs": "exp_inf",
    "axs": "ax",
    "mus": "mu",
    "etas": "eta",
    "mu_products": "mu_product",
    "prevs": "prev",
    "step_sizes": "step_size",
}
#: Settings that are separate arguments of the functions, and pairs in the classes.
PAIRS = {"betas": ("beta1", "beta2"), "etas": ("etaminus", "etaplus"), "step_sizes": ("step_size_min", "step_size_max")}


def function_of(name: str) -> Callable[..., None]:
    found: Callable[..., None] = getattr(importlib.import_module(f"torch.optim.{name.lower()}"), name.lower())
    return found


def lists_of(name: str, optimizer: torch.optim.Optimizer, weights: list[torch.Tensor], **more: bool) -> list[list[Any]]:
    """Return the lists that a function takes by position: weights, gradients, and the state of the optimizer."""
    found: list[list[Any]] = []
    for parameter in inspect.signature(function_of(name)).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY or parameter.default is not parameter.empty:
            break
        if parameter.name == "params":
            found.append(list(weights))
        elif parameter.name == "grads":
            found.append([weight.grad for weight in weights])
        elif parameter.name in STATE or (parameter.name == "max_exp_avg_sqs" and more.get("amsgrad")):
            key = STATE.get(parameter.name, "max_exp_avg_sq")
            found.append([optimizer.state[weight][key] for weight in weights])
        else:  # of a variant that the settings do not select
            found.append([])
    return found


def settings_of(name: str, **more: bool) -> dict[str, Any]:
    """Return the settings in the form that a function takes, and additional ones."""
    found: dict[str, Any] = {"maximize": False, "has_complex": False, "foreach": False}
    for setting, value in SETTINGS[name].items():
        found |= dict(zip(PAIRS[setting], value, strict=True)) if setting in PAIRS else {setting: value}
    if name == "Rprop":  # its rate is the first step size, which is in the state
        del found["lr"]
    return found | more


def trained(name: str, device: torch.device, **more: bool) -> tuple[list[torch.Tensor], torch.optim.Optimizer]:
    """Return weights after a step of an optimizer, with gradients for the next one."""
    weights = [weight.detach().to(device) for weight in new_weights(device)]
    optimizer = getattr(torch.optim, name)(weights, foreach=False, **(SETTINGS[name] | more))
    first, second = new_gradients(2)
    for gradients in (first, second):
        if gradients is second:
            optimizer.step()
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient.to(weight.device, weight.dtype)
    return weights, optimizer


@pytest.mark.parametrize(
    ("name", "more"),
    [
        *((name, {"maximize": maximize}) for name in SETTINGS for maximize in (False, True)),
        ("Adam", {"amsgrad": True}),
        ("AdamW", {"amsgrad": True}),
    ],
    ids=lambda value: value if isinstance(value, str) else "_".join(key for key in value if value[key]) or "plain",
)
@pytest.mark.types("float64")
def test_functional_step_is_that_of_the_class(device: torch.device, name: str, more: dict[str, bool]) -> None:
    """The function of an optimizer, given weights, gradients and state, performs the step of the class in place."""
    weights, optimizer = trained(name, device, **more)
    others, same = copy.deepcopy((weights, optimizer))
    for other, weight in zip(others, weights, strict=True):
        other.grad = weight.grad.clone()  # type: ignore[union-attr]
    same.param_groups[0]["params"] = others
    optimizer.step()
    function_of(name)(*lists_of(name, same, others, **more), **settings_of(name, **more))
    assert all(map(torch.equal, others, weights))
    for other, weight in zip(others, weights, strict=True):
        for key, value in optimizer.state[weight].items():
            assert value is None or torch.equal(same.state[other][key], value), key


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "ASGD"])
@pytest.mark.types("float64")
def test_functional_step_refuses_steps_that_are_numbers(device: torch.device, name: str) -> None:
    """Step counts, and NAdam's products, must be tensors: numbers, as in older releases, are refused."""
    weights, optimizer = trained(name, device)
    before = [weight.clone() for weight in weights]
    lists = ["state_steps", "mu_products"] if name == "NAdam" else ["state_steps"]
    names = list(inspect.signature(function_of(name)).parameters)
    for wrong in lists:
        given = lists_of(name, optimizer, weights)
        given[names.index(wrong)] = [1.0] * len(weights)
        with pytest.raises(RuntimeError, match=f"API has changed, `{wrong}` argument"):
            function_of(name)(*given, **settings_of(name))
    assert all(map(torch.equal, weights, before))


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.types("float64")
def test_functional_step_refuses_what_its_variants_have_not(device: torch.device, name: str) -> None:
    """`foreach` is not differentiable, and a `capturable` step has its step counts on the weights' accelerator.

    Other calls are refused and change nothing.
    """
    weights, optimizer = trained(name, device)
    before = [weight.clone() for weight in weights]
    refused = [({"foreach": True, "differentiable": True}, "_foreach ops don't support autograd")]
    if name not in ("Adagrad", "ASGD"):  # no graph captures Adagrad, and ASGD always has its step counts there
        refused.append(({"capturable": True}, "If capturable=True, "))
    for options, why in refused:
        with pytest.raises(AssertionError, match=why):
            function_of(name)(*lists_of(name, optimizer, weights), **settings_of(name, **options))
    assert all(map(torch.equal, weights, before))


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
@pytest.mark.types("float64")
def test_adam_betas_can_be_tensors(device: torch.device, name: str) -> None:
    """`betas` as two tensors of one element give the same steps as two numbers, one weight at a time."""
    betas = 0.5, 0.75
    start, steps = new_weights(device), new_gradients(3)
    results = []
    for given in (betas, tuple(torch.tensor(each, dtype=torch.float64) for each in betas)):
        weights = [weight.detach().to(device, copy=True) for weight in start]
        optimizer = getattr(torch.optim, name)(weights, lr=0.1, betas=given, foreach=False)
        for gradients in steps:
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.grad = gradient.to(weight.device, weight.dtype)
            optimizer.step()
        results.append(weights)
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_adam_betas_that_are_tensors_are_refused_with_other_settings(name: str) -> None:
    """`betas` are refused as a number and a tensor, with several elements, and for `foreach` without `capturable`."""
    one, several = torch.tensor(0.5), torch.tensor([0.5, 0.5])
    for betas, options, why in (
        ((0.5, one), {}, "either both floats or both Tensors"),
        ((one, 0.5), {}, "either both floats or both Tensors"),
        ((one, one), {"foreach": True}, r"betas\[0\] as a Tensor is not supported"),
        ((several, one), {}, r"ambiguous|must be 1-element"),
        ((one, several), {}, r"ambiguous|must be 1-element"),
    ):
        with pytest.raises((ValueError, RuntimeError), match=why):
            getattr(torch.optim, name)([torch.zeros(1)], betas=betas, **options)


@pytest.mark.types("float64")
def test_adafactor_state_of_an_older_release_continues(device: torch.device) -> None:
    """Adafactor's state from an older release, with a number as step count and no `foreach`, continues as before."""
    start = torch.arange(1.0, 7.0, dtype=torch.float64).reshape(2, 3)
    gradients = [start * factor - 2 for factor in (0.5, -1.0, 0.25)]
    results = []
    for older in (False, True):
        weight = start.to(device, copy=True)
        optimizer = torch.optim.Adafactor([weight], lr=0.1, foreach=False)
        for number, gradient in enumerate(gradients):
            if older and number == 2:
                state = {**optimizer.state[weight], "step": optimizer.state[weight]["step"].item()}
                group = {key: value for key, value in optimizer.param_groups[0].items() if key != "foreach"}
                optimizer.__setstate__({"state": {weight: state}, "param_groups": [group]})
                assert optimizer.param_groups[0]["foreach"] is None
                optimizer.param_groups[0]["foreach"] = False
                assert isinstance(optimizer.state[weight]["step"], torch.Tensor)
            weight.grad = gradient.to(device)
            optimizer.step()
        assert optimizer.state[weight]["step"].item() == 3
        results.append(weight)
    assert torch.equal(*results)


def test_lbfgs_refuses_a_step_with_a_second_group(device: torch.device) -> None:
    """A group that is added to L-BFGS later is refused at the next step, and the closure is not called."""
    optimizer = torch.optim.LBFGS([torch.zeros(1, device=device)])
    optimizer.add_param_group({"params": [torch.zeros(1, device=device)]})
    calls: list[int] = []
    with pytest.raises(AssertionError, match="exactly one param_group, but got 2"):
        optimizer.step(lambda: calls.append(1))  # type: ignore[arg-type, return-value]
    assert calls == []


def test_cosineannealinglr_get_lr_of_a_resumed_schedule_is_its_formula() -> None:
    """A `CosineAnnealingLR` created with `last_epoch` has the rate of its formula there, before its first step."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.8)
    optimizer.param_groups[0]["initial_lr"] = 0.8
    scheduler = lr_scheduler.CosineAnnealingLR(optimizer, T_max=6, eta_min=0.2, last_epoch=1)
    with pytest.warns(UserWarning, match="get_last_lr"):
        assert scheduler.get_lr() == [pytest.approx(0.2 + 0.6 * (1 + 0.5) / 2)]


@pytest.mark.requires(any=[{"device": "cuda"}, {"not_": {"accelerator": True}}])
@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_functional_step_fused_divides_by_grad_scale_and_skips_found_inf(device: torch.device, name: str) -> None:
    """With `fused`, gradients are divided by `grad_scale`, and a `found_inf` of 1 leaves weights and state as is."""
    results = []
    for scale, found_inf in ((None, None), (4.0, 0.0), (None, 1.0)):
        weights = [torch.tensor([1.0, -2.0, 3.0], device=device), torch.tensor([[0.5]], device=device)]
        gradients = [weight * 0.5 * (scale or 1.0) for weight in weights]
        averages, squares = ([torch.zeros_like(weight) for weight in weights] for _ in range(2))
        steps = [torch.zeros((), device=device) for _ in weights]
        given = {
            key: None if value is None else torch.tensor(value, device=device)
            for key, value in (("grad_scale", scale), ("found_inf", found_inf))
        }
        function_of(name)(
            weights,
            gradients,
            averages,
            squares,
            [],
            steps,
            **{**settings_of(name), "foreach": False},
            fused=True,
            **given,
        )
        results.append([*weights, *averages, *squares, *steps])
    plain, scaled, skipped = results
    torch.testing.assert_close(scaled, plain)
    assert plain[0].tolist() != [1.0, -2.0, 3.0]
    assert skipped[0].tolist() == [1.0, -2.0, 3.0]
    assert not any(each.any() for each in skipped[2:])


@pytest.mark.parametrize("name", ["Adam", "AdamW"])
def test_functional_step_foreach_takes_complex_weights_as_pairs(device: torch.device, name: str) -> None:
    """With `foreach` and `has_complex`, complex weights step as pairs of real numbers."""
    weights = [torch.tensor([1 + 2j, -3j], device=device)]
    pairs = [torch.view_as_real(weight).clone() for weight in weights]
    for each, has_complex in ((weights, True), (pairs, False)):
        zeros = [[torch.zeros_like(weight) for weight in each] for _ in range(2)]
        gradients = [weight * 0.5 for weight in each]
        given = {**settings_of(name), "foreach": True, "has_complex": has_complex}
        function_of(name)(each, gradients, *zeros, [], [torch.zeros(())], **given)
    assert pairs[0].tolist() != [[1.0, 2.0], [0.0, -3.0]]
    torch.testing.assert_close(torch.view_as_real(weights[0]), pairs[0])
