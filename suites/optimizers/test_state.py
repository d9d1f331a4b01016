"""Optimizer state between steps: state dictionaries, copies, and the values that they restore."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch

from .catalogue import CAPTURABLE, KINDS, Kind, give, new_gradients, new_weights, with_forms, with_kinds

pytestmark = pytest.mark.filterwarnings("ignore:This instance was constructed with capturable=True")

STEPS = 3
#: Above the numbers that bfloat16 can count: 256 plus one is 256 there.
MANY = 260


def trained(
    device: torch.device, kind: Kind, form: str, settings: str, steps: int = STEPS
) -> tuple[list[torch.Tensor], Any]:
    """Return weights and their optimizer after a few steps.

    The weights are float32 without autograd, so that every implementation accepts them and loaded state, which gets
    their dtype, does not change.
    """
    weights = [weight.detach() for weight in new_weights(device, torch.float32)]
    optimiser = kind.make(weights, form, settings)
    for gradients in new_gradients(steps):
        give(weights, gradients)
        optimiser.step()
    return weights, optimiser


def go_on(weights: list[torch.Tensor], optimiser: Any, gradients: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    for step in gradients:
        give(weights, step)
        optimiser.step()
    return weights


def through_a_file(value: Any) -> Any:
    """Return the value after `torch.save` and `torch.load(weights_only=True)`."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@with_forms("decay")
@pytest.mark.parametrize("way", ["memory", "file"])
def test_load_state_dict_continues_training(
    device: torch.device, kind: Kind, form: str, settings: str, way: str
) -> None:
    """An optimizer that loads another's state, in memory or from a file, continues bitwise like the other one."""
    weights, optimiser = trained(device, kind, form, settings)
    others = [weight.clone() for weight in weights]
    other = kind.make(others, form, settings, lr=0.7)
    state = optimiser.state_dict()
    other.load_state_dict(copy.deepcopy(state) if way == "memory" else through_a_file(state))
    gradients = new_gradients(STEPS)

    first = go_on(weights, optimiser, gradients)
    second = go_on(others, other, gradients)

    assert all(map(torch.equal, first, second))


@with_kinds()
def test_load_state_dict_omitted_changes_the_weights(device: torch.device, kind: Kind) -> None:
    """Control: without the loaded state, the weights differ."""
    settings = "momentum" if "momentum" in kind.settings else "decay" if "decay" in kind.settings else "plain"
    weights, optimiser = trained(device, kind, "one_by_one", settings)
    others = [weight.clone() for weight in weights]
    gradients = new_gradients(STEPS)

    first = go_on(weights, optimiser, gradients)
    second = go_on(others, kind.make(others, "one_by_one", settings), gradients)

    assert not torch.equal(first[2], second[2])


@with_forms("decay")
def test_load_state_dict_of_the_plain_form_by_every_form(
    device: torch.device, kind: Kind, form: str, settings: str
) -> None:
    """Every other implementation can load a state dictionary of the plain one, within float32's rounding."""
    weights, optimiser = trained(device, kind, "one_by_one", settings)
    others = [weight.clone() for weight in weights]
    other = kind.make(others, form, settings, lr=0.7)
    state = optimiser.state_dict()
    own = {name: value for name, value in other.param_groups[0].items() if name != "params"}
    other.load_state_dict(copy.deepcopy(state))
    for name in ("foreach", "fused", "capturable", "differentiable"):
        if name in own:
            assert other.param_groups[0][name] == state["param_groups"][0][name], name
            other.param_groups[0][name] = own[name]
    if form in CAPTURABLE or form == "fused":  # keeps the step count on the device
        for kept in other.state.values():
            for name in ("step", "eta", "mu", "mu_product"):
                if name in kept:
                    kept[name] = torch.as_tensor(kept[name], dtype=torch.float32).to(device)
    gradients = new_gradients(STEPS)

    first = go_on(weights, optimiser, gradients)
    second = go_on(others, other, gradients)

    for one, two in zip(first, second, strict=True):
        torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-4)


@with_kinds()
def test_load_state_dict_converts_state_to_the_weights_dtype_and_device(device: torch.device, kind: Kind) -> None:
    """Loaded state is converted to the weights' dtype and device, except for the dtype of the step count.

    The step count would stop at 256 in bfloat16.
    """
    _, optimiser = trained(torch.device("cpu"), kind, "one_by_one", "plain", MANY)
    weights = [weight.detach() for weight in new_weights(device, torch.bfloat16)]
    other = kind.make(weights, "one_by_one", "plain")
    counted = {name for kept in optimiser.state.values() for name in kept if name == "step"}

    other.load_state_dict(optimiser.state_dict())

    for weight, before in zip(weights, optimiser.state.values(), strict=False):  # SGD has no state here
        for name, value in before.items():
            if isinstance(value, torch.Tensor) and name != "step":
                assert torch.equal(other.state[weight][name].cpu(), value.bfloat16()), name
    assert all(set(other.state.get(weight, {})) >= counted for weight in weights)
    for more in range(3):
        for weight in weights:
            kept = other.state.get(weight, {})
            for name, value in kept.items():
                if isinstance(value, torch.Tensor) and name != "step" and value.is_floating_point():
                    assert (value.dtype, value.device) == (torch.bfloat16, device), name
            if "step" in kept:
                assert kept["step"].dtype == torch.float32
                assert kept["step"].item() == MANY + more
        give(weights, new_gradients(1)[0])
        other.step()


@with_forms("decay")
def test_state_step_of_bfloat16_weights_is_float32(device: torch.device, kind: Kind, form: str, settings: str) -> None:
    """For bfloat16 weights the step count is float32 in every implementation, from the first step and after loading."""
    weights = [weight.detach() for weight in new_weights(device, torch.bfloat16)]
    optimiser = kind.make(weights, form, settings)
    gradients = new_gradients(3)
    go_on(weights, optimiser, gradients[:1])
    state = copy.deepcopy(optimiser.state_dict())
    for kept in state["state"].values():
        if "step" in kept:
            assert (kept["step"].dtype, kept["step"].item()) == (torch.float32, 1)
            kept["step"].fill_(MANY)

    optimiser.load_state_dict(state)
    go_on(weights, optimiser, gradients[1:])

    found = [(kept["step"].dtype, kept["step"].item()) for kept in optimiser.state.values() if "step" in kept]
    assert found == [(torch.float32, MANY + 2)] * (len(weights) if kind.name != "SGD" else 0)


@with_kinds()
@pytest.mark.types("float64")
def test_load_state_dict_refuses_groups_of_another_shape(device: torch.device, kind: Kind) -> None:
    """A state dictionary with another number of groups or weights raises ValueError and changes nothing."""
    settings = "momentum" if "momentum" in kind.settings else "plain"
    weights, optimiser = trained(device, kind, "one_by_one", settings)
    fewer = kind.make(weights[:2], "one_by_one", settings)
    more = kind.make([{"params": weights[:1]}, {"params": weights[1:]}], "one_by_one", settings)  # type: ignore[list-item]
    for other in (fewer, more):
        other.step()

    for other, text in ((fewer, "doesn't match the size"), (more, "different number of parameter groups")):
        for one, two in ((other, optimiser), (optimiser, other)):
            kept = copy.deepcopy(one.state_dict())
            with pytest.raises(ValueError, match=text):
                one.load_state_dict(two.state_dict())
            assert kept["state"]
            assert str(one.state_dict()) == str(kept)


@pytest.mark.parametrize("way", ["deepcopy", "pickle"])
@with_kinds()
def test_deepcopy_and_pickle_of_an_optimizer_are_independent(device: torch.device, kind: Kind, way: str) -> None:
    """A copy of an optimizer with its weights continues like the original, and does not affect it."""
    settings = "momentum" if "momentum" in kind.settings else "plain"  # SGD has no state without momentum
    weights, optimiser = trained(device, kind, "one_by_one", settings)
    both = (weights, optimiser)
    others, other = copy.deepcopy(both) if way == "deepcopy" else pickle.loads(pickle.dumps(both))
    gradients = new_gradients(STEPS)
    before = [weight.clone() for weight in weights]

    second = go_on(others, other, gradients)
    assert all(map(torch.equal, weights, before))
    first = go_on(weights, optimiser, gradients)

    assert all(map(torch.equal, first, second))


def test_state_dict_and_step_hooks_see_and_change(device: torch.device) -> None:
    """Hooks of `state_dict`, `load_state_dict` and `step` run in order and can replace their argument.

    Step pre-hooks run before the weights change, and post-hooks after it; removed hooks do not run.
    """
    weights, optimiser = trained(device, KINDS["Adam"], "one_by_one", "plain")
    before = weights[0].clone()
    calls: list[str] = []

    def moved() -> str:
        return "moved" if not torch.equal(weights[0], before) else "unmoved"

    def marked(_: Any, state: dict[str, Any]) -> dict[str, Any]:
        calls.append("saved")
        return state | {"mark": 17}

    def unmarked(_: Any, state: dict[str, Any]) -> dict[str, Any]:
        calls.append(f"loading {state.get('mark')}")
        return {name: value for name, value in state.items() if name != "mark"}

    handles = [
        optimiser.register_state_dict_pre_hook(lambda _: calls.append("saving")),
        optimiser.register_state_dict_post_hook(marked),
        optimiser.register_load_state_dict_pre_hook(unmarked),
        optimiser.register_load_state_dict_post_hook(lambda _: calls.append("loaded")),
        optimiser.register_step_pre_hook(lambda *_: calls.append(f"stepping {moved()}")),
        optimiser.register_step_post_hook(lambda *_: calls.append(f"stepped {moved()}")),
    ]
    state = optimiser.state_dict()
    optimiser.load_state_dict(state)
    give(weights, new_gradients(1)[0])
    optimiser.step()
    seen = list(calls)
    for handle in handles:
        handle.remove()
    optimiser.load_state_dict(optimiser.state_dict())
    optimiser.step()

    assert state["mark"] == 17
    assert seen == ["saving", "saved", "loading 17", "loaded", "stepping unmoved", "stepped moved"]
    assert calls == seen
