"""The gradient scaler: results and arguments of `step`, optimizers that scale by themselves, and error messages."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from .training import push, weight


class Counting(torch.optim.SGD):
    """Returns its arguments, and records its own attributes at each step."""

    def __init__(self, parameters: list[torch.Tensor], lr: float) -> None:
        super().__init__(parameters, lr=lr)
        self.seen: list[tuple[Any, ...]] = []

    def step(self, *arguments: Any, **keywords: Any) -> Any:  # type: ignore[override]
        self.seen.append((getattr(self, "grad_scale", None), getattr(self, "found_inf", None), arguments, keywords))
        return "stepped", arguments, keywords


class Own(Counting):
    """Handles the scale itself, through the attributes that the scaler sets."""

    _step_supports_amp_scaling = True


class Old(torch.optim.SGD):
    """Handles the scale itself, through an argument."""

    _step_supports_amp_scaling = True

    def step(self, closure: Any = None, *, grad_scaler: Any = None) -> Any:  # type: ignore[override]
        return closure, grad_scaler


def with_gradient(device: torch.device, value: float = 2.0) -> torch.Tensor:
    x = weight(device)
    x.grad = torch.full_like(x, value)
    return x


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.types("float64")
def test_gradscaler_step_returns_what_the_optimizer_returns(device: torch.device, enabled: bool) -> None:
    """`step` passes arguments on and returns the optimizer's value; a skipped step returns None."""
    scaler = torch.amp.GradScaler(device.type, init_scale=4.0, enabled=enabled)
    x = with_gradient(device)
    optimizer = Counting([x], lr=1.0)
    scaler.scale(x.sum().detach())

    assert scaler.step(optimizer, 1, word="two") == ("stepped", (1,), {"word": "two"})  # type: ignore[comparison-overlap]
    assert x.grad is not None
    assert x.grad.tolist() == [0.5 if enabled else 2.0] * 4
    scaler.update()
    x.grad = torch.full_like(x, float("inf"))
    found = scaler.step(optimizer)
    assert found == (None if enabled else ("stepped", (), {}))  # type: ignore[comparison-overlap]


@pytest.mark.types("float64")
def test_gradscaler_gives_an_optimizer_that_asks_for_it_scale_and_found_inf(device: torch.device) -> None:
    """An optimizer with `_step_supports_amp_scaling` is always stepped, with the scale and whether there was an inf.

    Both attributes are removed afterwards. After `unscale_` there is no scale to divide by.
    """
    scaler = torch.amp.GradScaler(device.type, init_scale=8.0, growth_interval=100)
    x = with_gradient(device)
    optimizer = Own([x], lr=1.0)
    scaler.scale(x.sum().detach())
    for value, unscaled, inf in ((2.0, False, 0.0), (float("nan"), False, 1.0), (2.0, True, 0.0)):
        x.grad = torch.full_like(x, value)
        if unscaled:
            scaler.unscale_(optimizer)
        before = scaler.get_scale()
        assert scaler.step(optimizer) == ("stepped", (), {})  # type: ignore[comparison-overlap]
        scale, found, _, _ = optimizer.seen[-1]
        assert found.item() == inf
        assert scale is None if unscaled else scale.item() == before
        assert not hasattr(optimizer, "grad_scale")
        assert not hasattr(optimizer, "found_inf")
        with pytest.raises(RuntimeError, match="already been called"):
            scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 4.0


def test_gradscaler_multiplies_its_scale_with_that_of_the_optimizer(device: torch.device) -> None:
    """An optimizer that has a `grad_scale` gets its product with the scaler's scale."""
    scaler = torch.amp.GradScaler(device.type, init_scale=8.0)
    x = with_gradient(device)
    optimizer = Own([x], lr=1.0)
    optimizer.grad_scale = torch.tensor(3.0, device=device)  # type: ignore[assignment]
    scaler.scale(x.sum().detach())
    scaler.step(optimizer)
    assert optimizer.seen[0][0].item() == 24.0


def test_gradscaler_passes_itself_to_an_optimizer_with_the_argument(device: torch.device) -> None:
    """An optimizer whose `step` has `grad_scaler` gets the scaler; a FutureWarning says that this is deprecated."""
    scaler = torch.amp.GradScaler(device.type, init_scale=8.0)
    x = with_gradient(device)
    optimizer = Old([x], lr=1.0)
    scaler.scale(x.sum().detach())
    with pytest.warns(FutureWarning, match="stop passing itself"):
        assert scaler.step(optimizer, "closure") == ("closure", scaler)  # type: ignore[comparison-overlap]


@pytest.mark.parametrize("call", ["step", "unscale_", "update"])
def test_gradscaler_before_the_first_scale_is_an_error_that_names_the_call(device: torch.device, call: str) -> None:
    """Before `scale`, there is no scale tensor: each other method raises AssertionError with its own name."""
    scaler = torch.amp.GradScaler(device.type)
    x = with_gradient(device)
    arguments = () if call == "update" else (torch.optim.SGD([x], lr=1.0),)
    with pytest.raises(AssertionError, match=rf"{call}.*_scale is None"):
        getattr(scaler, call)(*arguments)


@pytest.mark.types("float64")
def test_gradscaler_step_without_gradients_or_with_a_closure_is_an_error(device: torch.device) -> None:
    """`step` raises for an optimizer without any gradient, and for a closure."""
    scaler = torch.amp.GradScaler(device.type)
    x = weight(device)
    optimizer = torch.optim.SGD([x], lr=1.0)
    scaler.scale(x.sum().detach())
    with pytest.raises(AssertionError, match="No inf checks were recorded for this optimizer"):
        scaler.step(optimizer)
    x.grad = torch.ones_like(x)
    with pytest.raises(RuntimeError, match="Closure"):
        scaler.step(optimizer, closure=lambda: None)


def test_gradscaler_update_takes_a_float_or_one_element_on_the_device(device: torch.device) -> None:
    """A new scale is copied from a float or from a tensor of one element that requires no grad; others are refused."""
    scaler = torch.amp.GradScaler(device.type, init_scale=8.0)
    scaler.scale(torch.ones((), device=device))
    scaler.update(16.0)
    assert scaler.get_scale() == 16.0
    new = torch.tensor(32.0, device=device)
    scaler.update(new)
    new.fill_(1.0)
    assert scaler.get_scale() == 32.0
    for wrong in (torch.ones(2, device=device), torch.ones((), device=device, requires_grad=True)):
        with pytest.raises(AssertionError, match="new_scale should be"):
            scaler.update(wrong)
    if device.type != "cpu":
        with pytest.raises(AssertionError, match="new_scale should be"):
            scaler.update(torch.ones(()))
    assert scaler.get_scale() == 32.0


@pytest.mark.types("float64")
def test_unscale_records_nothing_for_autograd(device: torch.device) -> None:
    """`unscale_` changes gradients that have a graph in place, and adds no node to the graph."""
    scaler = torch.amp.GradScaler(device.type, init_scale=4.0)
    x = weight(device)
    optimizer = torch.optim.SGD([x], lr=1.0)
    (x.grad,) = torch.autograd.grad(scaler.scale((x**2).sum()), x, create_graph=True)
    assert x.grad is not None
    node = x.grad.grad_fn
    value = x.grad.tolist()
    assert node is not None
    scaler.unscale_(optimizer)
    assert x.grad.grad_fn is node
    assert x.grad.tolist() == [each / 4 for each in value]
    x.grad = None


@pytest.mark.requires(accelerator=True, devices=2)
@pytest.mark.types("float64")
def test_gradscaler_skips_a_step_for_an_inf_on_the_other_device(device: torch.device) -> None:
    """An inf on either device skips the step of one optimizer with parameters on two devices, and halves the scale."""
    for place in (0, 1):
        scaler = torch.amp.GradScaler(device.type, init_scale=8.0)
        both = [with_gradient(torch.device(device.type, index)) for index in (0, 1)]
        optimizer = torch.optim.SGD(both, lr=1.0)
        scaler.scale(both[0].sum().detach())
        before = [each.tolist() for each in both]
        push(scaler, both[place], float("inf"))
        scaler.step(optimizer)
        scaler.update()
        assert [each.tolist() for each in both] == before
        assert scaler.get_scale() == 4.0


def test_autocast_as_a_context_is_the_object(device: torch.device) -> None:
    """`with torch.autocast(...) as region` gives the object; since 2.13, decorating a non-function raises."""
    region = torch.autocast(device.type, dtype=torch.bfloat16)
    with region as entered:
        assert entered is region
        assert torch.is_autocast_enabled(device.type)
        assert torch.get_autocast_dtype(device.type) == torch.bfloat16
    if torch.__version__ >= (2, 13):
        with pytest.raises(TypeError, match="callable"):
            region(5)  # type: ignore[type-var]
