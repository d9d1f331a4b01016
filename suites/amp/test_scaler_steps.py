"""The gradient scaler with optimizers: unscaling, clipping, several, sparse and fused optimizers, whole training runs.

Scales are powers of two: scaled training is bitwise equal to training without a scaler, so no tolerance is needed
unless a comment says so.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn

from ..streams.busy import calibrate, sleep_on
from ._torch_private import growth_tracker
from .training import FUSED, push, weight

#: Before torch 2.12, fused Adagrad did not support grad_scale and left it to the scaler.
SINCE = {"Adagrad": pytest.mark.requires(torch=">=2.12")}
WITH_FUSED = pytest.mark.parametrize(
    "make", [pytest.param(make, id=name, marks=SINCE.get(name, ())) for name, make in FUSED.items()]
)
INF = float("inf")


@pytest.mark.types("float64")
def test_unscale_divides_gradients_in_place(device: torch.device) -> None:
    """`unscale_` divides gradients by the scale in place, once, and ignores weights without a gradient.

    A gradient that itself requires gradients is divided as well, and autograd does not record it.
    """
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
    x, unused, followed = weight(device), weight(device), weight(device)
    optimiser = torch.optim.SGD([x, unused, followed], lr=1.0)
    push(scaler, x, 3.0)
    gradient = x.grad
    assert gradient is not None
    assert gradient.tolist() == [3.0 * 1024] * 4
    followed.grad = torch.full_like(followed, 2048.0).requires_grad_()

    scaler.unscale_(optimiser)
    assert x.grad is gradient
    assert gradient.tolist() == [3.0] * 4
    assert followed.grad.is_leaf
    assert followed.grad.tolist() == [2.0] * 4
    scaler.step(optimiser)
    scaler.update()

    assert x.tolist() == [-2.0] * 4
    assert unused.tolist() == [1.0] * 4


@pytest.mark.types("float64")
def test_gradscaler_step_alone_unscales(device: torch.device) -> None:
    """`step` without a preceding `unscale_` unscales first, and returns the optimizer's result."""
    scaler = torch.amp.GradScaler(device.type, init_scale=1024.0)
    x = weight(device)

    class Telling(torch.optim.SGD):
        def step(self, closure: None = None) -> float:  # type: ignore[override]
            super().step(closure)
            return 17.0

    optimiser = Telling([x], lr=1.0)
    push(scaler, x, 3.0)

    assert scaler.step(optimiser) == 17.0
    assert x.tolist() == [-2.0] * 4


@pytest.mark.parametrize("foreach", [False, True], ids=["one_by_one", "foreach"])
@pytest.mark.types("float64")
def test_clip_grad_norm_after_unscale_clips_true_gradients(device: torch.device, foreach: bool) -> None:
    """Clipping between `unscale_` and `step` gives the same update as clipping without a scaler."""

    def train(scale: float | None) -> list[float]:
        scaler = torch.amp.GradScaler(device.type, init_scale=scale or 1.0, enabled=scale is not None)
        x = weight(device)
        optimiser = torch.optim.SGD([x], lr=1.0)
        push(scaler, x, torch.tensor([3.0, -4.0, 0.0, 0.0], device=device))
        scaler.unscale_(optimiser)
        norm = nn.utils.clip_grad_norm_([x], 1.0, foreach=foreach)
        scaler.step(optimiser)
        return [norm.item(), *x.tolist()]

    plain = train(None)

    assert plain[0] == 5.0
    assert plain[1] == pytest.approx(1 - 0.6, abs=1e-5)  # clipping divides by the norm plus 1e-6
    assert train(4096.0) == plain


@pytest.mark.types("float64")
def test_gradscaler_unscales_accumulated_gradients_once(device: torch.device) -> None:
    """Gradients accumulated under one scale are unscaled together, once."""
    scaler = torch.amp.GradScaler(device.type, init_scale=16.0)
    x = weight(device)
    optimiser = torch.optim.SGD([x], lr=1.0)
    for gradient in (1.0, 2.0, 4.0):
        push(scaler, x, gradient)
    scaler.step(optimiser)

    assert x.tolist() == [-6.0] * 4


@pytest.mark.types("float64")
def test_gradscaler_gradient_penalty_by_autograd_grad_is_unscaled(device: torch.device) -> None:
    """`autograd.grad` of a scaled loss returns scaled gradients, from which an unscaled penalty can be computed."""

    def train(scale: float | None) -> list[float]:
        scaler = torch.amp.GradScaler(device.type, init_scale=scale or 1.0, enabled=scale is not None)
        x = weight(device)
        optimiser = torch.optim.SGD([x], lr=0.125)
        loss = (x**3).sum()
        (gradient,) = torch.autograd.grad(scaler.scale(loss), x, create_graph=True)
        penalty = (gradient / scaler.get_scale()).square().sum()
        scaler.scale(loss + penalty).backward()
        scaler.step(optimiser)
        scaler.update()
        return x.tolist()

    assert train(256.0) == train(None) == [1 - 0.125 * (3 + 36)] * 4


@pytest.mark.types("float64")
def test_gradscaler_skips_only_the_optimizer_with_the_overflow(device: torch.device) -> None:
    """If the gradients of one of two optimizers overflow, only its step is skipped.

    Their shared scale is reduced once, and both continue at the next step.
    """
    scaler = torch.amp.GradScaler(device.type, init_scale=8.0, growth_interval=1)
    first, second = weight(device), weight(device)
    optimisers = [torch.optim.SGD([first], lr=1.0), torch.optim.SGD([second], lr=1.0)]

    def step(gradients: tuple[float, float]) -> tuple[float, float, float]:
        for x, gradient in zip((first, second), gradients, strict=True):
            x.grad = None
            push(scaler, x, gradient)
        for optimiser in optimisers:
            scaler.step(optimiser)
        scaler.update()
        return scaler.get_scale(), first[0].item(), second[0].item()

    assert step((INF, 1.0)) == (4.0, 1.0, 0.0)
    assert step((1.0, 1.0)) == (8.0, 0.0, -1.0)
    assert step((1.0, INF)) == (4.0, -1.0, -1.0)
    assert step((1.0, 1.0)) == (8.0, -2.0, -2.0)
    assert step((INF, INF)) == (4.0, -2.0, -2.0)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
@pytest.mark.requires(sparse=True)
def test_unscale_of_sparse_gradients(device: torch.device) -> None:
    """A sparse gradient with a duplicate index is unscaled like the dense one, and an infinity in it is detected."""

    def train(*, sparse: bool, factor: float) -> tuple[list[list[float]], float]:
        scaler = torch.amp.GradScaler(device.type, init_scale=32.0)
        table = nn.Embedding(5, 2, sparse=sparse, device=device)
        nn.init.ones_(table.weight)
        optimiser = torch.optim.SGD(table.parameters(), lr=1.0)
        scaler.scale((table(torch.tensor([1, 3, 1], device=device)) * factor).sum()).backward()
        assert table.weight.grad is not None
        assert table.weight.grad.is_sparse == sparse
        gradient = table.weight.grad
        scaler.unscale_(optimiser)
        assert table.weight.grad is gradient
        scaler.step(optimiser)
        scaler.update()
        return table.weight.tolist(), scaler.get_scale()

    expected = [[1.0, 1.0], [-3.0, -3.0], [1.0, 1.0], [-1.0, -1.0], [1.0, 1.0]]

    assert train(sparse=True, factor=2.0) == train(sparse=False, factor=2.0) == (expected, 32.0)
    assert train(sparse=True, factor=INF) == train(sparse=False, factor=INF) == ([[1.0, 1.0]] * 5, 16.0)


@pytest.mark.parametrize("fused", [False, True], ids=["plain", "fused"])
@pytest.mark.types("float64")
def test_gradscaler_step_keeps_to_what_unscale_found(device: torch.device, fused: bool) -> None:
    """A step is skipped if `unscale_` found an infinity, even if the gradients are finite again afterwards."""
    scaler = torch.amp.GradScaler(device.type, init_scale=8.0)
    x = weight(device)
    assert x.grad is None
    optimiser = torch.optim.SGD([x], lr=1.0, fused=fused)
    push(scaler, x, INF)
    scaler.unscale_(optimiser)
    x.grad = torch.ones_like(x)
    scaler.step(optimiser)
    scaler.update()
    assert x.tolist() == [1.0] * 4
    assert scaler.get_scale() == 4.0


class Scaling(torch.optim.SGD):
    """An optimizer that takes the scaler as an argument of its step, as before torch 1.13."""

    def __init__(self, weights: list[torch.Tensor], **settings: float) -> None:
        super().__init__(weights, **settings)  # type: ignore[arg-type]
        self._step_supports_amp_scaling = True
        self.seen: list[object] = []

    def step(self, closure: None = None, grad_scaler: torch.amp.GradScaler | None = None) -> float:  # type: ignore[override]
        assert grad_scaler is not None
        self.seen.append(grad_scaler)
        grad_scaler.unscale_(self)
        super().step(closure)
        return 17.0


@pytest.mark.types("float64")
def test_gradscaler_gives_itself_to_an_optimizer_that_asks_for_it(device: torch.device) -> None:
    """An optimizer that scales by itself and whose step has `grad_scaler` gets the scaler, with a FutureWarning.

    The scaler neither unscales the gradients nor sets `grad_scale` and `found_inf`, and a second step raises.
    """
    scaler = torch.amp.GradScaler(device.type, init_scale=8.0)
    x = weight(device)
    optimiser = Scaling([x], lr=1.0)
    push(scaler, x, 3.0)
    with pytest.warns(FutureWarning, match="stop passing itself"):
        assert scaler.step(optimiser) == 17.0
    assert optimiser.seen == [scaler]
    assert x.tolist() == [-2.0] * 4
    assert not hasattr(optimiser, "found_inf")
    with pytest.raises(RuntimeError, match="already been called"):
        scaler.step(optimiser)


# ---- fused optimizers ----


@pytest.mark.covers("test_cuda::TestCudaOptims::test_grad_scaler_with_preset_grad_scale")
@WITH_FUSED
@pytest.mark.parametrize("unscaled", [False, True], ids=["in_the_step", "before_it"])
@pytest.mark.types("float64")
def test_fused_optimizer_with_its_own_grad_scale(
    device: torch.device, make: Callable[..., torch.optim.Optimizer], unscaled: bool
) -> None:
    """A fused optimizer with its own `grad_scale` divides by it and the scaler's scale, unless `unscale_` did.

    Gradients remain divided by both, and `grad_scale` and `found_inf` are removed afterwards. 15 divided by the scales
    5 and 3 is 1, exactly in float32 with division.
    """
    x = weight(device, 5, 5)
    x.grad = torch.full_like(x, 15.0)
    optimiser = make([x], lr=0.1, fused=True)
    scaler = torch.amp.GradScaler(device.type, init_scale=5.0)
    scaler.scale(torch.ones(5, device=device))

    if unscaled:
        scaler.unscale_(optimiser)
        torch.testing.assert_close(x.grad, torch.full_like(x, 3.0))
    optimiser.grad_scale = torch.tensor([3.0], device=device)  # type: ignore[attr-defined]
    scaler.step(optimiser)

    # A fused kernel may multiply by the inverse of the product of the scales, within float32 rounding of one.
    torch.testing.assert_close(x.grad, torch.ones_like(x))
    assert not hasattr(optimiser, "grad_scale")
    assert not hasattr(optimiser, "found_inf")


@pytest.mark.covers("test_cuda::TestCudaOptims::test_grad_scaling_autocast_fused_optimizers")
@WITH_FUSED
@pytest.mark.parametrize("separate", [False, True], ids=["in_the_step", "unscaled_before"])
@pytest.mark.types("float64")
@pytest.mark.requires(autocast=True)
def test_fused_optimizer_with_gradscaler_trains_as_the_plain_one(
    device: torch.device, make: Callable[..., torch.optim.Optimizer], separate: bool
) -> None:
    """A fused optimizer, which unscales and skips steps in its kernel, trains like the plain one.

    Scales are equal, and a step with overflow changes no weight. Weights near one agree within 1e-5, a hundred
    roundings of float32, because a fused kernel orders its operations differently.
    """

    def train(*, fused: bool) -> tuple[list[float], torch.Tensor]:
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to(device)
        options = {} if make is torch.optim.Adagrad else {"weight_decay": 0.01}
        optimiser = make(model.parameters(), lr=0.05, fused=fused, foreach=False, **options)
        scaler = torch.amp.GradScaler(device.type, init_scale=128.0, growth_interval=2)
        found: list[float] = []
        for step in range(6):
            x = torch.randn(4, 8).to(device)
            optimiser.zero_grad()
            with torch.autocast(device.type, dtype=torch.float16):
                out = model(x)
            loss = nn.functional.mse_loss(out.float(), x)
            scaler.scale(loss).backward()
            if step == 3:
                first = next(model.parameters()).grad
                assert first is not None
                first[2, 3] = INF
            before = [p.detach().clone() for p in model.parameters()]
            if separate:
                scaler.unscale_(optimiser)
            scaler.step(optimiser)
            scaler.update()
            still = all(map(torch.equal, before, (p.detach() for p in model.parameters())))
            assert still == (step == 3)
            found.append(scaler.get_scale())
        return found, torch.cat([p.detach().flatten() for p in model.parameters()])

    plain, fused = train(fused=False), train(fused=True)

    assert plain[0] == fused[0] == [128.0, 256.0, 256.0, 128.0, 128.0, 256.0]
    torch.testing.assert_close(fused[1], plain[1], rtol=1e-5, atol=1e-5)


@WITH_FUSED
def test_fused_optimizer_step_skipped_for_found_inf_does_not_count(
    device: torch.device, make: Callable[..., torch.optim.Optimizer]
) -> None:
    """A step that a fused optimizer skips changes neither its step count nor its other state."""
    x = weight(device)
    optimiser = make([x], lr=0.1, fused=True, **({"momentum": 0.5} if make is torch.optim.SGD else {}))
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0)

    def step(gradient: float) -> dict[str, torch.Tensor]:
        x.grad = None
        push(scaler, x, gradient)
        scaler.step(optimiser)
        scaler.update()
        return {name: value.clone() for name, value in optimiser.state[x].items() if isinstance(value, torch.Tensor)}

    good = step(1.0)
    after = step(INF)

    assert good
    assert good.keys() == after.keys()
    for name, value in good.items():
        assert torch.equal(after[name], value), name


@pytest.mark.requires(device="cuda")
@WITH_FUSED
@pytest.mark.races("torch reads the copy of the flag before it is done")
@pytest.mark.xfail(
    raises=AssertionError,
    reason="GradScaler.step copies found_inf to the device of the scale with non_blocking=True, and the CPU adds it up "
    "without a wait (torch/amp/grad_scaler.py)",
)
def test_gradscaler_step_skips_an_overflow_behind_pending_work(
    device: torch.device, make: Callable[..., torch.optim.Optimizer]
) -> None:
    """`step` of a fused optimizer changes no weight if a gradient is infinite, also while earlier work is pending.

    The scale is on the device of the first loss that was scaled, here the CPU.
    """
    x = weight(device)
    x.grad = torch.full_like(x, INF)
    optimiser = make([x], lr=1.0, fused=True)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0)
    scaler.scale(torch.ones(()))
    calibrate(device)
    block = torch.zeros(1, pin_memory=True)  # the copy of the flag reuses it
    del block
    torch.accelerator.synchronize(device)

    sleep_on(torch.accelerator.current_stream(device))
    scaler.step(optimiser)

    assert x.tolist() == [1.0] * 4


# ---- whole training runs ----


@pytest.mark.parametrize("foreach", [False, True], ids=["one_by_one", "foreach"])
@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop", "Adadelta"])
@pytest.mark.types("float64")
def test_gradscaler_training_equals_unscaled_training(device: torch.device, name: str, foreach: bool) -> None:
    """With a power-of-two scale, training with a scaler is bitwise equal to training without one."""

    def train(scale: float | None) -> list[torch.Tensor]:
        torch.manual_seed(11)
        model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2)).to(device)
        optimiser = getattr(torch.optim, name)(model.parameters(), lr=0.05, foreach=foreach)
        scaler = torch.amp.GradScaler(
            device.type, init_scale=scale or 1.0, growth_interval=2, enabled=scale is not None
        )
        for _ in range(5):
            x = torch.randn(8, 6).to(device)
            optimiser.zero_grad()
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimiser)
            scaler.update()
        return [p.detach() for p in model.parameters()]

    assert all(map(torch.equal, train(512.0), train(None)))


# ---- state ----


def trained(device: torch.device) -> torch.amp.GradScaler:
    """Return a scaler with no value at its default: scale 24, one step counted towards the next growth."""
    scaler = torch.amp.GradScaler(
        device.type, init_scale=96.0, growth_factor=3.0, backoff_factor=0.25, growth_interval=7
    )
    x = weight(device)
    optimiser = torch.optim.SGD([x], lr=0.1)
    for gradient in (INF, 1.0):
        x.grad = None
        push(scaler, x, gradient)
        scaler.step(optimiser)
        scaler.update()
    return scaler


def go_on(scaler: torch.amp.GradScaler, device: torch.device) -> list[float]:
    """Return the scales after six more finite steps, and one that overflows."""
    x = weight(device)
    optimiser = torch.optim.SGD([x], lr=0.1)
    found = []
    for gradient in (*[1.0] * 6, INF):
        x.grad = None
        push(scaler, x, gradient)
        scaler.step(optimiser)
        scaler.update()
        found.append(scaler.get_scale())
    return found


@pytest.mark.parametrize("used", [False, True], ids=["new", "in_use"])
@pytest.mark.types("float64")
def test_gradscaler_load_state_dict_restores_everything(device: torch.device, used: bool) -> None:
    """`load_state_dict` restores scale, factors, interval and count, in a new scaler and in a used one.

    The restored scaler continues like the original.
    """
    scaler = trained(device)
    state = scaler.state_dict()
    assert (state["scale"], state["growth_factor"], state["backoff_factor"], state["growth_interval"]) == (
        24,
        3,
        0.25,
        7,
    )
    assert growth_tracker(scaler) == 1

    other = torch.amp.GradScaler(device.type)
    if used:
        other.scale(torch.ones((), device=device))
    other.load_state_dict(copy.deepcopy(state))

    assert other.state_dict() == state
    assert other.scale(torch.ones((), device=device)).item() == 24.0
    assert go_on(other, device) == go_on(scaler, device) == [24.0] * 5 + [72.0, 18.0]


@pytest.mark.types("float64")
def test_gradscaler_can_be_pickled_between_iterations(device: torch.device) -> None:
    """A scaler can be pickled between iterations, with its scale and count, but not within one."""
    scaler = trained(device)
    other = pickle.loads(pickle.dumps(scaler))

    assert other.state_dict() == scaler.state_dict()
    assert other.scale(torch.ones((), device=device)).item() == 24.0
    assert go_on(other, device) == go_on(scaler, device) == [24.0] * 5 + [72.0, 18.0]

    x = weight(device)
    push(scaler, x, 1.0)
    scaler.unscale_(torch.optim.SGD([x], lr=0.1))
    with pytest.raises(AssertionError, match="pickled"):
        pickle.dumps(scaler)


@pytest.mark.types("float64")
def test_gradscaler_load_state_dict_refuses_a_disabled_state(device: torch.device) -> None:
    """The empty state of a disabled scaler raises RuntimeError in an enabled scaler, but not in a disabled one."""
    off = torch.amp.GradScaler(device.type, enabled=False)

    with pytest.raises(RuntimeError, match="empty"):
        torch.amp.GradScaler(device.type).load_state_dict(off.state_dict())
    off.load_state_dict(trained(device).state_dict())
    assert off.state_dict() == {}


@pytest.mark.requires(accelerator=True, devices=2)
@pytest.mark.types("float64")
def test_gradscaler_shares_a_scale_over_two_devices(device: torch.device) -> None:
    """With weights on two devices, an overflow on either reaches the scale.

    In one optimizer, neither weight changes; with one optimizer per device, the other weight does.
    """
    there = torch.device(device.type, 1)
    near, far = weight(device), weight(there)
    scaler = torch.amp.GradScaler(device.type, init_scale=256.0, growth_interval=1)
    optimisers = [[torch.optim.SGD([near, far], lr=1.0)], [torch.optim.SGD([x], lr=1.0) for x in (near, far)]]

    def step(gradients: tuple[float, float], optimisers: list[torch.optim.SGD]) -> tuple[float, float, float]:
        for x, gradient in zip((near, far), gradients, strict=True):
            x.grad = None
            push(scaler, x, gradient)
        for optimiser in optimisers:
            scaler.step(optimiser)
        scaler.update()
        return scaler.get_scale(), near[0].item(), far[0].item()

    together, each = optimisers
    assert step((1.0, 1.0), together) == (512.0, 0.0, 0.0)
    assert step((1.0, INF), together) == (256.0, 0.0, 0.0)
    assert step((INF, 1.0), together) == (128.0, 0.0, 0.0)
    assert step((1.0, 1.0), each) == (256.0, -1.0, -1.0)
    assert step((1.0, INF), each) == (128.0, -2.0, -1.0)
    assert step((INF, 1.0), each) == (64.0, -2.0, -2.0)
