"""Parameter groups with their own settings, closures, and values that a step does not change."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from .catalogue import CAPTURABLE, FORMS, KINDS, Kind, give, new_gradients, new_weights, with_forms, with_kinds

pytestmark = pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True")

STEPS = 3


def detached(device: torch.device, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """Return weights without autograd, so that a differentiable implementation can write to them."""
    return [weight.detach() for weight in new_weights(device, dtype)]


def groups_of(weights: list[torch.Tensor], settings: list[dict[str, Any]]) -> Any:
    return [{"params": [weight], **own} for weight, own in zip(weights, settings, strict=True)]


@with_forms("plain")
@pytest.mark.types("float64")
def test_param_groups_have_their_own_settings(device: torch.device, kind: Kind, form: str, settings: str) -> None:
    """Weights in groups with their own settings are bitwise equal to those in separate optimizers.

    Settings that a group lacks come from the optimizer.
    """
    others = kind.settings[next(name for name in ("dampening", "decay", "limits") if name in kind.settings)]
    rates: list[dict[str, Any]] = [{"lr": 0.3}, {}, {**others, "lr": 0.01, "maximize": True}]
    # Adagrad's sums start with the optimizer's value, whatever the group has.
    rates[2].pop("initial_accumulator_value", None)
    weights = detached(device)
    alone = [weight.clone() for weight in weights]
    together = kind.make(groups_of(weights, rates), form, settings)
    apart = [kind.make([weight], form, settings, **own) for weight, own in zip(alone, rates, strict=True)]

    for gradients in new_gradients(STEPS):
        give(weights, gradients)
        give(alone, gradients)
        together.step()
        for optimiser in apart:
            optimiser.step()

    for one, two in zip(weights, alone, strict=True):
        assert torch.equal(one, two)


@with_forms("decay")
@pytest.mark.types("float64")
def test_lr_can_be_a_tensor(device: torch.device, kind: Kind, form: str, settings: str) -> None:
    """A tensor learning rate equals the number, and a value written to it applies at the next step.

    The tensor has no dimension, or one. The tolerance is 1e-6, because the tensor is float32. Adam's foreach
    implementation, unless capturable, raises.
    """
    if form == "foreach" and kind.name in ("Adam", "AdamW"):
        with pytest.raises(ValueError, match="lr as a Tensor"):
            kind.make(detached(device), form, settings, lr=torch.tensor(0.25))
        return
    for rate in (torch.tensor(0.25, device=device), torch.tensor([0.25], device=device)):
        weights = detached(device)
        others = [weight.clone() for weight in weights]
        by_tensor = kind.make(weights, form, settings, lr=rate)
        by_number = kind.make(others, form, settings, lr=0.25)

        for step, gradients in enumerate(new_gradients(STEPS)):
            if step == 1:
                rate.fill_(0.125)
                by_number.param_groups[0]["lr"] = 0.125
            give(weights, gradients)
            give(others, gradients)
            by_tensor.step()
            by_number.step()

        for one, two in zip(weights, others, strict=True):
            torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)


@pytest.mark.types("float64")
def test_add_param_group_takes_effect(device: torch.device) -> None:
    """An added group takes part from then on, with default settings; a weight that is already in a group raises."""
    first, second, _ = detached(device)
    optimiser = torch.optim.SGD([first], lr=0.5)
    start = [first.clone(), second.clone()]
    one = torch.ones((), dtype=torch.float64, device=device)

    first.grad, second.grad = one, torch.ones_like(second)
    optimiser.step()
    optimiser.add_param_group({"params": second})
    optimiser.add_param_group({"params": [torch.zeros(1, device=device)], "lr": 0.25})
    optimiser.step()

    assert torch.equal(first, start[0] - 0.5 - 0.5)  # rounded after each step
    assert torch.equal(second, start[1] - 0.5)
    assert [group["lr"] for group in optimiser.param_groups] == [0.5, 0.5, 0.25]
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimiser.add_param_group({"params": [second]})


@pytest.mark.parametrize("what", ["nothing", "a_set", "no_tensor", "no_leaf", "one_tensor"])
def test_params_must_be_tensors_in_an_ordered_collection(device: torch.device, what: str) -> None:
    """Missing weights, a set, non-tensors, a bare tensor and non-leaf tensors raise ValueError or TypeError."""
    weight = torch.ones(2, device=device, requires_grad=True)
    wrong: dict[str, tuple[Any, type[Exception], str]] = {
        "nothing": ([], ValueError, "empty parameter list"),
        "a_set": ([{"params": {weight}}], TypeError, "ordered collections"),
        "no_tensor": ([1.0], TypeError, "can only optimize Tensors"),
        "no_leaf": ([weight * 2], ValueError, "non-leaf Tensor"),
        "one_tensor": (weight, TypeError, "iterable of Tensors"),
    }
    given, error, text = wrong[what]

    with pytest.raises(error, match=text):
        torch.optim.SGD(given, lr=0.1)


@with_kinds()
@pytest.mark.parametrize("setting", ["lr", "weight_decay", "eps", "betas", "momentum", "rho"])
def test_settings_that_are_impossible_are_a_valueerror_that_names_them(
    device: torch.device, kind: Kind, setting: str
) -> None:
    """An invalid setting raises ValueError with its name, and an unsupported setting raises TypeError with its name."""
    names = {"lr": "learning rate", "eps": "epsilon"}
    several: list[tuple[Any, str]] = [(-1.0, f"Invalid {names.get(setting, setting)}")]
    if setting == "betas":
        first, second = "Invalid beta parameter at index 0", "Invalid beta parameter at index 1"
        several = [((1.0, 0.9), first), ((0.9, 1.0), second), ((-0.1, 0.9), first), ((0.9, -0.1), second)]
    has = setting in kind.make([torch.zeros(1)], "one_by_one", "plain").defaults

    for wrong, says in several:
        with pytest.raises(ValueError if has else TypeError, match=says if has else f"unexpected.*'{setting}'"):
            kind.make([torch.zeros(1, device=device)], "one_by_one", "plain", **{setting: wrong})


@with_forms("momentum", "decay")
@pytest.mark.types("float64")
def test_step_ignores_weights_without_a_gradient(device: torch.device, kind: Kind, form: str, settings: str) -> None:
    """A step ignores weights without a gradient, also in decay, and creates no state, even if none has a gradient.

    Adagrad's initial state is unchanged.
    """
    weights = detached(device)
    optimiser = kind.make(weights, form, settings)
    start = [weight.clone() for weight in weights]
    kept = copy.deepcopy(optimiser.state.get(weights[1], {}))
    optimiser.step()
    assert all(map(torch.equal, weights, start))
    for gradients in new_gradients(STEPS):
        give(weights, gradients)
        weights[1].grad = None
        optimiser.step()

    assert torch.equal(weights[1], start[1])
    assert not torch.equal(weights[2], start[2])
    assert list(kept) == (["step", "sum"] if kind.name == "Adagrad" else [])
    found = optimiser.state.get(weights[1], {})
    assert {name: value.tolist() for name, value in found.items()} == {
        name: value.tolist() for name, value in kept.items()
    }


WRITES_GRADIENTS = {
    (
        "SGD",
        "foreach",
    ): "SGD's foreach implementation adds the momentum to the gradients in place with nesterov, though foreach "
    "optimisers should not write to gradients: https://github.com/pytorch/pytorch/pull/92706"
}


@pytest.mark.parametrize(
    ("kind", "form", "settings"),
    [
        pytest.param(
            kind,
            form,
            ["nesterov"] if (kind.name, form) in WRITES_GRADIENTS else list(kind.settings),
            id=f"{kind.name}-{form}",
            marks=[pytest.mark.xfail(raises=AssertionError, reason=WRITES_GRADIENTS[kind.name, form])]
            if (kind.name, form) in WRITES_GRADIENTS
            else [],
        )
        for kind in KINDS.values()
        for form in ("one_by_one", "foreach")
    ]
    + [
        pytest.param(
            KINDS[name],
            form,
            [settings for settings in KINDS[name].settings if settings != "nesterov"],
            id=f"{name}-{form}-others",
        )
        for name, form in WRITES_GRADIENTS
    ],
)
@pytest.mark.types("float64")
def test_step_leaves_gradients_as_they_are(device: torch.device, kind: Kind, form: str, settings: list[str]) -> None:
    """A step does not write to gradients, with any settings."""
    for each in settings:
        weights = detached(device)
        optimiser = kind.make(weights, form, each)
        for gradients in new_gradients(STEPS):
            give(weights, gradients)
            optimiser.step()
            for weight, gradient in zip(weights, gradients, strict=True):
                assert weight.grad is not None
                assert torch.equal(weight.grad.cpu(), gradient), each


@with_kinds()
@pytest.mark.types("float64")
def test_step_runs_a_closure_once_with_gradients_on(device: torch.device, kind: Kind) -> None:
    """A step with a closure runs it once with grad mode on, uses its gradients and returns its result."""
    weights = new_weights(device)
    optimiser = kind.make(weights, "one_by_one", "plain")
    start = [weight.detach().clone() for weight in weights]
    calls: list[bool] = []

    def closure() -> torch.Tensor:
        calls.append(torch.is_grad_enabled())
        optimiser.zero_grad()
        loss = sum((weight.square().sum() for weight in weights), torch.zeros((), device=device))
        loss.backward()
        return loss

    with torch.no_grad():
        found: Any = optimiser.step(closure)

    assert calls == [True]
    assert found.item() == pytest.approx(sum(float(weight.square().sum()) for weight in start))
    assert all(not torch.equal(weight.detach(), before) for weight, before in zip(weights, start, strict=True))


def test_zero_grad_clears_gradients_of_every_group(device: torch.device) -> None:
    """`zero_grad` clears the gradients of all weights in all groups."""
    weights = [torch.ones(2, device=device, requires_grad=True) for _ in range(3)]
    optimiser = torch.optim.SGD([{"params": weights[:1]}, {"params": weights[1:]}], lr=0.1)
    torch.stack(weights).sum().backward()
    assert all(weight.grad is not None for weight in weights)

    optimiser.zero_grad()

    assert [weight.grad for weight in weights] == [None] * 3


@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad_sets_gradients_to_none_or_zero(device: torch.device, to_none: bool) -> None:
    """`zero_grad` sets gradients to None, or to zero in place and detached."""
    weight = torch.ones(3, device=device, requires_grad=True)
    optimiser = torch.optim.SGD([weight], lr=0.1)
    (gradient,) = torch.autograd.grad((weight**3).sum(), weight, create_graph=True)
    weight.grad = gradient

    optimiser.zero_grad(set_to_none=to_none)

    if to_none:
        assert weight.grad is None
    else:
        assert weight.grad is gradient
        assert weight.grad.tolist() == [0.0] * 3
        assert weight.grad.grad_fn is None


@pytest.mark.parametrize(
    ("forms", "names"),
    [
        (("foreach", "fused"), ["Adam", "AdamW", "SGD", "Adagrad"]),
        (("differentiable", "fused"), ["Adam", "AdamW", "SGD", "Adagrad"]),
    ],
    ids=["foreach_and_fused", "differentiable_and_fused"],
)
def test_foreach_fused_and_capturable_that_exclude_each_other(
    device: torch.device, forms: tuple[str, str], names: list[str]
) -> None:
    """Two mutually exclusive implementations raise RuntimeError with their names."""
    options = FORMS[forms[0]] | FORMS[forms[1]]
    options = {name: True for name, value in options.items() if value}
    for name in names:
        with pytest.raises(RuntimeError, match=f"`fused`.*`{forms[0]}`"):
            getattr(torch.optim, name)([torch.zeros(1, device=device)], lr=0.1, **options)


@pytest.mark.requires(not_={"accelerator": True})
@pytest.mark.parametrize("name", [kind.name for kind in KINDS.values() if "capturable" in kind.forms])
def test_capturable_on_the_cpu_is_refused(device: torch.device, name: str) -> None:
    """A capturable optimizer, also with `foreach`, raises AssertionError for CPU weights and names the devices."""
    for form in CAPTURABLE:
        weight = torch.ones(2, device=device)
        weight.grad = torch.ones(2, device=device)
        optimiser = KINDS[name].make([weight], form, "plain")

        with pytest.raises(AssertionError, match=r"capturable=True.*cuda"):
            optimiser.step()


@pytest.mark.parametrize("form", ["one_by_one", "foreach"])
@with_kinds()
@pytest.mark.types("float64")
def test_complex_weights_step_as_pairs_of_numbers(device: torch.device, kind: Kind, form: str) -> None:
    """Complex weights are updated like their real and imaginary parts as real weights, also several together.

    The tolerance is float64 rounding, because complex kernels may fuse a product with a sum.
    """
    for settings in kind.settings:
        starts = [torch.randn(size, 2, dtype=torch.float64) for size in (4, 3)]
        pairs = [start.to(device, copy=True) for start in starts]
        wholes = [torch.view_as_complex(start.clone()).to(device) for start in starts]
        by_pairs, by_whole = (kind.make(weights, form, settings) for weights in (pairs, wholes))

        for _ in range(STEPS):
            for pair, whole in zip(pairs, wholes, strict=True):
                gradient = torch.randn(len(pair), 2, dtype=torch.float64)
                pair.grad, whole.grad = gradient.to(device, copy=True), torch.view_as_complex(gradient).to(device)
            by_pairs.step()
            by_whole.step()

        for pair, whole in zip(pairs, wholes, strict=True):
            torch.testing.assert_close(torch.view_as_real(whole.cpu()), pair.cpu(), rtol=1e-12, atol=1e-12)
