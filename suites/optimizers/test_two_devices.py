"""Weights on two devices: optimizers and gradient clipping treat the last one as the first."""

from __future__ import annotations

import pytest
import torch

from .catalogue import KINDS

pytestmark = pytest.mark.requires(accelerator=True, devices=2)

STEPS = 3
#: Devices of weights: the last one alone on the second, or none alone.
PLACES = [(0, 0, 1), (0, 1, 0), (1, 0, 1)]


def _weights(device: torch.device, places: tuple[int, ...]) -> list[torch.Tensor]:
    """Return a weight of its own size and values per place, each on its device."""
    made = []
    for number, place in enumerate(places):
        values = torch.linspace(-1, 1 + number, 5 + number)
        made.append(values.to(torch.device(device.type, place)).requires_grad_())
    return made


def _set_gradients(weights: list[torch.Tensor], step: int) -> None:
    for number, weight in enumerate(weights):
        weight.grad = torch.linspace(0.5 + step, -1 - number, len(weight)).to(weight.device)


@pytest.mark.parametrize("places", PLACES, ids=str)
@pytest.mark.parametrize(
    ("name", "form"),
    [(kind.name, form) for kind in KINDS.values() for form in ("foreach", "fused") if form in kind.forms],
)
def test_step_of_weights_on_two_devices(device: torch.device, name: str, form: str, places: tuple[int, ...]) -> None:
    """One optimizer for weights on two devices makes the steps that an optimizer of each weight makes, bit by bit."""
    kind = KINDS[name]
    settings = next(iter(kind.settings))
    together, apart = _weights(device, places), _weights(device, places)
    one = kind.make(together, form, settings)
    each = [kind.make([weight], form, settings) for weight in apart]

    for step in range(STEPS):
        _set_gradients(together, step)
        _set_gradients(apart, step)
        one.step()
        for optimiser in each:
            optimiser.step()
        for found, wanted in zip(together, apart, strict=True):
            assert torch.equal(found, wanted)
    one.zero_grad()
    assert all(weight.grad is None for weight in together)


@pytest.mark.parametrize("places", PLACES, ids=str)
@pytest.mark.parametrize("foreach", [None, True, False], ids=["default", "foreach", "one_by_one"])
def test_clip_grad_norm_of_gradients_on_two_devices(
    device: torch.device, foreach: bool | None, places: tuple[int, ...]
) -> None:
    """The norm covers the gradients of both devices, and is on the first one's; all gradients are scaled alike."""
    weights = _weights(device, places)
    _set_gradients(weights, 0)
    before = [weight.grad.cpu().double() for weight in weights if weight.grad is not None]
    wanted = torch.cat(before).norm()

    found = torch.nn.utils.clip_grad_norm_(weights, 0.5, foreach=foreach)

    assert found.device == weights[0].device
    torch.testing.assert_close(found.cpu().double(), wanted, rtol=1e-5, atol=0)
    for weight, gradient in zip(weights, before, strict=True):
        assert weight.grad is not None
        assert weight.grad.device == weight.device
        torch.testing.assert_close(weight.grad.cpu().double(), gradient * 0.5 / wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("places", PLACES, ids=str)
@pytest.mark.parametrize("foreach", [None, True, False], ids=["default", "foreach", "one_by_one"])
def test_clip_grad_value_of_gradients_on_two_devices(
    device: torch.device, foreach: bool | None, places: tuple[int, ...]
) -> None:
    """Each gradient of both devices is limited to the interval."""
    weights = _weights(device, places)
    _set_gradients(weights, 0)
    wanted = [weight.grad.cpu().clamp(-0.25, 0.25) for weight in weights if weight.grad is not None]

    torch.nn.utils.clip_grad_value_(weights, 0.25, foreach=foreach)

    for weight, gradient in zip(weights, wanted, strict=True):
        assert weight.grad is not None
        assert torch.equal(weight.grad.cpu(), gradient)


@pytest.mark.parametrize("places", PLACES, ids=str)
def test_vector_of_parameters_on_two_devices_is_refused(device: torch.device, places: tuple[int, ...]) -> None:
    """`parameters_to_vector` raises TypeError whichever parameter is on the other device."""
    with pytest.raises(TypeError, match="different devices"):
        torch.nn.utils.parameters_to_vector(_weights(device, places))
